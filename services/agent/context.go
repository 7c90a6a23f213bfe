package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

// promoteRequest keeps the call in submit_round.go short.
type promoteRequest = workv1.PromoteReportRequest

// settleTerm bounds how long a turn waits for the work plane to hear what its
// message is about. The two travel as events of different planes, milliseconds
// apart; a plane that is down must not hold the agent back for longer.
const settleTerm = 2 * time.Second

// projection is an agent's work as its next turn shows it.
type projection struct {
	*workv1.GetWorkQueueResponse
	// own are the waits of the agent itself that were triggered.
	own []*waitingv1.Wait
}

// projection reads the work queue for a turn. A task's result and the end of
// the wait for it are two facts of two planes; the turn begins when both are
// told, so that no agent is shown a result beside an item that still waits.
func (s *Service) projection(ctx context.Context, namespace string, o *offer) (*projection, error) {
	ctx = rpc.WithActor(ctx, rpc.Actor{Namespace: namespace, Principal: "agent/" + o.agent.GetAgentId(), Role: rpc.RoleAgent, AgentID: o.agent.GetAgentId()})
	deadline := time.Now().Add(settleTerm)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: o.agent.GetAgentId()})
		if err != nil {
			return nil, err
		}
		p := &projection{GetWorkQueueResponse: q}
		if p.own, err = s.ownWaits(ctx, o.message); err != nil {
			return nil, err
		}
		if o.message.GetTaskId() == "" || time.Now().After(deadline) {
			return p, nil
		}
		item, err := s.taskItem(ctx, o.message)
		if err != nil && fault.From(err).Code() == codes.Unavailable {
			return nil, err
		}
		// An item that is not there, or not this agent's, has nothing to wait for.
		if !waitsForTask(item, o.message.GetTaskId()) {
			return p, nil
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// ownWaits are the agent's own triggered waits, asked for when a trigger may be
// what the turn is about: no item shows them.
func (s *Service) ownWaits(ctx context.Context, m *agentv1.Message) ([]*waitingv1.Wait, error) {
	if m.GetKind() != agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT && m.GetTick().GetReason() != agentv1.TickReason_TICK_REASON_WAKE_HINT {
		return nil, nil
	}
	r, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: m.GetAgentId(), PageSize: 500})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(r.GetWaits(), func(w *waitingv1.Wait) bool { return w.GetWorkItemId() != "" || !w.GetTriggered() }), nil
}

func (s *Service) taskItem(ctx context.Context, m *agentv1.Message) (*workv1.WorkItem, error) {
	if m.GetWorkItemId() == "" {
		return nil, nil
	}
	r, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: m.GetAgentId(), WorkItemId: m.GetWorkItemId(), OmitTodoList: true})
	return r.GetWorkItem(), err
}

func waitsForTask(it *workv1.WorkItem, taskID string) bool {
	for _, w := range it.GetWaits() {
		if w.GetKind() == workv1.WaitKind_WAIT_KIND_TASK && w.GetResource() == taskID {
			return true
		}
	}
	return false
}

// shown are the trigger counts that the turn's context shows. When the turn
// completes they count as consumed (SPEC section 4).
func (p *projection) shown() []*agentv1.ShownWait {
	var shown []*agentv1.ShownWait
	visit := func(it *workv1.WorkItem) {
		for _, w := range it.GetWaits() {
			if w.GetTriggerCount() > w.GetConsumedCount() {
				shown = append(shown, &agentv1.ShownWait{WaitId: w.GetWaitId(), TriggerCount: w.GetTriggerCount()})
			}
		}
	}
	for _, w := range p.own {
		shown = append(shown, &agentv1.ShownWait{WaitId: w.GetWaitId(), TriggerCount: w.GetTriggerCount()})
	}
	visit(p.GetCurrent())
	for _, it := range p.GetTriggeredBlocked() {
		visit(it)
	}
	for _, it := range p.GetQueuedRunnable() {
		visit(it)
	}
	return shown
}

// context is what the runner gets.
func (p *projection) context(m *agentv1.Message) *agentv1.ContextProjection {
	c := &agentv1.ContextProjection{WorkRevision: p.GetRevision(), ShownWaits: p.shown(), Text: p.text(m)}
	// Both were made by this process from messages of ours; they always fit.
	if p.GetCurrent() != nil {
		c.Current, _ = toStruct(p.GetCurrent())
	}
	c.Queue, _ = toStruct(p.GetWorkQueueResponse)
	delete(c.Queue.GetFields(), "current")
	return c
}

// text is the projection for a model, current item first.
func (p *projection) text(m *agentv1.Message) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Message (%s, %s):\n%s\n", lower(m.GetKind().String(), "MESSAGE_KIND_"), lower(m.GetAuthority().String(), "AUTHORITY_"), m.GetText())
	if n := len(m.GetData()); n > 0 {
		fmt.Fprintf(&b, "[%d bytes of %s]\n", n, m.GetContentType())
	}
	for _, w := range p.own {
		fmt.Fprintf(&b, "Triggered %d time(s): %s%s\n", w.GetTriggerCount()-w.GetConsumedCount(), w.GetReason(), w.GetCondition())
	}
	b.WriteString("\nThe objective names the work, the plan interprets it and wins conflicts, todos are progress.\n")
	if it := p.GetCurrent(); it != nil {
		fmt.Fprintf(&b, "\nCurrent work item %s (%s, %s)\nObjective: %s\n", it.GetWorkItemId(),
			lower(it.GetSchedulingState().String(), "SCHEDULING_STATE_"), lower(it.GetPlanStatus().String(), "PLAN_STATUS_"), it.GetObjective())
		if it.GetBlockedBy() != "" {
			fmt.Fprintf(&b, "Blocked by: %s\n", it.GetBlockedBy())
		}
		for _, t := range it.GetTodoList() {
			fmt.Fprintf(&b, "- [%s] %s\n", lower(t.GetState().String(), "TODO_STATE_"), t.GetText())
		}
		if plan := it.GetPlanArtifact(); plan.GetPreview() != "" {
			fmt.Fprintf(&b, "Plan (%s):\n%s\n", plan.GetPath(), plan.GetPreview())
		} else {
			fmt.Fprintf(&b, "Plan: %s (empty)\n", plan.GetPath())
		}
	} else {
		b.WriteString("\nNo work item is in focus.\n")
	}
	section := func(title string, items []*workv1.WorkItem, total int32) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s (%d):\n", title, total)
		for _, it := range items {
			fmt.Fprintf(&b, "- %s: %s", it.GetWorkItemId(), it.GetObjective())
			if it.GetBlockedBy() != "" {
				fmt.Fprintf(&b, " [%s: %s]", lower(it.GetSchedulingState().String(), "SCHEDULING_STATE_"), it.GetBlockedBy())
			}
			if it.GetResultSummary() != "" {
				fmt.Fprintf(&b, " => %s", it.GetResultSummary())
			}
			b.WriteByte('\n')
		}
	}
	n := p.GetCounts()
	section("Triggered, to review", p.GetTriggeredBlocked(), n.GetTriggeredBlocked())
	section("Queued and runnable", p.GetQueuedRunnable(), n.GetQueuedRunnable())
	section("Waiting for an operator", p.GetWaitingForOperator(), n.GetWaitingForOperator())
	section("Blocked", p.GetBlocked(), n.GetBlocked())
	section("Completed recently", reported(p.GetCompletedRecent()), n.GetCompleted())
	return b.String()
}

// reported leaves out completed items without a report: nothing is synthesised.
func reported(items []*workv1.WorkItem) []*workv1.WorkItem {
	var out []*workv1.WorkItem
	for _, it := range items {
		if it.GetResultSummary() != "" {
			out = append(out, it)
		}
	}
	return out
}

func lower(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// staleTick says why a tick is no longer true, "" if it is (SPEC D4).
func staleTick(m *agentv1.Message, p *projection, _ *agentv1.Agent) string {
	t := m.GetTick()
	if t == nil {
		return ""
	}
	find := func(items ...*workv1.WorkItem) *workv1.WorkItem {
		for _, it := range items {
			if it.GetWorkItemId() == t.GetWorkItemId() {
				return it
			}
		}
		return nil
	}
	switch t.GetReason() {
	case agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT:
		if it := find(p.GetCurrent()); it == nil || it.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE {
			return "stale_tick: the item is no longer current and runnable"
		}
	case agentv1.TickReason_TICK_REASON_PICK_QUEUED:
		// Any queued item will do: the agent picks, the tick only calls it.
		if p.GetCounts().GetQueuedRunnable() == 0 {
			return "stale_tick: no runnable item is queued"
		}
	case agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED:
		if len(p.GetTriggeredBlocked()) == 0 && !p.GetCurrent().GetHasTriggeredWaits() {
			return "stale_tick: no triggered item is left to review"
		}
	case agentv1.TickReason_TICK_REASON_UNSPECIFIED, agentv1.TickReason_TICK_REASON_WAKE_HINT, agentv1.TickReason_TICK_REASON_RECHECK:
	}
	return ""
}
