package quota

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// shortened is a journal without the lines up to a wal_seq, for those who begin to read it then.
type shortened struct {
	journal.Source
	gone *atomic.Uint64
}

func (s shortened) Follow(ctx context.Context, after framelog.End,
	fn func(at framelog.End, lines []journal.Line) error,
) error {
	gone := s.gone.Load()
	return s.Source.Follow(ctx, after, func(at framelog.End, lines []journal.Line) error {
		var left []journal.Line
		for _, line := range lines {
			if ev, err := line.Envelope(); err != nil || ev.WalSeq > gone {
				left = append(left, line)
			}
		}
		return fn(at, left)
	})
}

// TestWhatWasRemovedCountsNoMore: once a segment was stored anew the bytes of its journal are counted again, beside
// what is written meanwhile.
func TestWhatWasRemovedCountsNoMore(t *testing.T) {
	journals := planetest.NewJournals()
	work := journals.NewWriter(t, "work", workv1.File_quartet_work_v1_work_event_proto)
	journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	l, err := Parse(nil, map[string]string{"acme.mib": "1"})
	require.NoError(t, err)
	var gone atomic.Uint64
	name, failing := "1-a", error(nil)
	g := NewGate(Config{
		Limits: l, Serves: func(plane string) bool { return plane == "agent" || plane == "work" },
		Sources: func(plane string) ([]journal.Source, error) {
			sources, err := journals.Sources(plane)
			if plane == "work" {
				sources[0] = shortened{sources[0], &gone}
			}
			return sources, err
		},
		Archived: func(_ context.Context, plane string, _ int) (map[uint64]string, error) {
			if plane != "work" {
				return map[uint64]string{}, nil
			}
			return map[uint64]string{1: name, 2: "2-a"}, failing
		},
	})
	require.NoError(t, g.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, g.Stop(context.Background())) })
	create := func(namespace, text string) {
		work.WriteAs(journal.Actor{Namespace: namespace, Principal: "test", Role: rpc.RoleService},
			&journal.Event{AgentID: "a", WorkItemID: "wi_" + text[:1], Payload: &workv1.WorkItemCreated{
				WorkItem: &workv1.WorkItemRecord{Objective: text},
			}})
	}
	for range 3 {
		create("acme", strings.Repeat("x", 400_000))
	}
	create("other", "y")
	held := func(namespace string) int64 {
		require.NoError(t, g.counts.catchUp(t.Context(), MiB))
		return g.counts.get(namespace, MiB)
	}
	whole, others := held("acme"), held("other")
	require.Greater(t, whole, int64(1_200_000))
	require.ErrorIs(t, g.stored("acme"), fault.QuotaExceeded)

	gone.Store(3) // wal_seq 1 began the journal
	require.NoError(t, g.counts.recount(t.Context()))
	require.Equal(t, whole, held("acme"), "no segment was stored anew: nothing is read")

	name, failing = "1-b", errors.New("the bucket does not answer")
	require.ErrorIs(t, g.counts.recount(t.Context()), failing)
	require.Equal(t, whole, held("acme"))
	failing = nil
	create("acme", "z")
	added := held("acme") - whole
	require.NoError(t, g.counts.recount(t.Context()))
	require.Equal(t, whole/3+added, held("acme"))
	require.Equal(t, others, held("other"))
	require.NoError(t, g.stored("acme"), "it may write again")

	gone.Store(1 << 40)
	name = "1-c"
	require.NoError(t, g.counts.recount(t.Context()))
	require.Zero(t, held("other"))
	create("acme", "w")
	require.Positive(t, held("acme"), "what is written later counts")
}
