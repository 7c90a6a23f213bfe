package journal_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// inn is what a partition of guests is stored in.
type inn struct {
	log   *journaltest.MemLog
	store *journaltest.MemSnapshots
	p     *journal.Partition[*journaltest.Guests]
	later atomic.Int64 // how much later than by the clock it is
}

func (i *inn) open(t *testing.T, policy *snapshot.EvictionPolicy) {
	t.Helper()
	if i.log == nil {
		i.log, i.store = journaltest.NewMemLog(), journaltest.NewMemSnapshots()
	}
	var err error
	i.p, err = journal.Open(t.Context(), journal.Config[*journaltest.Guests]{
		Log: i.log, Plane: "test", New: journaltest.NewGuests, Registry: journaltest.Registry(), NewID: id.New().New,
		Logger:    zap.NewNop(),
		Snapshots: i.store, SnapshotBytes: 20_000, Eviction: policy,
		Mono: func() time.Time { return time.Now().Add(time.Duration(i.later.Load())) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = i.p.Close(context.WithoutCancel(t.Context())) })
}

// come lets an agent come, and returns how often it had come before.
func (i *inn) come(t *testing.T, agent string) (before int) {
	t.Helper()
	_, _, err := journal.Do(t.Context(), i.p, journal.Op[*journaltest.Guests, struct{}]{
		Method: "Come", Actor: journaltest.Actor, AgentID: agent,
		Decide: func(s *journaltest.Guests, _ journal.Env) (journal.Decision[struct{}], error) {
			before = s.Of(snapshot.Owner{Namespace: journaltest.Actor.Namespace, ID: agent})
			return journal.Decision[struct{}]{
				Events: []*journal.Event{{Payload: &errdetails.ErrorInfo{Reason: "came"}}},
			}, nil
		},
	})
	require.NoError(t, err)
	return before
}

// view returns how often an agent came.
func (i *inn) view(t *testing.T, agent string) int {
	t.Helper()
	n, _, err := journal.View(t.Context(), i.p, func(s *journaltest.Guests) (int, error) {
		return s.Of(snapshot.Owner{Namespace: journaltest.Actor.Namespace, ID: agent}), nil
	})
	require.NoError(t, err)
	return n
}

// spoil closes the file of those that are not in memory.
func (i *inn) spoil(t *testing.T) {
	t.Helper()
	_, _, err := journal.View(t.Context(), i.p, func(s *journaltest.Guests) (struct{}, error) {
		return struct{}{},
			s.File.Close()
	})
	require.NoError(t, err)
}

const guestsOfTest = 10

// requireAllStay requires that all are in memory because the file failed.
func requireAllStay(t *testing.T, i *inn) {
	t.Helper()
	c := i.p.Resident()
	require.True(t, c.Failed)
	require.GreaterOrEqual(t, c.Resident, guestsOfTest)
	require.Zero(t, c.Evicted)
	require.Zero(t, c.FileBytes)
	require.NoError(t, i.p.EvictAll(t.Context()))
	require.Equal(t, c, i.p.Resident())
}

// Owners that are not used leave memory, what a policy keeps stays, and nobody sees the difference.
func TestEvict(t *testing.T) {
	var i inn
	i.open(t, &snapshot.EvictionPolicy{Dir: t.TempDir(), Keep: 4})
	for n := range 3 * guestsOfTest {
		require.Equal(t, n/guestsOfTest, i.come(t, fmt.Sprint("agent-", n%guestsOfTest)))
	}
	require.Equal(t, resident.Counts{Resident: guestsOfTest}, i.p.Resident().Counts)
	require.NoError(t, i.p.EvictUnused(t.Context()))
	require.Equal(t, guestsOfTest, i.p.Resident().Resident, "all were used")
	require.Equal(t, 3, i.view(t, "agent-7"))
	require.NoError(t, i.p.EvictUnused(t.Context()))
	require.Equal(t, resident.Counts{Resident: 1, Evicted: guestsOfTest - 1}, i.p.Resident().Counts,
		"but the one that was read")
	require.NoError(t, i.p.EvictAll(t.Context()))
	require.Equal(t, 1, i.p.Resident().Resident, "as few stay")
	require.Equal(t, 3, i.view(t, "agent-3"))
	require.Equal(t, 1, i.p.Resident().Resident, "a reader leaves it where it is")
	require.Equal(t, 3, i.come(t, "agent-3"))
	require.Equal(t, 2, i.p.Resident().Resident)
	require.NoError(t, i.p.Close(t.Context()))

	i.open(t, nil)
	for n := range guestsOfTest {
		require.Equal(t, map[bool]int{false: 3, true: 4}[n == 3], i.view(t, fmt.Sprint("agent-", n)))
	}
	require.NoError(t, i.p.EvictAll(t.Context()))
	require.Equal(t, snapshot.OwnerCounts{}, i.p.Resident(), "without a policy all stay")
}

// Whatever meets an owner first that cannot be read from the file: the partition is loaded again with all in memory,
// and nothing is lost, done twice or refused.
func TestEvictedOwnersThatCannotBeRead(t *testing.T) {
	for name, meets := range map[string]func(t *testing.T, i *inn){
		"rule": func(t *testing.T, i *inn) { require.Equal(t, 2, i.come(t, "agent-1")) },
		"view": func(t *testing.T, i *inn) {
			require.Equal(t, 2, i.view(t, "agent-1"))
			require.Equal(t, 2, i.come(t, "agent-1"))
		},
		"apply": func(t *testing.T, i *inn) {
			_, _, err := journal.Do(t.Context(), i.p, journal.Op[*journaltest.Guests, struct{}]{
				Method: "Come", Actor: journaltest.Actor, AgentID: "agent-1",
				Decide: func(*journaltest.Guests, journal.Env) (journal.Decision[struct{}], error) {
					other := &journal.Event{AgentID: "agent-new", Payload: &errdetails.ErrorInfo{Reason: "came"}}
					return journal.Decision[struct{}]{
						Events: []*journal.Event{other, {Payload: &errdetails.ErrorInfo{Reason: "came"}}},
					}, nil
				},
			})
			require.NoError(t, err)
			require.Equal(t, 1, i.view(t, "agent-new"))
		},
		"reaction": func(t *testing.T, i *inn) {
			other := open(t, journaltest.NewMemLog(), "other")
			defer func() { require.NoError(t, other.Close(t.Context())) }()
			for range 3 {
				put(t, other, "x", "1")
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			n := 0 // of events
			done := make(chan error, 1)
			go func() {
				done <- journal.Consume(ctx, i.p, journal.Reaction[*journaltest.Guests]{
					Source: other.Source(), Registry: journaltest.Registry(), Interest: []string{"error_info"},
					React: func(s *journaltest.Guests, _ journal.Env, ev *journal.Event) ([]*journal.Event, error) {
						agent := "agent-new"
						if n++; n >= 2 { // the first event has an effect already
							agent = "agent-1"
							s.Of(snapshot.Owner{Namespace: ev.Namespace, ID: agent})
						}
						return []*journal.Event{{AgentID: agent, Payload: &errdetails.ErrorInfo{Reason: "came"}}}, nil
					},
				})
			}()
			require.True(t, i.p.AwaitConsumed(t.Context(), "other", 0, 4, nil))
			stop()
			<-done
			require.Equal(t, 5, i.view(t, "agent-1")+i.view(t, "agent-new"), "each event had its effect once")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var i inn
			i.open(t, &snapshot.EvictionPolicy{Dir: t.TempDir(), Always: true})
			for n := range 2 * guestsOfTest {
				i.come(t, fmt.Sprint("agent-", n%guestsOfTest))
			}
			require.Zero(t, i.p.Resident().Resident)
			i.spoil(t)
			meets(t, &i)
			for n := range guestsOfTest {
				if n != 1 {
					require.Equal(t, 2, i.view(t, fmt.Sprint("agent-", n)))
				}
			}
			requireAllStay(t, &i)
			require.NoError(t, i.p.Health())
		})
	}
}

// A snapshot that meets an owner that cannot be read is not written, and the next one is.
func TestSnapshotOfEvictedOwnersThatCannotBeRead(t *testing.T) {
	var i inn
	i.open(t, &snapshot.EvictionPolicy{Dir: t.TempDir(), Always: true})
	for n := range guestsOfTest {
		i.come(t, fmt.Sprint("agent-", n))
	}
	i.spoil(t)
	for n := 0; ; n++ {
		i.come(t, "agent-new") // which stays in memory
		i.later.Add(int64(time.Second))
		require.NoError(t, i.p.SettleSnapshot(t.Context()))
		if numbers, err := i.store.Numbers(t.Context()); err == nil && len(numbers) > 0 {
			break
		}
		require.Less(t, n, 1000)
	}
	requireAllStay(t, &i)
	require.Equal(t, 1, i.view(t, "agent-3"))
}
