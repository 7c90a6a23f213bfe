package requests

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/must"
)

func unix(t time.Time) uint32 { return uint32(t.Unix()) }

func TestX2_MemoryIsBounded(t *testing.T) {
	m := NewPool(3).New()
	key := func(i uint64) Key { return KeyOf("n", "p", "m", string(rune('a'+i))) }
	now := time.Unix(1_700_000_000, 0)
	for i := range uint64(5) {
		m.Add(key(i), Entry{First: i + 1, Count: 1, Unix: unix(now)})
	}
	_, ok := m.Lookup(key(1), now)
	require.False(t, ok, "the oldest is dropped first")
	_, ok = m.Lookup(key(2), now)
	require.True(t, ok)
	_, ok = m.Lookup(key(2), now.Add(Term+time.Second))
	require.False(t, ok, "it is older than 24 h")
	m.Add(key(2), Entry{First: 9, Count: 1, Unix: unix(now.Add(25 * time.Hour))})
	require.Len(t, m.numbers, 1, "entries older than 24 h are dropped")
	_, ok = m.Lookup(key(2), now.Add(25*time.Hour))
	require.True(t, ok, "an id that is used again counts from its new use")
	require.NotEqual(t, KeyOf("ab", "c", "", ""), KeyOf("a", "bc", "", ""))
}

func TestX2_ArgsHashLeavesRequestIDOut(t *testing.T) {
	a := must.Value(HashArgs(&errdetails.RequestInfo{RequestId: "1", ServingData: "x"}))(t)
	b := must.Value(HashArgs(&errdetails.RequestInfo{RequestId: "2", ServingData: "x"}))(t)
	c := must.Value(HashArgs(&errdetails.RequestInfo{RequestId: "1", ServingData: "y"}))(t)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
	got, ok := ParseHash(FormatHash(a))
	require.True(t, ok)
	require.Equal(t, a, got)
}

func TestExtendCountsOnlyTheNextEvent(t *testing.T) {
	m := NewPool(10).New()
	k := KeyOf("n", "p", "m", "1")
	require.False(t, m.Extend(k, 5, 7), "the request is not remembered")
	m.Add(k, Entry{First: 5, Args: 7, Count: 1})
	require.False(t, m.Extend(k, 5, 7), "it has this event already")
	require.False(t, m.Extend(k, 7, 7), "an event is missing in between")
	require.False(t, m.Extend(k, 6, 8), "other arguments")
	require.True(t, m.Extend(k, 6, 7))
	e, ok := m.Lookup(k, time.Unix(0, 0))
	require.True(t, ok)
	require.EqualValues(t, 2, e.Count)
	require.EqualValues(t, 7, e.Next())
}

func TestParseHashRefusesOtherTexts(t *testing.T) {
	for _, s := range []string{"", "0123", "0123456789abcdeg", "0123456789abcdef0"} {
		_, ok := ParseHash(s)
		require.False(t, ok, s)
	}
	require.Zero(t, must.Value(HashArgs(nil))(t))
}

// TestX2_MemoryIsBoundedByProcess: the memories of a process have so many entries together, whichever of them is
// used; each may have its part, also when another one took all the rest.
func TestX2_MemoryIsBoundedByProcess(t *testing.T) {
	const limit = 10 * floorOf // a part is 10
	pool := NewPool(limit)
	now := time.Unix(1_700_000_000, 0)
	busy, quiet := pool.New(), pool.New()
	fill := func(m *Memory, name string, n int) {
		for i := range n {
			m.Add(KeyOf("n", "p", name, strconv.Itoa(i)), Entry{First: uint64(i + 1), Count: 1, Unix: unix(now)})
			require.LessOrEqual(t, pool.entries.Load(), int64(limit))
		}
	}
	has := func(m *Memory, name string, i int) bool {
		_, ok := m.Lookup(KeyOf("n", "p", name, strconv.Itoa(i)), now)
		return ok
	}
	fill(busy, "busy", 2*limit)
	require.Len(t, busy.numbers, limit-20)
	fill(quiet, "quiet", 10)
	require.Len(t, quiet.numbers, 10)
	require.True(t, has(quiet, "quiet", 0))
	fill(quiet, "more", 100)
	require.Len(t, quiet.numbers, 10, "no more than its part")
	require.True(t, has(quiet, "more", 99))
	require.False(t, has(quiet, "more", 89))
	require.Len(t, busy.numbers, limit-20)
	busy.Release()
	require.EqualValues(t, 10, pool.entries.Load())
	fill(quiet, "again", limit)
	require.Len(t, quiet.numbers, limit-10)
	quiet.Release()
	require.Zero(t, pool.entries.Load())
	require.Zero(t, pool.memories.Load())
}

// TestX2_AgesFollowNoClockThatIsSet: the age of a request is counted by a clock that nobody sets. What the log dates
// into the future was written under a clock that was ahead.
func TestX2_AgesFollowNoClockThatIsSet(t *testing.T) {
	wall, mono := time.Unix(1_700_000_000, 0), time.Unix(5, 0)
	ages := NewAges(wall, func() time.Time { return mono })
	mono = mono.Add(time.Hour)
	require.Equal(t, wall.Add(time.Hour), ages.Now())
	require.Equal(t, wall.Add(-time.Hour), ages.Of(wall.Add(-time.Hour)))
	require.Equal(t, ages.Now(), ages.Of(wall.Add(26*time.Hour)))
}
