package projection

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/ref"
	"quartet/services/agent/state"
)

// settleTerm bounds how long a turn waits for the planes to tell what its
// message is about. They travel as events of different planes, milliseconds
// apart; a plane that is down must not hold the agent back for longer.
const readTimeout = 2 * time.Second

// projection reads an agent's work for a turn. A message and what it did to a
// wait are facts of two planes, or three: the turn begins when all are told, so
// that no agent is shown an answer beside an item that still waits for it.
func (s *Service) Read(ctx context.Context, namespace string, o *state.Candidate) (*Projection, error) {
	ctx = rpc.WithActor(ctx, rpc.Actor{Namespace: namespace, Principal: "agent/" + o.Record.GetAgentId(), Role: rpc.RoleAgent, AgentID: o.Record.GetAgentId()})
	deadline := time.Now().Add(readTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: o.Record.GetAgentId()})
		if err != nil {
			return nil, err
		}
		p := &Projection{GetWorkQueueResponse: q, wake: o.Wake}
		if p.ownWaits, err = s.ownWaits(ctx, o); err != nil {
			return nil, err
		}
		told, err := s.told(ctx, o.Message, p)
		if err != nil {
			return nil, err
		}
		if told || time.Now().After(deadline) {
			return p, s.addHistory(ctx, ref.Agent{Namespace: namespace, ID: o.Record.GetAgentId()}, p)
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

// told says whether the planes show what a message is about.
func (s *Service) told(ctx context.Context, m *agentv1.Message, p *Projection) (bool, error) {
	switch {
	case m.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_RECHECK:
		var err error
		p.subject, err = s.Subject(ctx, m)
		return true, err
	case m.GetTaskId() != "":
		it, err := s.Subject(ctx, m)
		return !waitsForTask(it, m.GetTaskId()), err
	case instructs(m), m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT:
	default:
		return true, nil
	}
	r, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: m.GetAgentId(), PageSize: 500})
	if err != nil {
		// The waiting plane does not hold a message back for ever: see settleTerm.
		return fault.From(err).Code() != codes.Unavailable, nil
	}
	if Awaits(r.GetWaits(), m) {
		return false, nil
	}
	return s.heard(ctx, m, p, r)
}

// subject is the item that a message names; nil where there is none, or not
// this agent's: that has nothing to wait for.
func (s *Service) Subject(ctx context.Context, m *agentv1.Message) (*workv1.WorkItem, error) {
	if m.GetWorkItemId() == "" {
		return nil, nil
	}
	r, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: m.GetAgentId(), WorkItemId: m.GetWorkItemId(), OmitTodoList: true})
	if err != nil && fault.From(err).Code() == codes.Unavailable {
		return nil, err
	}
	return r.GetWorkItem(), nil
}

// instructs says whether a message is an operator's word, or a supervisor's to its
// child: by the waiting plane's own rule it answers who waits for an operator.
func instructs(m *agentv1.Message) bool {
	return m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT ||
		m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP && m.GetOrigin() == agentv1.Origin_ORIGIN_PARENT
}

// awaits says whether a wait stands that the waiting plane will end when it
// hears of the message, by its own rule (SPEC P2): the operator wait of the item
// that is named, else the only one. Waits that are younger than the message may
// have been made after it was heard, so they are nobody's evidence.
func Awaits(waits []*waitingv1.Wait, m *agentv1.Message) bool {
	if !instructs(m) {
		return false
	}
	n := 0
	for _, w := range waits {
		if w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT &&
			w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE &&
			w.GetCreatedAt().AsTime().Before(m.GetCreatedAt().AsTime()) &&
			(m.GetWorkItemId() == "" || m.GetWorkItemId() == w.GetWorkItemId()) {
			n++
		}
	}
	return n == 1
}

// heard says whether the work plane knows of its items' waits what the waiting
// plane knows: none shows a wait that ended, and each shows every trigger.
func (s *Service) heard(ctx context.Context, m *agentv1.Message, p *Projection, r *waitingv1.ListWaitsResponse) (bool, error) {
	stands := map[string]*waitingv1.Wait{}
	for _, w := range r.GetWaits() {
		stands[w.GetWaitId()] = w
	}
	shown := map[string]bool{}
	for _, it := range p.openItems() {
		for _, a := range it.GetWaits() {
			w := stands[a.GetWaitId()]
			if w == nil && r.GetNextPageToken() == "" || w.GetTriggerCount() > a.GetTriggerCount() {
				return false, nil
			}
			shown[a.GetWaitId()] = true
		}
	}
	if m.GetKind() != agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT {
		return true, nil
	}
	// An item beyond the caps of the queue is asked for itself; one look is
	// enough, since a delivery reaches its waits in one commit.
	for _, w := range r.GetWaits() {
		if w.GetWorkItemId() == "" || !w.GetTriggered() || shown[w.GetWaitId()] {
			continue
		}
		it, err := s.Subject(ctx, &agentv1.Message{AgentId: m.GetAgentId(), WorkItemId: w.GetWorkItemId()})
		if err != nil {
			return false, err
		}
		for _, a := range it.GetWaits() {
			if a.GetWaitId() == w.GetWaitId() {
				return a.GetTriggerCount() >= w.GetTriggerCount(), nil
			}
		}
		// The item does not know of the wait yet; a completed one never will.
		return it.GetState() != workv1.WorkItemState_WORK_ITEM_STATE_OPEN, nil
	}
	return true, nil
}

// open are the items that the turn's context shows and that are not completed.
func (p *Projection) openItems() []*workv1.WorkItem {
	var all []*workv1.WorkItem
	if p.GetCurrent() != nil {
		all = append(all, p.GetCurrent())
	}
	for _, class := range [][]*workv1.WorkItem{p.GetTriggeredBlocked(), p.GetQueuedRunnable(), p.GetWaitingForOperator(), p.GetBlocked()} {
		all = append(all, class...)
	}
	return all
}
