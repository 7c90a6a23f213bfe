package journaltest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

// opened returns how many partition_opened the log has: one for each load that took the partition over.
func (r *rig) opened(t *testing.T) int {
	t.Helper()
	n := 0
	require.NoError(t, r.log.Scan(t.Context(), 1, func(_ uint64, f framelog.Frame) error {
		n += strings.Count(string(f.Body), `"event_type":"partition_opened"`)
		return nil
	}))
	return n
}

// tooLargeForTheLog: a command that is larger than the log allows is refused before it is applied. Others go on, and
// nothing is loaded again.
func tooLargeForTheLog(t *testing.T, r *rig) {
	r.put(t, "k", "1", "")
	r.log.Limit(100_000)
	appends := r.log.Appends()
	_, _, err := journal.Do(t.Context(), r.p, Put("k", strings.Repeat("x", 200_000), "large"))
	require.ErrorIs(t, err, fault.TooLarge)
	require.ErrorContains(t, err, "at most 100000 are allowed")
	require.Equal(t, appends, r.log.Appends(), "it was not tried")

	// Many that would share a frame are divided, since none is too large.
	r.log.Inject(Held)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, _, err := journal.Do(t.Context(), r.p, Put("k", strings.Repeat("y", 30_000+i), ""))
			if err != nil {
				t.Error(err)
			}
		})
	}
	receive(t, r.log.Held())
	r.log.Release()
	wg.Wait()
	require.Equal(t, 1, r.opened(t))
	live := r.live(t)
	require.Equal(t, 9, live.Puts["k"])
	require.Equal(t, live, r.replayed(t))
}

// aLimitThatShrinks: the log's limit became smaller after a frame was decided. The one command that is too large is
// refused by name, those that shared the frame with it or followed are stored, and no other writer takes the partition.
func aLimitThatShrinks(t *testing.T, r *rig) {
	r.put(t, "k", "1", "")
	r.log.Inject(Held)
	done, large := make(chan error, 3), make(chan error, 1)
	do := func(to chan<- error, value string) {
		go func() {
			_, _, err := journal.Do(t.Context(), r.p, Put("k", value, value[:1]))
			to <- err
		}()
	}
	do(done, "a")
	receive(t, r.log.Held()) // what follows shares a frame
	do(done, "b")
	do(large, strings.Repeat("c", 200_000))
	do(done, "d")
	require.Eventually(t, func() bool {
		n, _, err := journal.View(journal.Ahead(t.Context(), r.p), r.p, Count("k"))
		return err == nil && n == 5
	}, within, time.Millisecond)
	r.log.Limit(100_000)
	r.log.Release()
	for range 3 {
		require.NoError(t, receive(t, done))
	}
	require.ErrorIs(t, receive(t, large), fault.TooLarge)
	require.Equal(t, 1, r.opened(t))
	live := r.live(t)
	require.Equal(t, 4, live.Puts["k"])
	n, res := r.put(t, "k", "b", "b")
	require.True(t, res.Replayed)
	require.NotZero(t, n)
	require.Equal(t, live, r.replayed(t))
}

// requireFull checks for RESOURCE_EXHAUSTED STORAGE_FULL, which says that nothing was stored.
func requireFull(t *testing.T, err error) {
	t.Helper()
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, codes.ResourceExhausted, f.Code(), err.Error())
	require.Equal(t, fault.StorageFull, f.Reason())
	require.Equal(t, "none", f.Metadata()["outcome"])
}

// fullLog: while the log is full, the partition refuses commands at once and still answers reads and repeated
// requests. Once the log has room, the partition writes again, without having been loaded again.
func fullLog(t *testing.T, r *rig) {
	r.put(t, "k", "1", "first")
	for range 3 {
		r.log.Inject(Full)
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "2", "req"))
		requireFull(t, err)
	}
	require.Equal(t, []string{"k=1"}, r.live(t).Log)
	_, res := r.put(t, "k", "1", "first")
	require.True(t, res.Replayed, "what was stored is answered")
	require.NoError(t, r.p.Health())
	r.log.Heal()
	require.Eventually(t, func() bool {
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "2", "req"))
		return err == nil
	}, within, 10*time.Millisecond, "the log is tried again")
	require.Equal(t, 1, r.opened(t), "nobody took the partition over")
	live := r.live(t)
	require.Equal(t, []string{"k=1", "k=2"}, live.Log)
	require.Equal(t, live, r.replayed(t))
}

// noRoom: while the store has no room nothing is applied, except what frees something.
func noRoom(t *testing.T, r *rig) {
	require.NoError(t, r.p.Close(t.Context()))
	cfg := Config(r.log)
	cfg.Room = &framelog.Room{Remedy: "Buy a disk"}
	var err error
	r.p, err = journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	measure := func(used int64) {
		require.NoError(t, cfg.Room.Measure(func() (framelog.RoomState, error) {
			return framelog.RoomState{Used: used, Limit: 100 << 20}, nil
		}))
	}
	measure(91 << 20)
	r.put(t, "k", "1", "")
	measure(92 << 20)
	appends := r.log.Appends()
	_, _, err = journal.Do(t.Context(), r.p, Put("k", "2", ""))
	requireFull(t, err)
	require.ErrorContains(t, err, "92 of 100 MiB are in use")
	require.ErrorContains(t, err, "Buy a disk")
	require.Equal(t, appends, r.log.Appends())
	freeing := Put("k", "3", "")
	freeing.Frees = true
	_, _, err = journal.Do(t.Context(), r.p, freeing)
	require.NoError(t, err)
	measure(98 << 20)
	_, _, err = journal.Do(t.Context(), r.p, freeing)
	requireFull(t, err)
	require.Equal(t, []string{"k=1", "k=3"}, r.live(t).Log)
	measure(1 << 20)
	r.put(t, "k", "4", "")
	live := r.live(t)
	require.Equal(t, live, r.replayed(t))
}
