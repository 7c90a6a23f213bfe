package journaltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
)

// RunArchiveStore tests a store. open opens the same empty store each time that it is called.
func RunArchiveStore(t *testing.T, open func(t *testing.T) archive.Store) {
	ctx := t.Context()
	s := open(t)
	content, version, err := s.Catalog(ctx)
	require.NoError(t, err)
	require.Zero(t, version)
	require.Empty(t, content)
	names, err := s.Names(ctx)
	require.NoError(t, err)
	require.Empty(t, names)
	_, err = s.Get(ctx, "no-such-name", 0, 1)
	require.ErrorIs(t, err, archive.ErrNoObject)
	require.NoError(t, s.Remove(ctx, "no-such-name"))

	put := func(segment uint64, objects ...string) (string, []uint64) {
		d, err := s.Begin(ctx, segment)
		require.NoError(t, err)
		defer d.Close()
		var at []uint64
		for _, o := range objects {
			n, err := d.Add(ctx, []byte(o))
			require.NoError(t, err)
			at = append(at, n)
		}
		name, err := d.Commit(ctx)
		require.NoError(t, err)
		return name, at
	}
	first, at := put(7, "one", "", "a third")
	second, atSecond := put(7, "other")
	require.NotEqual(t, first, second, "each writer has a name of its own")
	given, err := s.Begin(ctx, 8)
	require.NoError(t, err)
	_, err = given.Add(ctx, []byte("given up"))
	require.NoError(t, err)
	given.Close()

	require.NoError(t, s.ReplaceCatalog(ctx, 0, []byte("c1")))
	require.ErrorIs(t, s.ReplaceCatalog(ctx, 0, []byte("other")), archive.ErrReplaced)
	again := open(t)
	for i, want := range []string{"one", "", "a third"} {
		b, err := again.Get(ctx, first, at[i], int64(len(want)))
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	b, where, err := again.Last(ctx, first)
	require.NoError(t, err)
	require.Equal(t, at[2], where)
	require.Equal(t, "a third", string(b))
	names, err = again.Names(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{first: 7, second: 7}, names)
	_, err = again.Get(ctx, second, atSecond[0], 1<<20)
	require.ErrorIs(t, err, archive.ErrNoObject, "more bytes than there are")

	content, version, err = again.Catalog(ctx)
	require.NoError(t, err)
	require.Equal(t, "c1", string(content))
	for i := range 5 {
		require.NoError(t, again.ReplaceCatalog(ctx, version, []byte{byte(i)}))
		require.ErrorIs(t, again.ReplaceCatalog(ctx, version, []byte("late")), archive.ErrReplaced)
		content, version, err = s.Catalog(ctx)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(i)}, content)
	}
	require.NoError(t, s.Remove(ctx, first))
	require.NoError(t, s.Remove(ctx, first))
	_, err = s.Get(ctx, first, at[0], 3)
	require.ErrorIs(t, err, archive.ErrNoObject)
	_, _, err = s.Last(ctx, first)
	require.ErrorIs(t, err, archive.ErrNoObject)
	b, err = s.Get(ctx, second, atSecond[0], 5)
	require.NoError(t, err)
	require.Equal(t, "other", string(b))
}
