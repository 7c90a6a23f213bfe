package journal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// readFrom is a log that tells from where it was read.
type readFrom struct {
	framelog.Log
	mu   sync.Mutex
	from []uint64
}

func (l *readFrom) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	l.mu.Lock()
	l.from = append(l.from, from)
	l.mu.Unlock()
	return l.Log.Scan(ctx, from, fn)
}

// withSnapshots opens a partition that writes a snapshot after so many bytes.
func withSnapshots(t *testing.T, log framelog.Log, store snapshot.Store, bytes int64) *partition {
	t.Helper()
	cfg := journaltest.Config(log)
	cfg.Snapshots, cfg.SnapshotBytes = store, bytes
	return must.Value(journal.Open(t.Context(), cfg))(t)
}

// stored returns the snapshots in a store, the newest first.
func stored(t *testing.T, store snapshot.Store) []*snapshot.Snapshot {
	t.Helper()
	return must.Value(snapshot.Stored(t.Context(), store, "test/0"))(t)
}

// untilStored puts keys until the store has a snapshot of at least the given number.
func untilStored(t *testing.T, p *partition, store snapshot.Store, number uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		put(t, p, fmt.Sprint("key", number%7), "value")
		all := stored(t, store)
		return len(all) > 0 && all[0].Snapshot >= number
	}, time.Minute, time.Millisecond)
}

// stateOf returns a copy of a partition's state.
func stateOf(t *testing.T, p *partition) *journaltest.State {
	t.Helper()
	s, _, err := journal.View(t.Context(), p, journaltest.Snapshot)
	require.NoError(t, err)
	return s
}

// A wall clock that steps while a snapshot is cut makes it forget no request: ages count by a clock that does not
// step (SPEC X2.1).
func TestX2_AClockStepForgetsNoRequest(t *testing.T) {
	var ahead atomic.Int64
	log, store := journaltest.NewMemLog(), journaltest.NewMemSnapshots()
	open := func() *partition {
		cfg := journaltest.Config(log)
		cfg.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		cfg.Snapshots, cfg.SnapshotBytes = store, 3000
		return must.Value(journal.Open(t.Context(), cfg))(t)
	}
	p := open()
	once := func() bool {
		_, res, err := journal.Do(t.Context(), p, journaltest.Put("once", "first", "request"))
		require.NoError(t, err)
		return res.Replayed
	}
	require.False(t, once())
	untilStored(t, p, store, 2)
	ahead.Store(int64(48 * time.Hour))
	untilStored(t, p, store, 4)
	ahead.Store(0)
	untilStored(t, p, store, 8) // no snapshot of before the step is left
	require.True(t, once())
	require.NoError(t, p.Close(t.Context()))
	p = open()
	require.True(t, once())
	require.NoError(t, p.Close(t.Context()))
}

func TestR11_ALoadBeginsAtTheSnapshot(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (framelog.Log, snapshot.Store){
		"memory": func(*testing.T) (framelog.Log, snapshot.Store) {
			return journaltest.NewMemLog(), journaltest.NewMemSnapshots()
		},
		"JetStream": func(t *testing.T) (framelog.Log, snapshot.Store) {
			nc := natsdtest.Connect(t)
			must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
			log := must.Value(jetlog.New(nc, "test", 0))(t)
			return log, must.Value(jetlog.NewSnapshotStore(nc, "test", 0, 1))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner, store := open(t)
			log := &readFrom{Log: inner}
			p := withSnapshots(t, log, store, 3000)
			_, _, err := journal.Do(t.Context(), p, journaltest.Put("once", "first", "request"))
			require.NoError(t, err)
			for i := range 300 {
				put(t, p, fmt.Sprint("key", i%20), fmt.Sprint(i))
			}
			untilStored(t, p, store, 6)
			want := stateOf(t, p)
			require.NoError(t, p.Close(t.Context()))
			all := stored(t, store)
			require.LessOrEqual(t, len(all), snapshot.Slots)

			log.from = nil
			p = withSnapshots(t, log, store, 3000)
			require.Equal(t, want, stateOf(t, p))
			require.GreaterOrEqual(t, log.from[0], all[len(all)-1].End.Seq, "from the newest that was announced")
			n, res, err := journal.Do(t.Context(), p, journaltest.Put("once", "first", "request"))
			require.NoError(t, err)
			require.True(t, res.Replayed, "the request is remembered by the snapshot")
			require.Equal(t, 1, n)
			ev := must.Value(journal.ReadBack(t.Context(), p, []uint64{2, want.Seq}))(t)
			require.Equal(t, uint64(2), ev[0].WalSeq, "the index of frames is in the snapshot")
			put(t, p, "once", "more")
			require.NoError(t, p.Close(t.Context()))

			// The same without any.
			cfg := journaltest.Config(log)
			p = must.Value(journal.Open(t.Context(), cfg))(t)
			want.Puts["once"]++
			got := stateOf(t, p)
			require.Equal(t, want.Puts, got.Puts)
			require.NoError(t, p.Close(t.Context()))
		})
	}
}

// TestR11_ADamagedSnapshotIsPassedOver: each object of each snapshot is damaged or gone in turn, and the state is that
// of the log.
func TestR11_ADamagedSnapshotIsPassedOver(t *testing.T) {
	log, store := &readFrom{Log: journaltest.NewMemLog()}, journaltest.NewMemSnapshots()
	p := withSnapshots(t, log, store, 2000)
	untilStored(t, p, store, 5)
	want := stateOf(t, p)
	require.NoError(t, p.Close(t.Context()))
	numbers := must.Value(store.Numbers(t.Context()))(t)
	all := stored(t, store)
	for _, place := range []int{0, 1, 2} { // the beginning, the middle, and all of it
		for _, n := range numbers {
			b := must.Value(store.Get(t.Context(), n))(t)
			at := len(b) * place / 2
			store.Damage(n, at)
			p := withSnapshots(t, log, store, 1<<30)
			require.Equal(t, want, stateOf(t, p), "object %d", n)
			require.NoError(t, p.Close(t.Context()))
			if at < len(b) {
				store.Damage(n, at) // whole again
			}
		}
	}
	require.Empty(t, stored(t, store), "all are removed now")
	log.from = nil
	p = withSnapshots(t, log, store, 1<<30)
	require.Equal(t, want, stateOf(t, p))
	require.Equal(t, uint64(1), log.from[0])
	require.NoError(t, p.Close(t.Context()))
	require.NotEmpty(t, all)
}

// TestR11_TheSnapshotBeforeADamagedOne: a load begins at an older snapshot, although frames behind it announce newer
// ones.
func TestR11_TheSnapshotBeforeADamagedOne(t *testing.T) {
	log, store := &readFrom{Log: journaltest.NewMemLog()}, journaltest.NewMemSnapshots()
	p := withSnapshots(t, log, store, 2000)
	untilStored(t, p, store, 8)
	want := stateOf(t, p)
	require.NoError(t, p.Close(t.Context()))
	all := stored(t, store)
	store.Damage(all[0].Number, 1<<30) // the newest may not have been announced
	store.Damage(all[1].Number, 0)
	log.from = nil
	p = withSnapshots(t, log, store, 1<<30)
	require.Equal(t, want, stateOf(t, p))
	require.Equal(t, all[2].End.Seq+1, log.from[0])
	require.Len(t, log.from, 1, "it was not passed over")
	require.NoError(t, p.Close(t.Context()))
}

// TestR11_AFailingStore: whatever a store refuses, calls go on, and once it works snapshots are written again.
func TestR11_AFailingStore(t *testing.T) {
	for _, call := range []string{"put", "put manifest", "get", "numbers", "remove"} {
		t.Run(call, func(t *testing.T) {
			log, store := &readFrom{Log: journaltest.NewMemLog()}, journaltest.NewMemSnapshots()
			clock := time.Now()
			var mu sync.Mutex
			failing, failed := false, 0
			store.Fail = func(c string) error {
				mu.Lock()
				defer mu.Unlock()
				if failing && c == call {
					failed++
					return errors.New("no")
				}
				return nil
			}
			cfg := journaltest.Config(log)
			cfg.Snapshots, cfg.SnapshotBytes = store, 2000
			cfg.Mono = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				clock = clock.Add(time.Second) // soon it is tried again
				return clock
			}
			p := must.Value(journal.Open(t.Context(), cfg))(t)
			untilStored(t, p, store, 2)
			mu.Lock()
			failing = true
			mu.Unlock()
			require.Eventually(t, func() bool {
				put(t, p, "key", "while it fails")
				mu.Lock()
				defer mu.Unlock()
				return failed > 2
			}, time.Minute, time.Millisecond)
			mu.Lock()
			failing = false
			mu.Unlock()
			untilStored(t, p, store, stored(t, store)[0].Snapshot+2)
			want := stateOf(t, p)
			require.NoError(t, p.Close(t.Context()))
			log.from = nil
			p = withSnapshots(t, log, store, 2000)
			require.Equal(t, want, stateOf(t, p))
			require.Greater(t, log.from[0], uint64(1))
			require.NoError(t, p.Close(t.Context()))
		})
	}
}

// TestR11_WhatIsNotAnnounced: a manifest that no frame names is not used, wherever it comes from.
func TestR11_WhatIsNotAnnounced(t *testing.T) {
	log, store := journaltest.NewMemLog(), journaltest.NewMemSnapshots()
	p := withSnapshots(t, log, store, 2000)
	untilStored(t, p, store, 2)
	require.NoError(t, p.Close(t.Context()))

	// Another log with the same partition, of which the snapshots are found here.
	foreign := withSnapshots(t, journaltest.NewMemLog(), store, 2000)
	untilStored(t, foreign, store, 9)
	require.NoError(t, foreign.Close(t.Context()))
	p = withSnapshots(t, log, store, 1<<30)
	got := stateOf(t, p)
	require.NoError(t, p.Close(t.Context()))
	p = must.Value(journal.Open(t.Context(), journaltest.Config(log)))(t)
	require.Equal(t, stateOf(t, p), got)
	require.NoError(t, p.Close(t.Context()))
}

// TestR11_WhatChangedIsWritten: a snapshot writes the pages of the owners that changed, and stores do not grow without
// bounds.
func TestR11_WhatChangedIsWritten(t *testing.T) {
	log, store := journaltest.NewMemLog(), journaltest.NewMemSnapshots()
	p := withSnapshots(t, log, store, 200_000)
	for i := range 2000 {
		put(t, p, fmt.Sprint("key", i), fmt.Sprint(i))
	}
	untilStored(t, p, store, 1)
	untilStored(t, p, store, stored(t, store)[0].Snapshot+2) // all keys are in it
	before := stored(t, store)[0]
	untilStored(t, p, store, before.Snapshot+1)
	after := stored(t, store)[0]
	had := map[uint64]bool{}
	for _, o := range before.Manifest.GetPages() {
		had[o.GetNumber()] = true
	}
	var all, added int64
	for _, o := range after.Manifest.GetPages() {
		if all += o.GetEntries(); !had[o.GetNumber()] {
			added += o.GetEntries()
		}
	}
	require.Less(t, added, all/2, "of the pages")
	untilStored(t, p, store, after.Snapshot+6)
	require.NoError(t, p.Close(t.Context()))
	require.Less(t, len(must.Value(store.Numbers(t.Context()))(t)), 30)
}

// TestR11_ASnapshotWhileCommandsRun: the pages are those of one moment, whatever changes while they are written.
func TestR11_ASnapshotWhileCommandsRun(t *testing.T) {
	log, store := journaltest.NewFaultLog(journaltest.NewMemLog()), journaltest.NewMemSnapshots()
	p := withSnapshots(t, log, store, 4000)
	var callers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for c := range 8 {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _, _ = journal.Do(ctx, p, journaltest.Put(fmt.Sprint("key", (c*31+i)%300), fmt.Sprint(c, ":", i),
					""))
			}
		})
	}
	faults := []journaltest.Fault{
		journaltest.Refused, journaltest.Busy, journaltest.AnswerLost, journaltest.NotSent,
		journaltest.LandsBefore, journaltest.LandsAfter, journaltest.Duplicated, journaltest.Doubted,
	}
	for n := uint64(1); n < 40; n++ {
		require.Eventually(t, func() bool {
			all := stored(t, store)
			return len(all) > 0 && all[0].Snapshot >= n
		}, time.Minute, time.Millisecond)
		if n%5 == 0 {
			log.Inject(faults[n/5%uint64(len(faults))])
		}
	}
	stop()
	callers.Wait()
	log.Heal()
	require.NoError(t, p.Close(t.Context()))
	p = withSnapshots(t, log, store, 1<<30)
	got := stateOf(t, p)
	require.NoError(t, p.Close(t.Context()))
	p = must.Value(journal.Open(t.Context(), journaltest.Config(log)))(t)
	require.Equal(t, stateOf(t, p), got)
	require.NoError(t, p.Close(t.Context()))
}

// TestR11_AStoreThatLosesObjects: objects that are gone while the partition runs are missed at the next snapshot, and
// the one after that has all pages.
func TestR11_AStoreThatLosesObjects(t *testing.T) {
	log, store := &readFrom{Log: journaltest.NewMemLog()}, journaltest.NewMemSnapshots()
	p := withSnapshots(t, log, store, 2000)
	for i := range 50 {
		put(t, p, fmt.Sprint("old", i), "value")
	}
	for lost := range 3 {
		untilStored(t, p, store, uint64(5*lost+5))
		numbers := must.Value(store.Numbers(t.Context()))(t)
		if lost > 0 { // some, and then all of them
			numbers = numbers[:len(numbers)/3]
		}
		require.NoError(t, store.Remove(t.Context(), numbers))
		require.Eventually(t, func() bool {
			put(t, p, "key", "value")
			all := stored(t, store)
			if len(all) == 0 || all[0].Snapshot < uint64(5*lost+7) {
				return false
			}
			now := must.Value(store.Numbers(t.Context()))(t)
			for _, o := range all[0].Manifest.GetPages() {
				if !slices.Contains(now, o.GetNumber()) {
					return false
				}
			}
			return true
		}, time.Minute, time.Millisecond)
	}
	want := stateOf(t, p)
	require.NoError(t, p.Close(t.Context()))
	log.from = nil
	p = withSnapshots(t, log, store, 1<<30)
	require.Equal(t, want, stateOf(t, p))
	require.Greater(t, log.from[0], uint64(100))
	require.NoError(t, p.Close(t.Context()))
}

// TestR11_AFullStoreGetsNoSnapshot: what is kept for commands that end something is not used for snapshots.
func TestR11_AFullStoreGetsNoSnapshot(t *testing.T) {
	log, store := journaltest.NewMemLog(), journaltest.NewMemSnapshots()
	cfg := journaltest.Config(log)
	cfg.Snapshots, cfg.SnapshotBytes, cfg.Room = store, 2000, &framelog.Room{}
	use := func(used int64) {
		require.NoError(t,
			cfg.Room.Measure(func() (framelog.RoomState, error) {
				return framelog.RoomState{Used: used, Limit: 400 << 20}, nil
			}))
	}
	use(381 << 20) // the reserve is 20 MiB
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	end := journaltest.Put("key", "value", "")
	end.Frees = true
	for range 50 {
		_, _, err := journal.Do(t.Context(), p, end)
		require.NoError(t, err)
		require.NoError(t, p.SettleSnapshot(t.Context()))
	}
	require.Empty(t, stored(t, store))
	use(100 << 20)
	untilStored(t, p, store, 1)
	require.NoError(t, p.Close(t.Context()))
}
