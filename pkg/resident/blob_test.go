package resident

import (
	"bytes"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// A Blob has its bytes, in the file or, if there is none or it is full, in memory, and so has the Blob that its
// reference names.
func TestBlob(t *testing.T) {
	full := newFile(t)
	full.end = math.MaxUint32
	closed := newFile(t)
	require.NoError(t, closed.Close())
	written := newFile(t)
	for name, test := range map[string]struct {
		file   *File
		stored bool
	}{
		"a file": {written, true}, "no file": {nil, false}, "a full file": {full, false},
		"a file that cannot be written": {closed, false},
	} {
		t.Run(name, func(t *testing.T) {
			content := noise(5000)
			b := NewBlob(test.file, content)
			require.False(t, b.IsZero())
			require.Equal(t, test.stored, b.Stored())
			_, err := b.Store(test.file)
			require.Equal(t, test.file == nil || test.stored, err == nil)
			if test.stored {
				require.Positive(t, test.file.Bytes())
			}
			again := must.Value(BlobOf(test.file, bytes.Clone(b.Ref())))(t)
			for _, b := range []Blob{b, again} {
				require.True(t, bytes.Equal(content, b.Bytes()))
				require.Equal(t, any(content), b.Comparable())
			}
			require.Equal(t, b, again)
			again.Free()
			if test.file != nil {
				require.Zero(t, test.file.Bytes())
			}
		})
	}
	require.True(t, Blob{}.IsZero())
	require.True(t, NewBlob(written, nil).IsZero())
	require.Empty(t, Blob{}.Bytes())
	Blob{}.Free()
	require.Zero(t, written.Bytes(), "nothing was stored for it")
	for _, ref := range [][]byte{nil, {refKept}, {refStored}, make([]byte, 9), Blob{}.Ref()} {
		require.Error(t, must.Err(BlobOf(written, ref)), "%v", ref)
	}
	require.Error(t, must.Err(BlobOf(nil, NewBlob(written, []byte("x")).Ref())))
}

// The place of a Blob that was freed is used again.
func TestBlobIsFreed(t *testing.T) {
	f := newFile(t)
	first := NewBlob(f, noise(1000))
	size := f.Size()
	first.Free()
	second := must.Value(NewBlob(nil, noise(1000)).Store(f))(t)
	require.Equal(t, size, f.Size())
	require.Equal(t, first.stored, second.stored)
	require.Equal(t, second, must.Value(second.Store(newFile(t)))(t), "it is in a file")
}

// A Blob that cannot be read is the panic that has a partition loaded again.
func TestUnreadableBlob(t *testing.T) {
	f := newFile(t)
	b := NewBlob(f, noise(1000))
	must.Value(f.f.WriteAt([]byte("damage"), int64(b.stored.at)*unit+100))(t)
	require.ErrorIs(t, unreadable(t, func() { b.Bytes() }), ErrUnreadable)
	require.NoError(t, f.Close())
	err := unreadable(t, func() { b.Bytes() })
	require.ErrorIs(t, err, ErrUnreadable)
	require.ErrorIs(t, err, os.ErrClosed)
}

// unreadable returns the error with which a function panics.
func unreadable(t *testing.T, fn func()) (err error) {
	defer func() {
		thrown, is := recover().(error)
		require.True(t, is)
		err = thrown
	}()
	fn()
	return nil
}
