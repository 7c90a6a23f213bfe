package resident

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// An Index has what was added and not removed, with a file and without one.
func TestAnIndexFinds(t *testing.T) {
	for name, file := range map[string]*File{"file": newFile(t), "memory": nil} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			x, want := NewIndex(file), map[uint64][]uint64{}
			var hashes []uint64
			for range 40_000 {
				switch {
				case len(hashes) > 0 && r.IntN(4) == 0: // one goes
					i := r.IntN(len(hashes))
					h := hashes[i]
					all := want[h]
					j := r.IntN(len(all))
					x.Remove(h, all[j])
					if want[h] = slices.Delete(all, j, j+1); len(want[h]) == 0 {
						delete(want, h)
						hashes[i] = hashes[len(hashes)-1]
						hashes = hashes[:len(hashes)-1]
					}
				case len(hashes) > 0 && r.IntN(20) == 0: // another number under a hash
					h := hashes[r.IntN(len(hashes))]
					n := want[h][len(want[h])-1] + 1 + r.Uint64N(9)
					x.Add(h, n)
					want[h] = append(want[h], n)
				default:
					h, n := r.Uint64(), r.Uint64N(1<<40)
					x.Add(h, n)
					want[h] = append(want[h], n)
					hashes = append(hashes, h)
				}
			}
			n := 0
			for h, numbers := range want {
				require.Equal(t, numbers, slices.Collect(x.Find(h)))
				require.Empty(t, slices.Collect(x.Find(h+1)))
				n += len(numbers)
			}
			require.Equal(t, n, x.Len())
			got, last := map[uint64][]uint64{}, uint64(0)
			for h, number := range x.All() {
				require.LessOrEqual(t, last, h)
				got[h], last = append(got[h], number), h
			}
			require.Equal(t, want, got)
			inMemory := 0
			for i, b := range x.buckets {
				require.LessOrEqual(t, len(b.added), bucketEntries)
				if i == 0 || x.buckets[i-1] != b {
					inMemory += len(b.added) + len(b.removed)
				}
			}
			if file != nil {
				require.Less(t, inMemory, n/4)
			}
			for _, h := range hashes {
				for _, number := range slices.Clone(want[h]) {
					x.Remove(h, number)
				}
			}
			require.Zero(t, x.Len())
			for range x.All() {
				require.Fail(t, "an entry is left")
			}
			if file != nil {
				require.Less(t, file.Bytes(), int64(len(x.buckets)*pendingEntries*entryBytes*2))
			}
		})
	}
}

// Hashes that do not differ are found as well.
func TestAnIndexOfOneHash(t *testing.T) {
	x := NewIndex(newFile(t))
	var want []uint64
	for n := range uint64(3 * bucketEntries) {
		x.Add(7, n)
		want = append(want, n)
	}
	require.Equal(t, want, slices.Collect(x.Find(7)))
	require.Len(t, x.buckets, 1)
}

// What cannot be written stays in memory, and is written once that is possible.
func TestAnIndexWithoutRoom(t *testing.T) {
	f := newFile(t)
	x := NewIndex(f)
	r := rand.New(rand.NewPCG(3, 4))
	end := f.end
	f.end = 1 << 40 // nothing has room behind it
	want := map[uint64]uint64{}
	add := func(n int) {
		for range n {
			h := r.Uint64()
			want[h] = h >> 1
			x.Add(h, h>>1)
		}
	}
	requireAll := func() {
		t.Helper()
		require.Equal(t, len(want), x.Len())
		for h, n := range want {
			require.Equal(t, []uint64{n}, slices.Collect(x.Find(h)))
		}
	}
	add(5000)
	requireAll()
	require.Zero(t, f.Bytes())
	f.end = end
	add(20_000)
	requireAll()
	require.Greater(t, f.Bytes(), int64(10_000*entryBytes))
}

// A file that has something else is noticed by who reads.
func TestAnIndexIsUnreadable(t *testing.T) {
	f := newFile(t)
	x := NewIndex(f)
	r := rand.New(rand.NewPCG(5, 6))
	var last uint64
	for range 4 * pendingEntries {
		last = r.Uint64()
		x.Add(last, 1)
	}
	_, err := f.f.WriteAt([]byte("damaged"), int64(x.buckets[0].stored.at)*unit+10)
	require.NoError(t, err)
	x.Add(last+1, 2) // needs nothing of the file
	x.Remove(last+1, 2)
	reads := func(hash uint64) (panicked any) {
		defer func() { panicked = recover() }()
		for range x.Find(hash) {
			break
		}
		return nil
	}
	require.ErrorIs(t, reads(last).(error), ErrUnreadable)
	n := 0
	for range 1000 {
		if reads(r.Uint64()) != nil {
			n++
		}
	}
	require.Less(t, n, 50, "of 1 000 hashes under which nothing is")
}
