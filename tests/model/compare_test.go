package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

const most = 500 // records of a page

// compare wants the system to show what the model holds: of the agent that the
// step was about, or of all.
func (r *run) compare() {
	r.taken++
	for _, a := range r.m.agents {
		r.lane(a) // of all: the clock moves for everybody
		if r.touched == nil || r.touched == a || r.step.op == "restart" {
			r.compareItems(a)
			r.compareWaiting(a)
			r.compareAgent(a)
		}
	}
}

func same(t time.Time, p *timestamppb.Timestamp) bool {
	return t.IsZero() && p == nil || p != nil && p.AsTime().Equal(t)
}

// grows checks that a record's revision never goes back, and moves when the
// record does (SPEC X3).
func (r *run) grows(id string, revision int64) {
	r.must(revision >= r.revs[id], "the revision of %s went from %d to %d", id, r.revs[id], revision)
	r.revs[id] = revision
}

func (r *run) compareItems(a *agent) {
	ctx := r.asAgent(a)
	list, err := r.w.Work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
		AgentId: a.id, PageSize: most,
		IncludeTodoList: true,
	})
	r.fine(err)
	r.must(len(list.GetWorkItems()) == len(a.items), "%s has %d items, the model says %d", a.id,
		len(list.GetWorkItems()), len(a.items))
	for i, got := range list.GetWorkItems() {
		r.compareItem(a.items[i], got)
	}
	f := workv1.WorkItemFilter(1 + r.fresh%8)
	part, err := r.w.Work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: a.id, PageSize: most, Filter: f})
	r.fine(err)
	var want []string
	for _, i := range a.items {
		if i.listed(f) {
			want = append(want, i.id)
		}
	}
	r.must(slices.Equal(ids(part.GetWorkItems()), want), "filter %v lists %v, the model %v", f,
		ids(part.GetWorkItems()), want)
	r.compareQueue(a)
}

func ids(all []*workv1.WorkItem) (out []string) {
	for _, i := range all {
		out = append(out, i.GetWorkItemId())
	}
	return out
}

func (r *run) compareItem(i *item, got *workv1.WorkItem) {
	r.must(got.GetWorkItemId() == i.id, "item %s stands where the model has %s", got.GetWorkItemId(), i.id)
	r.grows(i.id, got.GetRevision())
	d := i.derive()
	r.happened[d.reason]++
	var current *todo
	var todos []todo
	for _, t := range i.todos {
		if t.state == workv1.TodoState_TODO_STATE_IN_PROGRESS && (current == nil || current.state != t.state) ||
			t.state == workv1.TodoState_TODO_STATE_PENDING && current == nil {
			current = &t
		}
	}
	for _, t := range got.GetTodoList() {
		todos = append(todos, todo{t.GetText(), t.GetState()})
	}
	ok := func(what string, got, want any) {
		r.must(got == want, "%s of item %s is %v, the model says %v", what, i.id, got, want)
	}
	ok("objective", got.GetObjective(), i.objective)
	ok("completed", got.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED, i.done)
	ok("plan_status", got.GetPlanStatus(), i.plan)
	ok("todo_list", slices.Equal(todos, i.todos), true)
	ok("is_current", got.GetIsCurrent(), i.current())
	ok("blocked_by", got.GetBlockedBy(), i.blocker)
	ok("blocked_by_wait_id", got.GetBlockedByWaitId(), i.blockerWait)
	ok("scheduling_state", got.GetSchedulingState(), d.state)
	ok("readiness", got.GetReadiness(), d.readiness)
	ok("reason_code", got.GetReasonCode(), d.reason)
	ok("candidate_class", got.GetCandidateClass(), i.class())
	ok("result_summary", got.GetResultSummary(), i.report)
	ok("has_active_waits", got.GetHasActiveWaits(), len(i.waits) > 0)
	ok("has_triggered_waits", got.GetHasTriggeredWaits(), i.triggered(nil))
	ok("updated_at", got.GetUpdatedAt().AsTime(), i.updated)
	if current != nil {
		ok("current_todo", got.GetCurrentTodo().GetText(), current.text)
	} else {
		ok("current_todo", got.GetCurrentTodo() == nil, true)
	}
	if i.unsure && same(i.reminder, got.GetRecheckAt()) {
		i.given = i.reminder
	}
	i.unsure = false
	if !i.done {
		if next := i.recheck(); !next.IsZero() { // else the one that was given last
			r.must(same(next, got.GetRecheckAt()), "the next reminder of item %s is %v (given %v), the model says %v",
				i.id, got.GetRecheckAt(), got.GetRecheckConsumedAt(), next)
			ok("recheck_consumed", got.GetRecheckConsumedAt() != nil, false)
		} else {
			r.must(same(i.given, got.GetRecheckAt()),
				"the last reminder of item %s is %v (given %v), the model says %v", i.id, got.GetRecheckAt(),
				got.GetRecheckConsumedAt(), i.given)
			ok("recheck_consumed", got.GetRecheckConsumedAt() != nil, !i.given.IsZero())
		}
	}
	ok("number of waits", len(got.GetWaits()), len(i.waits))
	for _, w := range i.waits {
		at := slices.IndexFunc(got.GetWaits(), func(g *workv1.AttachedWait) bool { return g.GetWaitId() == w.id })
		r.must(at >= 0, "item %s does not show wait %s: %v", i.id, w.id, got.GetWaits())
		g := got.GetWaits()[at]
		ok("trigger_count of "+w.id, g.GetTriggerCount(), w.count)
		ok("consumed_count of "+w.id, g.GetConsumedCount(), w.seen)
		ok("mode of "+w.id, g.GetMode() == waitingv1.WaitMode_WAIT_MODE_INTENT, w.intent)
		ok("kind of "+w.id, int32(g.GetKind()), int32(w.kind))
		ok("resource of "+w.id, g.GetResource(), w.resource)
		ok("last_triggered_at of "+w.id, same(w.last, g.GetLastTriggeredAt()), true)
	}
}

// compareQueue checks the classes, their order and maximum sizes (SPEC W9). Items of equal
// rank may be in any order.
func (r *run) compareQueue(a *agent) {
	q, err := r.w.Work.GetWorkQueue(r.asAgent(a), &workv1.GetWorkQueueRequest{AgentId: a.id, OmitPlans: true})
	r.fine(err)
	r.must(q.GetCurrent().GetWorkItemId() == a.focus, "the focus of %s is %q, the model says %q", a.id, q.GetCurrent().
		GetWorkItemId(), a.focus)
	var open int32
	class := map[workv1.CandidateClass][]*item{}
	for _, i := range a.items {
		if !i.current() { // the focus is shown once, as current, whatever its class
			class[i.class()] = append(class[i.class()], i)
		}
		if !i.done {
			open++
		}
	}
	c := q.GetCounts()
	r.must(c.GetOpen() == open, "%d open, the model says %d", c.GetOpen(), open)
	for _, k := range []struct {
		class workv1.CandidateClass
		got   []*workv1.WorkItem
		count int32
		most  int
		by    func(x, y *item) int
	}{
		{
			workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED, q.GetTriggeredBlocked(), c.GetTriggeredBlocked(),
			3,
			byTrigger,
		},
		{workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE, q.GetQueuedRunnable(), c.GetQueuedRunnable(), 5, byAge},
		{
			workv1.CandidateClass_CANDIDATE_CLASS_WAITING_FOR_OPERATOR, q.GetWaitingForOperator(),
			c.GetWaitingForOperator(), 3, byUpdate,
		},
		{workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED, q.GetBlocked(), c.GetBlocked(), 3, byUpdate},
		{workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT, q.GetCompletedRecent(), c.GetCompleted(), 3, byUpdate},
	} {
		r.must(int(k.count) == len(class[k.class]), "%d of %v, the model says %d", k.count, k.class,
			len(class[k.class]))
		r.ranking(fmt.Sprint(k.class), ids(k.got), ranked(class[k.class], k.by), k.most, k.by)
	}
	var reminders []*item
	for _, i := range a.items {
		if !i.done && !i.recheck().IsZero() {
			reminders = append(reminders, i)
		}
	}
	r.ranking("rechecks", ids(q.GetRechecks()), ranked(reminders, byRecheck), 5, byRecheck)
}

func (r *run) ranking(what string, got []string, want []*item, most int, by func(x, y *item) int) {
	r.must(len(got) == min(len(want), most), "%s shows %d of %d", what, len(got), len(want))
	for k, id := range got {
		i := r.m.items[id]
		r.must(i != nil && by(i, want[k]) == 0 && slices.Contains(want, i), "%s has %s in place %d, the model %s", what,
			id, k, want[k].id)
	}
}

func (r *run) compareWaiting(a *agent) {
	ctx := r.asAgent(a)
	resp, err := r.w.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{
		AgentId: a.id, PageSize: most,
		IncludeEnded: true,
	})
	r.fine(err)
	r.must(len(resp.GetWaits()) == len(a.waits), "%s has %d waits, the model says %d", a.id, len(resp.GetWaits()),
		len(a.waits))
	for i, got := range resp.GetWaits() {
		w := a.waits[i]
		r.must(got.GetWaitId() == w.id && got.GetWorkItemId() == w.item && got.GetStatus() == w.status,
			"wait %v, the model says %s of %q: %v", got, w.id, w.item, w.status)
		r.must(w.status != active || got.GetTriggerCount() == w.count && got.GetConsumedCount() == w.seen &&
			same(w.last, got.GetLastTriggeredAt()),
			"wait %v, the model says %s of %q: %v, %d triggers, %d seen, last %v", got, w.id, w.item, w.status, w.count,
			w.seen, w.last)
		r.grows(w.id, got.GetRevision())
	}
	trigs, err := r.w.Waiting.ListExternalTriggers(ctx, &waitingv1.ListExternalTriggersRequest{
		AgentId: a.id, PageSize: most, IncludeRevoked: true,
	})
	r.fine(err)
	for _, got := range trigs.GetTriggers() {
		t := r.m.trigs[got.GetTriggerId()]
		r.must(t != nil && got.GetStatus() == t.status && got.GetDeliveryCount() == t.count &&
			got.GetCoalescedCount() == t.joined && got.GetIgnoredCount() == t.idle,
			"trigger %v, the model says %+v", got, t)
		r.grows(t.id, got.GetRevision())
	}
	timers, err := r.w.Waiting.ListTimers(ctx, &waitingv1.ListTimersRequest{
		AgentId: a.id, PageSize: most,
		IncludeEnded: true,
	})
	r.fine(err)
	for _, got := range timers.GetTimers() {
		t := r.m.timers[got.GetTimerId()]
		r.must(t != nil && got.GetStatus() == t.status && got.GetFireCount() == t.fires &&
			got.GetSkippedCount() == t.skipped,
			"timer %v, the model says %+v", got, t)
		r.must(t.status != waitingv1.TimerStatus_TIMER_STATUS_ACTIVE || same(t.next, got.GetNextFireAt()),
			"timer %v is next due at %v, says the model", got, t.next)
		r.grows(t.id, got.GetRevision())
	}
}

// cause is by what the model knows a message.
func cause(m *agentv1.Message) string {
	switch m.GetKind() {
	case agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT:
		return m.GetTaskId()
	case agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK:
		return m.GetCorrelationId()
	case agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT:
		return m.GetCausationId()
	}
	return m.GetMessageId()
}

// lane compares the queued messages. What came of itself gets its id and place
// here: of several at once the SPEC does not say which is first, but from then on
// it is so. A tick that is new must be the one that the model would send.
func (r *run) lane(a *agent) {
	resp, err := r.w.Agent.ListMessages(r.as(rpc.RoleOperator), &agentv1.ListMessagesRequest{
		AgentId: a.id, State: agentv1.MessageState_MESSAGE_STATE_QUEUED, PageSize: most,
	})
	r.fine(err)
	v := r.m.plan(a)
	ticks := 0
	for _, m := range resp.GetMessages() {
		at := slices.IndexFunc(a.lane, func(q *message) bool {
			return q.cause == cause(m) && q.kind == m.GetKind() && (!q.known || q.id == m.GetMessageId())
		})
		if m.GetTick() != nil {
			ticks++
			if at < 0 {
				r.newTick(a, v, m)
				continue
			}
		}
		r.must(at >= 0, "%s has a message that the model does not know: %v", a.id, m)
		if q := a.lane[at]; !q.known {
			r.order++
			q.known, q.id, q.priority, q.order = true, m.GetMessageId(), m.GetPriority(), r.order
			r.must(m.GetWorkItemId() == q.item || q.item == "", "message %v is about item %q, says the model", m,
				q.item)
		}
	}
	r.must(ticks <= 1, "%s has %d ticks in its lane", a.id, ticks)
	for _, q := range a.lane {
		r.must(slices.ContainsFunc(resp.GetMessages(), func(m *agentv1.Message) bool {
			return m.GetMessageId() == q.id
		}), "%s lost message %v", a.id, *q)
	}
}

func (r *run) newTick(a *agent, v verdict, m *agentv1.Message) {
	t := m.GetTick()
	r.note("  tick %v for %s", t, a.id)
	r.happened[t.GetReason().String()]++
	hollow := t.GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT && r.m.hollow(a)
	if !r.free && !r.rung[a] && !hollow {
		r.must(!r.m.stale(a, t), "a tick %v of %s that is not true", t, a.id)
	}
	if !r.free && !r.rung[a] && !hollow {
		r.must(v.action == "tick", "a tick %v of %s, the model says %v", t, a.id, v)
		// After turns that came to nothing only what is new is worth a tick, and it
		// is about that.
		if a.idle < idleness && a.failed < patience {
			r.must(v.tick == t.GetReason(), "a tick %v of %s, the model says %v", t, a.id, v)
			if len(v.items) > 0 {
				i := r.m.items[t.GetWorkItemId()]
				by := map[agentv1.TickReason]func(x, y *item) int{
					agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED: byTrigger,
					agentv1.TickReason_TICK_REASON_PICK_QUEUED:      byAge,
					agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT: byAge,
					agentv1.TickReason_TICK_REASON_RECHECK:          byRecheck,
				}[v.tick]
				r.must(i != nil && slices.Contains(v.items, i) && by(i, v.items[0]) == 0,
					"a tick about %q, the first is %q", t.GetWorkItemId(), v.items[0].id)
			}
		}
	}
	if t.GetReason() == agentv1.TickReason_TICK_REASON_RECHECK {
		i := r.m.items[t.GetWorkItemId()]
		r.m.remind(i)
	}
	r.order++
	r.m.hear(a, &message{
		id: m.GetMessageId(), cause: m.GetMessageId(), kind: m.GetKind(), priority: m.GetPriority(),
		order: r.order, tick: t, decided: r.m.now, known: true,
	})
}

// compareAgent checks turn, posture and decision. Nothing that can go on is
// stranded: a verdict that wants a tick is one that nobody acted on.
func (r *run) compareAgent(a *agent) {
	f, err := r.w.Agent.GetFacts(r.as(rpc.RoleService), &agentv1.GetFactsRequest{AgentId: a.id})
	r.fine(err)
	facts := f.GetFacts()[0]
	open := ""
	if a.turn != nil {
		open = a.turn.id
	}
	r.must(facts.GetOpenTurn().GetTurnId() == open, "%s has open turn %q, the model says %q", a.id, facts.GetOpenTurn().
		GetTurnId(), open)
	r.must(int(facts.GetQueued()) == len(a.lane), "%s has %d messages queued, the model says %d", a.id,
		facts.GetQueued(), len(a.lane))
	r.must(facts.GetWakeHint() == r.m.woken(a) || len(a.wakes) > 0, "%s is woken: %t, the model says %v", a.id,
		facts.GetWakeHint(), a.wakes)
	r.grows(a.id, facts.GetAgent().GetRevision())
	r.grows("facts of "+a.id, facts.GetFactsRevision())
	got, err := r.w.Agent.GetAgent(r.as(rpc.RoleOperator), &agentv1.GetAgentRequest{AgentId: a.id})
	r.fine(err)
	r.happened[got.GetAgent().GetPosture().String()]++
	r.must(got.GetAgent().GetPosture() == r.m.posture(a), "%s is %v (%s), the model says %v", a.id, got.GetAgent().
		GetPosture(), got.GetAgent().GetPostureReason(), r.m.posture(a))
	r.must(got.GetAgent().GetCurrentWorkItemId() == a.focus, "GetAgent says the focus is %q, the model %q",
		got.GetAgent().GetCurrentWorkItemId(), a.focus)

	x, err := r.w.Scheduler.Explain(r.as(rpc.RoleOperator), &schedulerv1.ExplainRequest{AgentId: a.id})
	r.fine(err)
	v := r.m.plan(a)
	r.happened["verdict "+v.action+" "+v.reason]++
	r.must(strings.TrimPrefix(x.GetVerdict().GetAction().String(), "DECISION_ACTION_") == strings.ToUpper(v.action),
		"%s: the scheduler would %v, the model says %v", a.id, x.GetVerdict(), v)
	r.must(v.reason == "" || x.GetVerdict().GetReason() == v.reason, "%s: the scheduler says %v, the model %v", a.id,
		x.GetVerdict(), v)
	// A stale tick stays in the lane until a runner asks for a turn; only then is another due.
	if !r.m.held["agent>scheduler"] && !r.m.held["work>scheduler"] && len(a.lane) == 0 {
		r.must(v.action != "tick", "%s is stranded: %v and nobody is coming", a.id, v.tick)
	}
	for _, c := range x.GetCandidates() {
		i := r.m.items[c.GetWorkItemId()]
		r.must(i != nil && c.GetReasonCode() == i.derive().reason, "Explain says of %v what the model does not", c)
	}
}

// shownQueue checks that a turn's context shows what the queue shows.
func (r *run) shownQueue(a *agent, c *agentv1.ContextProjection) {
	current := c.GetCurrent().GetFields()["work_item_id"].GetStringValue()
	r.must(current == a.turn.bound, "a turn's context is about %q, the model says %q", current, a.turn.bound)
	for name, class := range map[string]workv1.CandidateClass{
		"triggered_blocked": workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED,
		"queued_runnable":   workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE,
	} {
		for _, v := range c.GetQueue().GetFields()[name].GetListValue().GetValues() {
			id := v.GetStructValue().GetFields()["work_item_id"].GetStringValue()
			r.must(r.m.items[id] != nil && r.m.items[id].class() == class, "a turn's context shows %s among %s", id,
				name)
		}
	}
}

// picture is all that the planes answer, byte for byte.
func (r *run) picture() (all []string) {
	add := func(m proto.Message, err error) {
		r.fine(err)
		raw, err := protojson.MarshalOptions{}.Marshal(m)
		r.fine(err)
		all = append(all, squeeze(string(raw)))
	}
	for _, a := range r.m.agents {
		ctx := r.asAgent(a)
		items, err := r.w.Work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
			AgentId: a.id, PageSize: most,
			IncludeTodoList: true,
		})
		add(items, err)
		queue, err := r.w.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: a.id})
		queue.Revision = 0 // the position of the journal, which an opening moves
		add(queue, err)
		waits, err := r.w.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{
			AgentId: a.id, PageSize: most,
			IncludeEnded: true,
		})
		waits.Revision = 0
		add(waits, err)
		trigs, err := r.w.Waiting.ListExternalTriggers(ctx, &waitingv1.ListExternalTriggersRequest{
			AgentId: a.id, PageSize: most, IncludeRevoked: true,
		})
		add(trigs, err)
		timers, err := r.w.Waiting.ListTimers(ctx, &waitingv1.ListTimersRequest{
			AgentId: a.id, PageSize: most,
			IncludeEnded: true,
		})
		add(timers, err)
		tasks, err := r.w.Task.ListTasks(ctx, &taskv1.ListTasksRequest{
			AgentId: a.id, PageSize: most,
			IncludeTerminal: true,
		})
		add(tasks, err)
		messages, err := r.w.Agent.ListMessages(r.as(rpc.RoleOperator), &agentv1.ListMessagesRequest{
			AgentId: a.id, PageSize: most,
		})
		add(messages, err)
		turns, err := r.w.Agent.ListTurns(r.as(rpc.RoleOperator), &agentv1.ListTurnsRequest{
			AgentId: a.id, PageSize: most,
		})
		for _, t := range turns.GetTurns() {
			t.LeaseExpiresAt = nil // one full term anew
		}
		add(turns, err)
		decisions, err := r.w.Agent.ListDecisions(r.as(rpc.RoleOperator), &agentv1.ListDecisionsRequest{
			AgentId: a.id, PageSize: 100,
		})
		add(decisions, err)
		agent, err := r.w.Agent.GetAgent(r.as(rpc.RoleOperator), &agentv1.GetAgentRequest{AgentId: a.id})
		add(agent, err)
	}
	return all
}

// squeeze takes out the blanks that protojson puts in at random.
func squeeze(s string) string {
	out := make([]byte, 0, len(s))
	quoted := false
	for i := range len(s) {
		if s[i] == '"' && (i == 0 || s[i-1] != '\\') {
			quoted = !quoted
		}
		if s[i] != ' ' || quoted {
			out = append(out, s[i])
		}
	}
	return string(out)
}
