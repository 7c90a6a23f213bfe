package resident

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

func newFile(t *testing.T) *File {
	f := must.Value(Create(t.TempDir()))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// noise returns so many bytes that cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return b
}

// The file has no name, and nothing is left of it.
func TestFileHasNoName(t *testing.T) {
	dir := t.TempDir()
	f := must.Value(Create(dir))(t)
	p := must.Value(f.put([]byte("a value")))(t)
	require.Equal(t, "a value", string(must.Value(f.get(p, nil))(t)))
	require.NoError(t, f.Close())
	require.Empty(t, must.Value(os.ReadDir(dir))(t))
	must.Refuse(f.get(p, nil))(t, os.ErrClosed)
	require.NoError(t, os.WriteFile(dir+"/taken", nil, 0o600))
	must.Refuse(Create(dir+"/taken"))(t, syscall.ENOTDIR)
	f = must.Value(Create(dir + "/made"))(t)
	require.NoError(t, f.Close())
}

// Blobs come back as they were put, whatever their sizes, and no two share a place.
func TestFileKeepsBlobs(t *testing.T) {
	f := newFile(t)
	all := map[place][]byte{}
	bytesOfAll := int64(0)
	for range 500 {
		if rand.IntN(3) == 0 {
			for p := range all {
				f.remove(p)
				bytesOfAll -= int64(p.size)
				delete(all, p)
				break
			}
			continue
		}
		plain := noise(rand.IntN(5000))
		p := must.Value(f.put(plain))(t)
		require.NotContains(t, all, p)
		all[p] = plain
		bytesOfAll += int64(p.size)
	}
	for p, want := range all {
		require.True(t, bytes.Equal(want, must.Value(f.get(p, nil))(t)))
	}
	require.Equal(t, bytesOfAll, f.Bytes())
	require.Less(t, must.Value(f.put(make([]byte, 1<<20)))(t).size, uint32(1<<10), "blobs are compressed")
}

// Places that were freed are used again, those of the same room only.
func TestFileUsesPlacesAgain(t *testing.T) {
	f := newFile(t)
	put := func(size int) place {
		return must.Value(f.put(noise(size)))(t)
	}
	first, second, large := put(100), put(100), put(10_000)
	end := f.end
	f.remove(first)
	f.remove(large)
	require.Equal(t, large.at, put(9_990).at)
	require.Equal(t, first.at, put(110).at)
	require.Equal(t, end, f.end)
	require.NotEqual(t, second.at, put(100).at)
	require.Greater(t, f.end, end)

	used := f.end // as many values evicted again and again take no more than once
	for range 100 {
		var all []place
		for range 10 {
			all = append(all, put(3000+rand.IntN(40)))
		}
		for _, p := range all {
			f.remove(p)
		}
	}
	require.LessOrEqual(t, f.end-used, uint64(10*2*room(3100)))
}

// A room has the blob, and wastes at most an eighth of it above 32 units; one unit at most below.
func TestRooms(t *testing.T) {
	last := uint32(0)
	for size := 1; size < 1<<20; size += 1 + size/100 {
		units := room(size)
		need := uint32((size + unit - 1) / unit)
		require.GreaterOrEqual(t, units, need, size)
		require.GreaterOrEqual(t, units, last, size)
		if last = units; need <= 32 {
			require.Equal(t, need, units, size)
		} else {
			require.LessOrEqual(t, units-need, need/8, size)
		}
		require.Equal(t, units, room(int(units)*unit), "a room is full with as many bytes as it has")
	}
	require.LessOrEqual(t, uint64(room(maxBytes))*unit, uint64(maxBytes)+maxBytes/8)
}

// A file ends where places cannot name more. What is in it stays, and what is freed can be used.
func TestFileIsFull(t *testing.T) {
	f := newFile(t)
	p := must.Value(f.put(noise(100)))(t)
	f.end = math.MaxUint32
	must.Refuse(f.put(noise(100)))(t, ErrFull)
	must.Value(f.get(p, nil))(t)
	f.remove(p)
	require.Equal(t, p.at, must.Value(f.put(noise(100)))(t).at)
}

// A place of which the write failed can be used again, and counts for nothing.
func TestFileWriteFails(t *testing.T) {
	f := newFile(t)
	whole := f.f
	f.f = unwritable(t)
	must.Fail(f.put(noise(100)))(t, "resident: write")
	require.Zero(t, f.Bytes())
	f.f = whole
	require.EqualValues(t, 1, must.Value(f.put(noise(100)))(t).at)
}

// unwritable returns a file that cannot be written, as a disk that is full.
func unwritable(t *testing.T) *os.File {
	name := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	f := must.Value(os.Open(name))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Bytes that were changed, or are missing, are errors.
func TestFileIsDamaged(t *testing.T) {
	f := newFile(t)
	p := must.Value(f.put(noise(1000)))(t)
	for at := int64(0); at < int64(p.size); at += 97 {
		b := make([]byte, 1)
		must.Value(f.f.ReadAt(b, int64(p.at)*unit+at))(t)
		must.Value(f.f.WriteAt([]byte{b[0] ^ 1}, int64(p.at)*unit+at))(t)
		_, err := f.get(p, nil)
		require.EqualError(t, err, "resident: the checksum is another one")
		must.Value(f.f.WriteAt(b, int64(p.at)*unit+at))(t)
	}
	must.Value(f.get(p, nil))(t)
	_, err := f.get(place{p.at, 3}, nil)
	require.EqualError(t, err, "resident: the checksum is another one")
	require.NoError(t, f.f.Truncate(int64(p.at)*unit+500))
	_, err = f.get(p, nil)
	require.EqualError(t, err, "resident: EOF")
}

// Places are given by many at a time.
func TestFileIsShared(t *testing.T) {
	f := newFile(t)
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	for n := range 4 {
		wg.Go(func() {
			for range 200 {
				want := bytes.Repeat([]byte{byte(n)}, 1+rand.IntN(300))
				p, err := f.put(append(noise(100), want...))
				if err == nil {
					var got []byte
					if got, err = f.get(p, nil); err == nil && !bytes.Equal(want, got[100:]) {
						err = os.ErrInvalid
					}
					f.remove(p)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	require.NoError(t, <-failed)
	require.Zero(t, f.Bytes())
}
