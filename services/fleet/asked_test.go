package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// calls returns how many agents were read and how many lists of boards.
func (r *records) calls() [2]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return [2]int{r.reads, r.lists}
}

// Agents that events name are read when somebody asks, once however many events named them, and without their boards
// unless an event of these did. What was read within a second is not read again.
func TestG16_NothingIsReadUnlessSomebodyAsks(t *testing.T) {
	r := newRig(t)
	key := plane.KeyOf("a", "keeper")
	r.records.set("a", agent("keeper", idle), &boardv1.Board{Status: boardv1.BoardStatus_BOARD_STATUS_BLOCKED})
	x := r.whole()
	read := r.records.calls()
	require.Equal(t, [2]int{1, 1}, read)

	r.records.set("a", agent("keeper", blocked))
	for range 1000 {
		x.mark(false, key)
	}
	count := func() *fleetv1.CountAgentsResponse {
		got := must.Value(r.CountAgents(r.as("a"), &fleetv1.CountAgentsRequest{}))(t)
		require.False(t, got.GetIncomplete())
		return got
	}
	require.Equal(t, idle, count().GetPostures()[0].GetPosture(), "within a second of the last round")
	require.Equal(t, read, r.records.calls())

	r.clock.Advance(pace)
	got := count()
	require.Equal(t, blocked, got.GetPostures()[0].GetPosture())
	require.Len(t, got.GetAttentions(), 2, "blocked, and the board as it was read before")
	require.Equal(t, [2]int{2, 1}, r.records.calls())

	r.clock.Advance(time.Minute)
	count()
	require.Equal(t, [2]int{2, 1}, r.records.calls(), "no event named it")

	x.mark(true, key)
	r.clock.Advance(pace)
	require.Len(t, count().GetAttentions(), 1, "its boards were read")
	require.Equal(t, [2]int{3, 2}, r.records.calls())
}

// An update of a work item that leaves it as ready as it was changes nothing that is kept; any other does, and so does
// one that was not read.
func TestG16_WhatChangesNothingIsNotRead(t *testing.T) {
	updated := func(p *workv1.WorkItemUpdated, from, to string) *journal.Event {
		return &journal.Event{Type: "work_item_updated", Payload: p, ReadinessFrom: from, ReadinessTo: to}
	}
	require.True(t,
		changesNothing(updated(&workv1.WorkItemUpdated{ChangedFields: []string{"objective", "todo_list", "plan"}}, "",
			"")))
	require.True(t, changesNothing(updated(&workv1.WorkItemUpdated{ChangedFields: []string{"objective"}}, "runnable",
		"runnable")))
	for name, ev := range map[string]*journal.Event{
		"ready":    updated(&workv1.WorkItemUpdated{}, "blocked", "runnable"),
		"blocker":  updated(&workv1.WorkItemUpdated{ChangedFields: []string{"objective", "blocked_by"}}, "", ""),
		"plan":     updated(&workv1.WorkItemUpdated{ChangedFields: []string{"plan_status"}}, "", ""),
		"wait":     updated(&workv1.WorkItemUpdated{EndedWaitId: "wait_1"}, "", ""),
		"created":  {Type: "work_item_created", Payload: &workv1.WorkItemCreated{}},
		"not read": {Type: "work_item_updated"},
	} {
		require.False(t, changesNothing(ev), name)
	}
}

// A search returns the waits for which agents need a person, if they are asked for, and no more than fit.
func TestG16_WaitsOfAPage(t *testing.T) {
	r := newRig(t)
	question := func(reason string) *waitingv1.Wait {
		return &waitingv1.Wait{
			Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_OPERATOR, Reason: reason,
		}
	}
	timer := &waitingv1.Wait{Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_TIMER}
	large := question(strings.Repeat("x", 600<<10))
	r.records.set("a", agent("asks", asking, timer, question("which?"), weak()))
	r.records.set("a", private(agent("child", asking, question("of its supervisor"))))
	r.records.set("a", agent("large-1", asking, large))
	r.records.set("a", agent("large-2", asking, large))
	many := make([]*waitingv1.Wait, maxWaits+1)
	for i := range many {
		many[i] = question("?")
	}
	r.records.set("a", agent("first", asking, many...))
	r.whole()
	waits := func(include bool) map[string]int {
		page := must.Value(r.SearchAgents(r.as("a"), &fleetv1.SearchAgentsRequest{
			IncludePrivate: true,
			IncludeWaits:   include,
		}))(t)
		out := map[string]int{}
		for _, a := range page.GetAgents() {
			out[a.GetAgentId()] = len(a.GetWaits())
		}
		return out
	}
	require.Equal(t, map[string]int{"asks": 2, "child": 0, "first": maxWaits, "large-1": 1, "large-2": 0}, waits(true))
	require.Equal(t, map[string]int{"asks": 0, "child": 0, "first": 0, "large-1": 0, "large-2": 0}, waits(false))
}
