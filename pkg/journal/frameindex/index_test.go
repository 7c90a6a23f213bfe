package frameindex

import (
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
