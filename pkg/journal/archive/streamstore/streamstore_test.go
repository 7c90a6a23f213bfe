package streamstore

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/archive/archivetest"
	"quartet/pkg/natsd/natsdtest"
)

func TestStore(t *testing.T) {
	nc := natsdtest.Connect(t)
	archivetest.RunStore(t, func(t *testing.T) archive.Store {
		s, err := New(nc, "work", 3, 1)
		require.NoError(t, err)
		return s
	})
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), Stream("work", 3))
	require.NoError(t, err)
	require.EqualValues(t, 3, stream.CachedInfo().State.Msgs, "an object with its mark, and the catalog; nothing of a writer that gave up")
}

// TestStore_StreamRemoved goes on after somebody removed the stream.
func TestStore_StreamRemoved(t *testing.T) {
	nc := natsdtest.Connect(t)
	s, err := New(nc, "work", 0, 1)
	require.NoError(t, err)
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("c")))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), Stream("work", 0)))
	_, version, err := s.Catalog(t.Context())
	require.NoError(t, err)
	require.Zero(t, version)
	require.Error(t, s.ReplaceCatalog(t.Context(), 0, []byte("d")))
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("d")))
}
