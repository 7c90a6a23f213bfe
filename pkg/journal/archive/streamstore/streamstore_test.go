package streamstore

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/natsdtest"
)

func TestStore(t *testing.T) {
	nc := natsdtest.Connect(t)
	journaltest.RunArchiveStore(t, func(t *testing.T) archive.Store {
		return must.Value(New(nc, "work", 3, 1))(t)
	})
	stream := must.Value(must.Value(jetstream.New(nc))(t).Stream(t.Context(), Stream("work", 3)))(t)
	require.EqualValues(t, 3, stream.CachedInfo().State.Msgs, "an object with its mark, and the catalog; nothing of "+
		"a writer that gave up")
}

// TestStore_StreamRemoved goes on after somebody removed the stream.
func TestStore_StreamRemoved(t *testing.T) {
	nc := natsdtest.Connect(t)
	s := must.Value(New(nc, "work", 0, 1))(t)
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("c")))
	require.NoError(t, must.Value(jetstream.New(nc))(t).DeleteStream(t.Context(), Stream("work", 0)))
	_, version, err := s.Catalog(t.Context())
	require.NoError(t, err)
	require.Zero(t, version)
	require.Error(t, s.ReplaceCatalog(t.Context(), 0, []byte("d")))
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("d")))
}

// TestStore_SweepsDrafts: what a killed process stored of a segment is removed after a while; what is complete, or is
// being stored, stays.
func TestStore_SweepsDrafts(t *testing.T) {
	nc := natsdtest.Connect(t)
	s := must.Value(New(nc, "work", 0, 1))(t)
	begin := func(segment uint64) archive.Draft {
		d := must.Value(s.Begin(t.Context(), segment))(t)
		must.Value(d.Add(t.Context(), []byte("frames")))(t)
		return d
	}
	name := must.Value(begin(1).Commit(t.Context()))(t)
	begin(2) // and the process is killed
	kept := func(want ...uint64) {
		t.Helper()
		all, _, err := s.named(t.Context(), "frames.")
		require.NoError(t, err)
		require.ElementsMatch(t, want, slices.Collect(maps.Values(all)))
	}
	kept(1, 2)
	begin(3)
	kept(1, 2, 3)
	require.NoError(t, s.sweep(t.Context(), draftTerm))
	kept(1, 2, 3)
	require.NoError(t, s.sweep(t.Context(), -time.Hour))
	kept(1)
	_, _, err := s.Last(t.Context(), name)
	require.NoError(t, err)
}

// TestStore_RemoveOverwrites: what was removed is in no file of the server any more.
func TestStore_RemoveOverwrites(t *testing.T) {
	dir := t.TempDir()
	server := must.Value(natsd.Start(natsd.Config{StoreDir: dir, Port: natsd.InProcess}))(t)
	t.Cleanup(server.Stop)
	nc := must.Value(server.Connect("test"))(t)
	t.Cleanup(nc.Close)
	s := must.Value(New(nc, "work", 0, 1))(t)
	names := map[string]string{}
	for _, text := range []string{"a removed text", "a kept text"} {
		d := must.Value(s.Begin(t.Context(), 1))(t)
		must.Value(d.Add(t.Context(), []byte(text)))(t)
		names[text] = must.Value(d.Commit(t.Context()))(t)
	}
	require.NoError(t, s.Remove(t.Context(), names["a removed text"]))
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		for text := range names {
			found[text] = found[text] || bytes.Contains(b, []byte(text))
		}
		return err
	}))
	require.Equal(t, map[string]bool{"a removed text": false, "a kept text": true}, found)
}
