package archive_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

const secretText = "what ada said"

// isSecret reports whether a line is to be erased.
func isSecret(line []byte) bool { return bytes.Contains(line, []byte(secretText)) }

// withSecrets writes four segments, three of which are closed. Those with the numbers 0 and 2 have lines to erase.
func withSecrets(t *testing.T) *written {
	w := newWritten()
	n := 0
	for i := range 4 {
		if i > 0 {
			w.close(t)
		}
		for range 3 {
			text := "what bob said"
			if i%2 == 0 {
				text = secretText
			}
			w.write(t, fmt.Sprintf(`{"wal_seq":%d,"text":"%s"}`+"\n"+`{"wal_seq":%d,"text":"what eve said"}`+"\n", n+1,
				text, n+2))
			n += 2
		}
	}
	return w
}

// erase erases the secrets in a segment.
func erase(t *testing.T, store archive.Store, number uint64) (*archive.Catalog, int64) {
	t.Helper()
	c := must.Value(archive.Read(t.Context(), store, partition))(t)
	c, n, err := c.Erase(t.Context(), store, number, archive.Erasing{Line: isSecret})
	require.NoError(t, err)
	return c, n
}

// erasedFrames lets w expect frames without their secrets, where they are archived.
func (w *written) erasedFrames(until uint64) {
	for seq, f := range w.frames {
		if seq <= until {
			w.frames[seq], _ = f.Erase(f.Link.First, isSecret)
		}
	}
}

func TestCatalog_Erase(t *testing.T) {
	w := withSecrets(t)
	dir := t.TempDir()
	store := archive.NewDirectory(dir, "test", 0)
	l := archive.NewLog(w.live, store, partition)
	w.archived(t, l)
	w.reads(t, l)
	require.Contains(t, string(journaltest.ArchiveContent(t, dir)), secretText)

	before, n := erase(t, store, 1)
	require.Zero(t, n)
	c, n := erase(t, store, 0)
	require.EqualValues(t, 3, n)
	require.Equal(t, before.Segments[1:], c.Segments[1:], "the others stay as they are")
	require.NotEqual(t, before.Segments[0].GetName(), c.Segments[0].GetName())
	require.Equal(t, before.End(), c.End())
	c, n = erase(t, store, 2)
	require.EqualValues(t, 3, n)
	_, n = erase(t, store, 2)
	require.Zero(t, n)
	require.EqualValues(t, 3, c.Segments[2].GetErasedLines())

	w.erasedFrames(c.End().Seq)
	w.reads(t, l) // which knows the catalog of before
	w.reads(t, archive.NewLog(w.live, store, partition))
	found := string(journaltest.ArchiveContent(t, dir))
	require.NotContains(t, found, secretText)
	require.Contains(t, found, "what bob said")
	require.Len(t, must.Value(store.Names(t.Context()))(t), 3)

	// A catalog that is lost is made anew from the segments.
	all, unreadable, err := archive.Stored(t.Context(), store, partition)
	require.NoError(t, err)
	require.Empty(t, unreadable)
	for _, s := range c.Segments {
		require.EqualExportedValues(t, s.GetErasedLines(), all[s.GetName()].GetErasedLines())
	}
}

// TestCatalog_FormatOfErasedLines: what has erased lines is refused by earlier versions, which know format 1 only; what
// has none is written as they read it.
func TestCatalog_FormatOfErasedLines(t *testing.T) {
	w := withSecrets(t)
	store := archive.NewDirectory(t.TempDir(), "test", 0)
	w.archived(t, archive.NewLog(w.live, store, partition))
	format := func() uint32 {
		b, _, err := store.Catalog(t.Context())
		require.NoError(t, err)
		var c archivev1.Catalog
		require.NoError(t, proto.Unmarshal(b[32:], &c))
		return c.GetFormat()
	}
	require.EqualValues(t, 1, format())
	c, _ := erase(t, store, 0)
	require.EqualValues(t, 2, format())
	for i, want := range []uint32{2, 1, 1} {
		require.Equal(t, want, must.Value(c.Segments[i].Index(t.Context(), store))(t).GetFormat())
	}
}

// TestCatalog_EraseRepeats ends an erasure at each call of the store, with and without the effect of that call. Readers
// find all frames whatever happened, and the erasure can be repeated.
func TestCatalog_EraseRepeats(t *testing.T) {
	for _, effect := range []bool{false, true} {
		calls := 0
		for reached := true; reached; calls++ {
			w := withSecrets(t)
			dir := t.TempDir()
			inner := archive.NewDirectory(dir, "test", 0)
			l := archive.NewLog(w.live, inner, partition)
			w.archived(t, l)
			f := &failing{left: calls, effect: effect, failed: make(chan struct{})}
			store := failingStore{inner, f}
			c, err := archive.Read(t.Context(), store, partition)
			if err == nil {
				_, _, err = c.Erase(t.Context(), store, 0, archive.Erasing{Line: isSecret})
			}
			reached = err != nil
			w.follows(t, l)

			c = must.Value(archive.Read(t.Context(), inner, partition))(t)
			c, _, err = c.Erase(t.Context(), inner, 0, archive.Erasing{Line: isSecret})
			require.NoError(t, err)
			require.NoError(t, c.Clean(t.Context(), inner))
			erase(t, inner, 2)
			w.erasedFrames(c.End().Seq)
			w.reads(t, l)
			require.NotContains(t, string(journaltest.ArchiveContent(t, dir)), secretText)
		}
		require.Greater(t, calls, 8)
	}
}

// follows reads the log and requires that its frames continue each other to the end.
func (w *written) follows(t *testing.T, l framelog.Log) {
	t.Helper()
	at := framelog.End{}
	require.NoError(t, l.Scan(t.Context(), 0, func(seq uint64, f framelog.Frame) error {
		next, intact, err := at.Next(partition, seq, f)
		require.True(t, intact)
		at = next
		return err
	}))
	require.Equal(t, w.end(), at)
}

// TestCatalog_EraseWhileAnotherArchives: the catalog is replaced by compare-and-set only.
func TestCatalog_EraseWhileAnotherArchives(t *testing.T) {
	w := withSecrets(t)
	dir := t.TempDir()
	store := archive.NewDirectory(dir, "test", 0)
	l := archive.NewLog(w.live, store, partition)
	w.archived(t, l)
	old := must.Value(archive.Read(t.Context(), store, partition))(t)
	w.close(t)
	w.write(t, "{}\n")
	w.archived(t, l)
	_, _, err := old.Erase(t.Context(), store, 0, archive.Erasing{Line: isSecret})
	require.ErrorIs(t, err, archive.ErrReplaced)
	w.reads(t, l)
	erase(t, store, 0)
	w.follows(t, l)
}

// A process that cleans by a catalog that another one has replaced since removes nothing that is in force.
func TestCatalog_CleanByAnOldCatalog(t *testing.T) {
	w := withSecrets(t)
	store := archive.NewDirectory(t.TempDir(), "test", 0)
	l := archive.NewLog(w.live, store, partition)
	w.archived(t, l)
	old := must.Value(archive.Read(t.Context(), store, partition))(t)
	erase(t, store, 0)
	require.NoError(t, old.Clean(t.Context(), store))
	w.follows(t, l)
}

// cleanedStore has another process clean just before a catalog is replaced.
type cleanedStore struct {
	archive.Store
	cleaned int
}

func (s *cleanedStore) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	if s.cleaned++; s.cleaned == 1 {
		c, err := archive.Read(ctx, s.Store, partition)
		if err == nil {
			err = c.Clean(ctx, s.Store)
		}
		if err != nil {
			return err
		}
	}
	return s.Store.ReplaceCatalog(ctx, version, content)
}

// What another process removed before it was in the catalog is in no catalog afterwards, and the erasure can be
// repeated.
func TestCatalog_EraseWhileAnotherCleans(t *testing.T) {
	w := withSecrets(t)
	store := &cleanedStore{Store: archive.NewDirectory(t.TempDir(), "test", 0)}
	l := archive.NewLog(w.live, store.Store, partition)
	w.archived(t, l)
	c := must.Value(archive.Read(t.Context(), store, partition))(t)
	_, _, err := c.Erase(t.Context(), store, 0, archive.Erasing{Line: isSecret})
	require.ErrorIs(t, err, archive.ErrReplaced)
	require.Positive(t, store.cleaned)
	w.follows(t, l)
	erase(t, store.Store, 0)
	w.follows(t, l)
}

// TestLog_ReadsWhileErased reads a log frame by frame, and erases what is ahead and behind at each of them.
func TestLog_ReadsWhileErased(t *testing.T) {
	for at := range 16 {
		w := withSecrets(t)
		store := archive.NewDirectory(t.TempDir(), "test", 0)
		l := archive.NewLog(w.live, store, partition)
		w.archived(t, l)
		end, n := framelog.End{}, 0
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		err := l.Scan(ctx, 0, func(seq uint64, f framelog.Frame) error {
			next, intact, err := end.Next(partition, seq, f)
			require.NoError(t, err)
			require.True(t, intact)
			end = next
			if n++; n == at {
				erase(t, store, 0)
				erase(t, store, 2)
			}
			return nil
		})
		stop()
		require.NoError(t, err)
		require.Equal(t, w.end(), end)
	}
}
