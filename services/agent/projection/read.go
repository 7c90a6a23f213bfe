package projection

import (
	"context"
	"slices"
	"strconv"
	"strings"

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

// Read reads an agent's work for the turn of a candidate, each fact once.
//
// A message and what it did to a wait are facts of two or three planes: an operator's
// message ends a wait in the waiting plane, which then detaches it from its item in the
// work plane. So that no turn shows a message beside an item that still waits for it,
// the reads name positions in the journals (plane.After): the waiting plane answers when
// it has consumed the event that the message stems from, and the work plane when it has
// consumed what the waiting plane answered from. A plane that does not get there in time
// is read as it is.
//
// The turn is bound to the item that the message is about, else to that of a wait that it
// reached, else to the current one (SPEC A13). Only an open item of the agent binds.
func (s *Service) Read(ctx context.Context, c *state.Candidate) (*Projection, error) {
	ctx = rpc.WithActor(ctx, access.AgentActor(c.Agent))
	p := &Projection{wake: c.Wake, agentID: c.Agent.ID, stalled: c.Stalled}
	after, err := s.readWaits(ctx, c, p)
	if err != nil {
		return nil, err
	}
	items, rules := bindable(c.Message, p.reached)
	if c.Taken != nil { // it is bound already
		items, rules = []string{c.Taken.GetBoundWorkItemId()}, map[string]agentv1.Binding{
			c.Taken.GetBoundWorkItemId(): c.Taken.GetBinding(),
		}
	}
	if p.GetWorkQueueResponse, err = s.deps.Work.GetWorkQueue(plane.After(ctx, after), &workv1.GetWorkQueueRequest{
		AgentId: c.Agent.ID, WorkItemIds: items,
	}); err != nil {
		return nil, err
	}
	p.bind(c.Message.GetTick(), rules, c.Taken == nil)
	return p, s.addHistory(ctx, c.Agent, p, c.Message)
}

// bindable returns the items that a turn about a message may be bound to, in order of
// preference, each with its rule: the item that the message is about, and those of the
// waits that it reached.
func bindable(m *agentv1.Message, reached []*waitingv1.Wait) (items []string, rules map[string]agentv1.Binding) {
	rules = map[string]agentv1.Binding{}
	add := func(id string, rule agentv1.Binding) {
		if _, known := rules[id]; id != "" && !known {
			items, rules[id] = append(items, id), rule
		}
	}
	add(m.GetWorkItemId(), agentv1.Binding_BINDING_MESSAGE)
	for _, w := range reached {
		add(w.GetWorkItemId(), agentv1.Binding_BINDING_WAIT)
	}
	return items, rules
}

// bind binds the turn to the item that the work plane named, which is the first open one of those
// that bindable returned; else, if orFocus is set, to the item in focus. A tick that asks the agent
// to choose an item binds none.
func (p *Projection) bind(tick *agentv1.Tick, rules map[string]agentv1.Binding, orFocus bool) {
	if tick.GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED {
		return
	}
	switch {
	case p.GetNamed() != nil:
		p.item, p.binding = p.GetNamed(), rules[p.GetNamed().GetWorkItemId()]
	case orFocus && p.GetCurrent() != nil:
		p.item, p.binding = p.GetCurrent(), agentv1.Binding_BINDING_CURRENT
	}
}

// readWaits reads what the waiting plane knows about the message of a candidate: the waits
// that it resolved or was delivered to, the waits of the agent itself, which no
// item shows, and the position in the waiting journal that the work plane must have consumed
// for its items to show the same. A tick about an item
// needs none of it.
func (s *Service) readWaits(ctx context.Context, c *state.Candidate, p *Projection) (after plane.Position, err error) {
	m, k := c.Message, c.Agent

	// A message with the authority to instruct the agent may have ended one of its waits. So may a
	// supervisor's, whatever its authority, and the end of a task. The waiting plane decides which.
	isInstruction := m.GetAuthority() == agentv1.Authority_AUTHORITY_OPERATOR_INSTRUCTION ||
		m.GetOrigin() == agentv1.Origin_ORIGIN_PARENT
	isResult := m.GetTaskId() != "" && !state.IsQuestion(m)

	// The turn may be about a wait of the agent itself. A turn that is to choose an item also shows what the agent
	// itself waits for.
	isCallback := m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT
	aboutOwnWait := isCallback || c.Wake != nil ||
		m.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT
	picksItem := m.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED

	// Name what the waiting plane must have consumed, and for a callback, what the work plane must have.
	req := &waitingv1.ListWaitsRequest{
		AgentId: k.ID, AlsoActive: aboutOwnWait || picksItem, WaitIds: c.Wake.GetEndedWaitIds(),
	}
	var waitingAfter plane.Position
	switch {
	case isInstruction:
		waitingAfter, req.EndedBy = s.engine.At(k.Namespace, k.ID, c.QueuedAt), m.GetMessageId()
	case isResult:
		waitingAfter, req.EndedBy = s.engine.Consumed("task", k.Namespace, k.ID), m.GetTaskId()
	case isCallback:
		after = s.engine.Consumed("waiting", k.Namespace, k.ID)
	}

	// Read the timer, and the waits if the turn is about any.
	if err := s.readTimer(ctx, m, p); err != nil {
		return after, err
	}
	if !isInstruction && !isResult && !aboutOwnWait && !picksItem {
		return after, nil
	}
	r, err := access.AllWaits(plane.After(ctx, waitingAfter), s.deps.Waiting, req)
	switch {
	case err != nil && !aboutOwnWait && fault.From(err).Code() == codes.Unavailable:
		return after, nil // a plane that is down does not hold a message back
	case err != nil:
		return after, err
	case isInstruction, isResult:
		after = s.engine.Elsewhere("waiting", k.Namespace, k.ID, uint64(max(r.GetRevision(), 0)))
	}

	for _, w := range r.GetWaits() {
		endedByIt := req.GetEndedBy() != "" && w.GetEndedBy() == req.GetEndedBy()
		if endedByIt || slices.Contains(m.GetWaitIds(), w.GetWaitId()) ||
			slices.Contains(req.GetWaitIds(), w.GetWaitId()) {
			p.reached = append(p.reached, w)
		}
		ofAgent := w.GetWorkItemId() == ""
		if ofAgent && w.GetTriggered() {
			p.ownWaits = append(p.ownWaits, w)
		}
		if ofAgent && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT &&
			w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
			p.standing = append(p.standing, w)
		}
	}
	return after, nil
}

// readTimer reads how often the timer of a message has fired since the message was queued: while a
// message about the timer is queued, further firings queue none. A timer that is no longer in
// memory counts as having fired once.
func (s *Service) readTimer(ctx context.Context, m *agentv1.Message, p *Projection) error {
	if m.GetTimerId() == "" {
		return nil
	}
	p.fired = 1
	_, number, _ := strings.Cut(m.GetCausationId(), "/")
	first, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil //nolint:nilerr // a message of an earlier version: its timer fired once at least
	}
	r, err := s.deps.Waiting.GetTimer(ctx, &waitingv1.GetTimerRequest{AgentId: m.GetAgentId(), TimerId: m.GetTimerId()})
	switch {
	case err == nil:
		p.fired += max(0, r.GetTimer().GetFireCount()-first)
		return nil
	case fault.From(err).Code() == codes.NotFound, fault.From(err).Code() == codes.Unavailable:
		return nil // a plane that is down does not hold a message back
	}
	return err
}

// Subject reads the item that a message names. It returns nil if the message names none, or one
// that the agent does not have. The only error is that the work plane is unavailable.
func (s *Service) Subject(ctx context.Context, m *agentv1.Message) (*workv1.WorkItem, error) {
	if m.GetWorkItemId() == "" {
		return nil, nil
	}
	r, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{
		AgentId:    m.GetAgentId(),
		WorkItemId: m.GetWorkItemId(), OmitTodoList: true,
	})
	if err != nil && fault.From(err).Code() == codes.Unavailable {
		return nil, err
	}
	return r.GetWorkItem(), nil
}
