package framelog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func next(t *testing.T, c *Chain[int], from uint64) (value int, covered bool) {
	t.Helper()
	v, seq, covered, changed := c.Next(from)
	if v == nil {
		require.NotNil(t, changed)
		return 0, covered
	}
	require.GreaterOrEqual(t, seq, from)
	return *v, covered
}

func add(c *Chain[int], after, seq uint64, value int) { c.Add(after, seq, seq, 10, &value) }

func TestNextCoversTheFramesAfterTheStart(t *testing.T) {
	c := NewChain[int]()
	_, covered := next(t, c, 1)
	require.False(t, covered, "a closed chain covers nothing")
	c.Open(4)
	_, covered = next(t, c, 4)
	require.False(t, covered, "frame 4 is in the log alone")
	_, covered = next(t, c, 5)
	require.True(t, covered)
	add(c, 4, 5, 50)
	add(c, 5, 8, 80)
	for from, want := range map[uint64]int{5: 50, 6: 80, 8: 80} {
		v, covered := next(t, c, from)
		require.True(t, covered)
		require.Equal(t, want, v, "from %d", from)
	}
	v, covered := next(t, c, 9)
	require.True(t, covered)
	require.Zero(t, v)
	c.Close()
	_, covered = next(t, c, 9)
	require.False(t, covered)
}

func TestAddAfterAGapStartsAgain(t *testing.T) {
	c := NewChain[int]()
	c.Open(0)
	add(c, 0, 1, 1)
	add(c, 5, 6, 6) // another writer stored 2 to 5
	_, covered := next(t, c, 1)
	require.False(t, covered)
	v, _ := next(t, c, 6)
	require.Equal(t, 6, v)
}

func TestOldFramesAreDropped(t *testing.T) {
	c := NewChain[int]()
	c.Open(0)
	for i := range uint64(maxFrames + 3) {
		add(c, i, i+1, int(i+1))
	}
	_, covered := next(t, c, 3)
	require.False(t, covered)
	v, _ := next(t, c, 4)
	require.Equal(t, 4, v)

	c.Open(0)
	large := 1
	c.Add(0, 1, 1, maxBytes, &large)
	add(c, 1, 2, 2)
	_, covered = next(t, c, 1)
	require.False(t, covered, "both are too large together")
	v, _ = next(t, c, 2)
	require.Equal(t, 2, v)
}

func TestChangesWakeWaiters(t *testing.T) {
	c := NewChain[int]()
	for _, change := range []func(){func() { c.Open(1) }, func() { add(c, 1, 2, 2) }, c.Close} {
		_, _, _, changed := c.Next(3)
		change()
		<-changed
	}
}

func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChain[int]()
		due := func() bool { _, due := c.Due(); return due }
		require.False(t, due(), "it is closed")
		c.Open(1)
		require.False(t, due())
		<-time.After(ChainCheckInterval)
		head, is := c.Due()
		require.True(t, is)
		require.EqualValues(t, 1, head)
		require.False(t, due(), "one caller for each interval")
		c.Verify(head, 1)
		_, covered := next(t, c, 2)
		require.True(t, covered)
		c.Verify(head, 2) // the log has a frame at 2
		_, covered = next(t, c, 2)
		require.False(t, covered)

		c.Open(7)
		<-time.After(ChainCheckInterval)
		head, _ = c.Due()
		add(c, 7, 8, 8)
		c.Verify(head, 7) // read before the frame at 8 was added
		_, covered = next(t, c, 9)
		require.True(t, covered)
		c.Verify(head, 6) // the log was shortened
		_, covered = next(t, c, 9)
		require.False(t, covered)
	})
}
