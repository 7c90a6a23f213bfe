package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// next takes an agent that must be there.
func (d *dirty) next(t *testing.T) plane.Key {
	t.Helper()
	require.Positive(t, d.named.n+d.swept.n)
	k, ok := d.take()
	require.True(t, ok)
	return k
}

func TestP7_MarksCoalesceAndNoneIsLost(t *testing.T) {
	d := newDirty()
	a, b := plane.KeyOf("acme", "a"), plane.KeyOf("acme", "b")
	for range 5 {
		d.mark(a)
	}
	d.mark(b)
	require.Equal(t, 2, d.named.n, "a storm is one look")
	require.Equal(t, a, d.next(t))
	require.Equal(t, b, d.next(t))
	for range 5 {
		d.mark(a) // while it is being looked at
	}
	require.Zero(t, d.named.n, "one look at a time")
	d.done(a, false)
	require.Equal(t, a, d.next(t), "the last mark is not lost")
	d.done(a, false)
	d.done(b, false)
	require.Zero(t, d.named.n)
	require.Empty(t, d.agents, "what is at rest takes no memory")
}

// While an agent has a turn, only its own plane can say that this is over.
func TestP7_NudgesWaitForABusyAgent(t *testing.T) {
	d := newDirty()
	a := plane.KeyOf("acme", "a")
	d.receive([]cause{{agent: a}}, false)
	require.Equal(t, a, d.next(t))
	d.done(a, true)
	d.receive([]cause{{agent: a}}, false)
	require.Zero(t, d.named.n)
	d.mark(a)
	require.Equal(t, a, d.next(t))
	d.receive([]cause{{agent: a}}, false) // during the look: nobody knows yet what it will find
	d.done(a, true)
	require.Equal(t, a, d.next(t))
	d.done(a, false)
	d.receive([]cause{{agent: a}}, false)
	require.Equal(t, a, d.next(t))
	d.done(a, false)
}

// A start marks every agent. What happens meanwhile does not wait for them, and
// they do not wait without end (SPEC D5).
func TestD5_AWakeDoesNotWaitForTheSweep(t *testing.T) {
	d := newDirty()
	for i := range 100_000 {
		d.markLow(plane.KeyOf("acme", fmt.Sprint(i)))
	}
	for i := range 50 {
		d.mark(plane.KeyOf("acme", fmt.Sprint("busy-", i)))
	}
	d.mark(plane.KeyOf("acme", "99999")) // it is among those of the sweep as well
	named, takes := 0, 0
	for d.named.n > 0 {
		k := d.next(t)
		takes++
		if len(k.ID) > 5 || k.ID == "99999" {
			named++
		}
		d.done(k, false)
	}
	require.Equal(t, 51, named)
	require.LessOrEqual(t, takes, 51*sweptShare/(sweptShare-1)+1)
	require.Greater(t, takes, 51, "the sweep goes on as well")
	seen := map[plane.Key]bool{}
	for d.swept.n > 1 {
		k := d.next(t)
		require.False(t, seen[k])
		seen[k] = true
		d.done(k, false)
	}
	require.NotContains(t, seen, plane.KeyOf("acme", "99999"), "it was looked at already")
	require.Empty(t, d.agents)
}

// A storm in one namespace delays no other one (SPEC D7).
func TestD7_NamespacesTakeTurns(t *testing.T) {
	d := newDirty()
	for i := range 10_000 {
		d.mark(plane.KeyOf("loud", fmt.Sprint(i)))
	}
	d.mark(plane.KeyOf("calm", "a"))
	d.mark(plane.KeyOf("quiet", "b"))
	var first []string
	for range 5 {
		first = append(first, d.next(t).Namespace)
	}
	require.Equal(t, []string{"loud", "calm", "quiet", "loud", "loud"}, first)
}

func TestP7_ClosingLetsEverybodyGo(t *testing.T) {
	d := newDirty()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, ok := d.take()
			require.False(t, ok)
		})
	}
	d.close()
	wg.Wait()
	d.mark(plane.KeyOf("acme", "a"))
	_, ok := d.take()
	require.False(t, ok)
}

// Many markers, many lookers: after the last mark of an agent it is looked at,
// and never by two at once.
func TestP7_UnderLoad(t *testing.T) {
	d := newDirty()
	const agents, marks = 8, 500
	var version, looked [agents]atomic.Int64
	var inside [agents]atomic.Int32
	var lookers, markers sync.WaitGroup
	for range 4 {
		lookers.Go(func() {
			for {
				k, ok := d.take()
				if !ok {
					return
				}
				var i int
				_, err := fmt.Sscan(k.ID, &i)
				require.NoError(t, err)
				require.EqualValues(t, 1, inside[i].Add(1))
				looked[i].Store(version[i].Load())
				inside[i].Add(-1)
				d.done(k, i%2 == 0)
			}
		})
	}
	for range 4 {
		markers.Go(func() {
			for n := range marks {
				i := n % agents
				version[i].Add(1)
				d.mark(plane.KeyOf("acme", fmt.Sprint(i)))
			}
		})
	}
	markers.Wait()
	require.Eventually(t, func() bool {
		for i := range agents {
			if looked[i].Load() != version[i].Load() {
				return false
			}
		}
		return true
	}, waitTerm, pollTerm)
	d.close()
	lookers.Wait()
}

// Every event type of the planes that the scheduler follows has an entry, and nothing else has.
func TestD1_EveryEventIsDeclared(t *testing.T) {
	for plane, file := range map[string]protoreflect.FileDescriptor{
		"agent": agentv1.File_quartet_agent_v1_agent_event_proto,
		"work":  workv1.File_quartet_work_v1_work_event_proto,
	} {
		require.ElementsMatch(t, journal.NewRegistry(file).Types(), slices.Collect(maps.Keys(wakes[plane])), plane)
	}
}

// The events that may change a decision are heard, those of a running round are not.
func TestD1_WhatIsHeard(t *testing.T) {
	for plane, events := range map[string]map[string]bool{
		"agent": {
			"agent_spawned": true, "agent_woken": true, "turn_completed": true, "turn_failed": true,
			"turn_interrupted": true, "turn_aborted": true,
			"message_dropped": true, "message_quarantined": true, "message_processed": true,
			"round_submitted": false, "tool_result_recorded": false, "round_settled": false, "decision_recorded": false,
			"message_dequeued": false, "turn_started": false,
		},
		"work": {
			"work_item_picked": true, "focus_released": true, "wait_attached": true, "wait_detached": true,
			"work_item_updated": true,
			"report_promoted":   false, "recheck_consumed": false,
		},
	} {
		for name, heard := range events {
			require.Equal(t, heard, interest(plane, &journal.Event{Type: name}), name)
		}
	}
	require.True(t, interest("work", &journal.Event{Type: "work_item_created", ReadinessTo: "runnable"}))
}

// What a sweep of very many agents took is given back when all are done; what is
// marked afterwards is looked at as ever.
func TestD1_AnEmptySetIsMadeAnew(t *testing.T) {
	for _, n := range []int{fewAgents - 1, fewAgents, fewAgents + 1} {
		d := newDirty()
		for i := range n {
			d.markLow(plane.KeyOf("acme", fmt.Sprint(i)))
		}
		for range n {
			d.done(d.next(t), false)
		}
		require.Empty(t, d.agents)
		require.Equal(t, n > fewAgents, d.peak == 0)
		d.mark(plane.KeyOf("acme", "again"))
		require.Equal(t, plane.KeyOf("acme", "again"), d.next(t))
	}
}
