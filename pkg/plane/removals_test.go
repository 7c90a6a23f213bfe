package plane_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/must"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// leaving is a state that needs none of its old events, and of which an agent can be deleted.
type leaving struct {
	*journaltest.State
	gone *snapshot.Owner // the agent that is deleted
}

var (
	_ journal.Erasable  = leaving{}
	_ journal.Retaining = leaving{}
)

func (leaving) Needs(*journal.Event, time.Time) bool { return false }

func (s leaving) DeletedBefore(time.Time) []snapshot.Owner {
	if s.gone.ID == "" {
		return nil
	}
	return []snapshot.Owner{*s.gone}
}

func (leaving) Erase(func(namespace, id string) bool, func(snapshot.Owner)) {}
func (leaving) UseErased(*event.ErasedSet)                                  {}

// openLeaving opens a plane of leaving, and returns its metrics.
func openLeaving(t *testing.T, gone *snapshot.Owner, deps plane.Deps) (*plane.Engine[leaving], *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	deps.Metrics = reg
	e := must.Value(plane.Open(t.Context(), plane.Config[leaving]{
		Plane: "test", New: func() leaving { return leaving{journaltest.New(), gone} },
		Events: errdetails.File_google_rpc_error_details_proto,
	}, deps))(t)
	t.Cleanup(func() { require.NoError(t, e.Close(context.Background())) })
	return e, reg
}

// removed returns the metrics of what is removed, by name and cause.
func removed(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families := must.Value(reg.Gather())(t)
	out := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "quartet_remov") {
			continue
		}
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "quartet_")
			for _, l := range m.GetLabel() {
				if l.GetName() == "cause" {
					name += " " + l.GetValue()
				}
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// TestWhatIsRemovedIsCounted: events that are removed are counted, and a pass that failed is known until one is
// complete, or the partition is closed.
func TestWhatIsRemovedIsCounted(t *testing.T) {
	live, store := journaltest.NewMemLog(), &journaltest.MemArchive{}
	snapshots, all := journaltest.NewMemSnapshots(), &plane.Removals{}
	unread := errors.New("nobody knows what was read")
	now := clock.NewFake(time.Unix(1_800_000_000, 0))
	deps := plane.Deps{
		Log:       func(string, int) (framelog.Log, error) { return archive.NewLog(live, store, "test/0"), nil },
		Sources:   planetest.NewJournals().Sources,
		Snapshots: func(string, int) (snapshot.Store, error) { return snapshots, nil }, SnapshotBytes: 1500,
		SegmentSize: 4000,
		History:     plane.History{Default: time.Hour}, ReadThrough: func(context.Context, string, int) (uint64,
			error,
		) {
			return math.MaxUint64, unread
		},
		Removals: all, Clock: now,
	}
	e, reg := openLeaving(t, &snapshot.Owner{}, deps)
	p := e.For("acme", "a1")
	for i := range 60 {
		key := fmt.Sprintf("k%d", i)
		must.Value(plane.Do(as(rpc.RoleOperator), e, plane.Command[leaving, struct{}]{
			Method: "Put", AgentID: "a1", Decide: func(leaving, journal.Env) (journal.Decision[struct{}], error) {
				return journal.Decision[struct{}]{
					Events: []*journal.Event{journaltest.Event(key, strings.Repeat("x", 300))},
				}, nil
			},
		}))(t)
		require.NoError(t, p.SettleSnapshot(t.Context()))
	}
	require.Eventually(t, func() bool {
		return len(must.Value(archive.Read(t.Context(), store, "test/0"))(t).Segments) > 2
	}, time.Minute, time.Millisecond)
	require.Nil(t, all.Failed())
	require.Equal(t, map[string]float64{
		"removed_events_total history": 0, "removed_events_total erase": 0,
		"removal_failures_total history": 0, "removal_failures_total erase": 0,
	}, removed(t, reg))

	now.Advance(2 * time.Hour)
	require.ErrorIs(t, e.Expire(t.Context(), now.Now()), unread)
	require.Equal(t, []string{"test/0 still has old events (history-days): nobody knows what was read"}, all.Failed())
	got := removed(t, reg)
	require.InDelta(t, 1, got["removal_failures_total history"], 0)
	require.InDelta(t, 1, got["removal_failed history"], 0)
	require.NotContains(t, got, "removal_last_pass_timestamp_seconds history")

	unread = nil
	require.NoError(t, e.Expire(t.Context(), now.Now()))
	require.Nil(t, all.Failed())
	got = removed(t, reg)
	require.Greater(t, got["removed_events_total history"], 20.0)
	require.Zero(t, got["removed_events_total erase"])
	require.InDelta(t, 1, got["removal_failures_total history"], 0)
	require.Zero(t, got["removal_failed history"])
	require.InDelta(t, float64(now.Now().Unix()), got["removal_last_pass_timestamp_seconds history"], 0)

	unread = errors.New("again")
	require.Error(t, e.Expire(t.Context(), now.Now()))
	require.Len(t, all.Failed(), 1)
	require.NoError(t, e.Close(t.Context()))
	require.Nil(t, all.Failed())
	require.NotContains(t, removed(t, reg), "removal_failed history", "the partition may be another process's")
}

// TestAnErasureThatFailsIsCounted: without an archive nothing can be erased.
func TestAnErasureThatFailsIsCounted(t *testing.T) {
	all, gone := &plane.Removals{}, &snapshot.Owner{Namespace: "acme", ID: "a1"}
	deps := over(planetest.NewJournals())
	deps.Removals = all
	e, reg := openLeaving(t, gone, deps)
	require.ErrorIs(t, e.Erase(t.Context(), time.Now()), journal.ErrNotErasable)
	require.Equal(t, []string{"test/0 still has all events of deleted agents (erase-after): " +
		journal.ErrNotErasable.Error()}, all.Failed())
	require.InDelta(t, 1, removed(t, reg)["removal_failed erase"], 0)
	*gone = snapshot.Owner{}
	require.NoError(t, e.Erase(t.Context(), time.Now()))
	require.Nil(t, all.Failed())
	got := removed(t, reg)
	require.Zero(t, got["removal_failed erase"])
	require.InDelta(t, 1, got["removal_failures_total erase"], 0)
	require.Positive(t, got["removal_last_pass_timestamp_seconds erase"])
}

// TestAPassThatFailedIsRepeatedSoon: it does not wait for a day.
func TestAPassThatFailedIsRepeatedSoon(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	now := clock.NewFake(time.Unix(1_800_000_000, 0))
	deps := over(planetest.NewJournals())
	failing := errors.New("not known")
	deps.Clock, deps.WaitClock, deps.Logger = now, now, zap.New(core)
	deps.History, deps.ReadThrough = plane.History{Default: 90 * 24 * time.Hour},
		func(context.Context, string, int) (uint64, error) { return 0, failing }
	e, reg := openLeaving(t, &snapshot.Owner{}, deps)
	require.NoError(t, e.Follow(t.Context()))
	for range 3 {
		now.AwaitTimers(1)
		now.Advance(10 * time.Minute)
	}
	now.AwaitTimers(1)
	require.Equal(t, 3, logs.FilterMessageSnippet("not removed yet").Len())
	failing = nil
	now.Advance(10 * time.Minute)
	now.AwaitTimers(1)
	complete := removed(t, reg)["removal_last_pass_timestamp_seconds history"]
	require.InDelta(t, float64(now.Now().Unix()), complete, 0)
	now.Advance(23 * time.Hour)
	now.AwaitTimers(1)
	require.InDelta(t, complete, removed(t, reg)["removal_last_pass_timestamp_seconds history"], 0,
		"the next one is a day later")
	require.Equal(t, 3, logs.FilterMessageSnippet("not removed yet").Len())
}
