package id

import (
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

func TestX8_NewIsAValidULID(t *testing.T) {
	at := time.UnixMilli(1767323045123)
	s := newULIDs(func() time.Time { return at })
	got := s.New("wi_")
	require.NoError(t, fault.ID("work_item_id", got, "wi_"))
	parsed, err := ulid.ParseStrict(got[3:])
	require.NoError(t, err)
	require.Equal(t, uint64(at.UnixMilli()), parsed.Time())
}

func TestNewGrowsAlsoWhenTheClockStepsBack(t *testing.T) {
	ms := int64(2000)
	s := newULIDs(func() time.Time { ms--; return time.UnixMilli(ms) })
	last := ""
	for range 1000 {
		next := s.New("wi_")
		require.Greater(t, next, last)
		last = next
	}
}

func TestNewIsUniqueUnderConcurrency(t *testing.T) {
	const workers, each = 8, 2000
	s := New()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]bool{}
	)
	for range workers {
		wg.Go(func() {
			own := make([]string, each)
			for i := range own {
				own[i] = s.New("x_")
			}
			mu.Lock()
			defer mu.Unlock()
			for _, v := range own {
				seen[v] = true
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, workers*each)
}

func TestDerived(t *testing.T) {
	a := Derived("msg_", "ab", "c")
	require.Equal(t, a, Derived("msg_", "ab", "c"))
	require.NotEqual(t, a, Derived("msg_", "a", "bc"))
	require.NotEqual(t, a, Derived("msg_", "abc"))
	require.NotEqual(t, a, Derived("msg_", "ab", "c", ""))
	require.NoError(t, fault.ID("message_id", a, "msg_"))
	// Pinned: journals hold derived ids, so the function may never change.
	require.Equal(t, "msg_61a2tkd86q8m7nt10dhpp8yt94", a)
}

func TestTestSources(t *testing.T) {
	var s Sequence
	require.Equal(t, "a_00000000000000000000000001", s.New("a_"))
	require.Equal(t, "b_00000000000000000000000002", s.New("b_"))
}

func TestHash(t *testing.T) {
	require.Equal(t, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", Hash("abc"))
}

func BenchmarkNew(b *testing.B) {
	s := New()
	b.ReportAllocs()
	for b.Loop() {
		s.New("wi_")
	}
}
