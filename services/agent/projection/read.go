package projection

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// shownWaits is how many waits of an agent a turn considers.
const shownWaits = 500

// Read reads an agent's work for the turn of a candidate, each fact once.
//
// A message and what it did to a wait are facts of two or three planes: an operator's
// message ends a wait in the waiting plane, which then detaches it from its item in the
// work plane. So that no turn shows a message beside an item that still waits for it,
// the reads name positions in the journals (plane.After): the waiting plane answers when
// it has consumed the event that the message stems from, and the work plane when it has
// consumed what the waiting plane answered from. A plane that does not get there in time
// is read as it is.
func (s *Service) Read(ctx context.Context, c *state.Candidate) (*Projection, error) {
	ctx = rpc.WithActor(ctx, access.AgentActor(c.Agent))
	p := &Projection{wake: c.Wake}
	waits, after, err := s.readWaits(ctx, c)
	if err != nil {
		return nil, err
	}
	p.ownWaits = waits
	if p.GetWorkQueueResponse, err = s.deps.Work.GetWorkQueue(plane.After(ctx, after), &workv1.GetWorkQueueRequest{AgentId: c.Agent.ID}); err != nil {
		return nil, err
	}
	if c.Message.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_RECHECK {
		if p.subject, err = s.Subject(ctx, c.Message); err != nil {
			return nil, err
		}
	}
	return p, s.addHistory(ctx, c.Agent, p)
}

// readWaits reads what the waiting plane knows about the message of a candidate: the
// triggered waits of the agent itself, which no item shows, and the position in the
// waiting journal that the work plane must have consumed for its items to show the same.
// A message that cannot affect a wait needs neither.
func (s *Service) readWaits(ctx context.Context, c *state.Candidate) (own []*waitingv1.Wait, after plane.Position, err error) {
	m, k := c.Message, c.Agent
	callback := m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT
	// Whoever may instruct the agent may end one of its waits, and so may the end of a
	// task. The waiting plane decides which.
	instruction := m.GetAuthority() == agentv1.Authority_AUTHORITY_OPERATOR_INSTRUCTION
	result := m.GetTaskId() != "" && m.GetWorkItemId() != ""
	shown := callback || c.Wake != nil || m.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT
	var before plane.Position
	switch {
	case instruction:
		before = s.engine.At(k.Namespace, k.ID, c.QueuedAt)
	case result:
		before = s.engine.Consumed("task", k.Namespace, k.ID)
	case callback:
		after = s.engine.Consumed("waiting", k.Namespace, k.ID)
	case !shown:
		return nil, after, nil
	}
	size := int32(shownWaits)
	if !shown {
		size = 1 // only the revision is needed
	}
	r, err := s.deps.Waiting.ListWaits(plane.After(ctx, before), &waitingv1.ListWaitsRequest{AgentId: k.ID, PageSize: size})
	switch {
	case err != nil && !shown && fault.From(err).Code() == codes.Unavailable:
		return nil, after, nil // a plane that is down does not hold a message back
	case err != nil:
		return nil, after, err
	case instruction, result:
		after = s.engine.Elsewhere("waiting", k.Namespace, k.ID, uint64(max(r.GetRevision(), 0)))
	}
	if !shown {
		return nil, after, nil
	}
	return slices.DeleteFunc(r.GetWaits(), func(w *waitingv1.Wait) bool { return w.GetWorkItemId() != "" || !w.GetTriggered() }), after, nil
}

// Subject reads the item that a message names. It returns nil if it names none, or one
// that the agent does not have.
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
