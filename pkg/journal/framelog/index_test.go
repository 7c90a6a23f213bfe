package framelog

import (
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	var x Index
	_, ok := x.Find(1)
	require.False(t, ok, "an empty index holds nothing")
	x.Add(1, 10)
	x.Add(2, 11)
	x.Add(5, 40)
	_, ok = x.Find(0)
	require.False(t, ok)
	for walSeq, want := range map[uint64]uint64{1: 10, 2: 11, 4: 11, 5: 40, 9: 40} {
		seq, ok := x.Find(walSeq)
		require.True(t, ok)
		require.Equal(t, want, seq, "wal_seq %d", walSeq)
	}
}

// An index of any length has what a list of its frames has, also behind the gaps of an incarnation.
func TestAnIndexIsAListOfFrames(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x, same Index
	var list []indexEntry
	e := indexEntry{1, 1}
	for range 5*blockFrames + 3 {
		x.Add(e.first, e.seq)
		list = append(list, e)
		require.Equal(t, len(list), x.Len())
		require.False(t, x.Equal(&same))
		same.Add(e.first, e.seq)
		require.True(t, x.Equal(&same))

		for range 20 {
			n := r.IntN(len(list) + 1)
			var since []indexEntry
			x.Since(n, func(first, seq uint64) { since = append(since, indexEntry{first, seq}) })
			require.Equal(t, append([]indexEntry(nil), list[n:]...), since)
			walSeq := r.Uint64N(e.first + 3)
			i := sort.Search(len(list), func(i int) bool { return list[i].first > walSeq })
			seq, ok := x.Find(walSeq)
			require.Equal(t, i > 0, ok)
			if ok {
				require.Equal(t, list[i-1].seq, seq)
			}
		}
		e.first, e.seq = e.first+1+r.Uint64N(200), e.seq+1+r.Uint64N(2)
		if r.IntN(50) == 0 {
			e.first, e.seq = e.first+1<<40, e.seq+1<<33
		}
	}
	x.Add(e.first, e.seq)
	same.Add(e.first, e.seq+1)
	require.False(t, x.Equal(&same))
}

// A frame of up to 127 events takes 2 bytes and its part of a block.
func TestAnIndexIsSmall(t *testing.T) {
	const frames = 100_000
	var x Index
	for i := range uint64(frames) {
		x.Add(i*64+1, i+1)
	}
	require.LessOrEqual(t, len(x.deltas)+24*len(x.blocks), frames*5/2)
}

func BenchmarkFind(b *testing.B) {
	const frames = 1_000_000
	var x Index
	for i := range uint64(frames) {
		x.Add(i*64+1, i+1)
	}
	for i := uint64(0); b.Loop(); i += 7919 {
		x.Find(i % (64 * frames))
	}
}

func BenchmarkAdd(b *testing.B) {
	var x Index
	for i := uint64(0); b.Loop(); i++ {
		x.Add(i*64+1, i+1)
	}
}
