package agent

import (
	"context"
	"fmt"
	"quartet/services/agent/ref"
	"slices"
	"strconv"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
)

// admitRead checks that a caller may look at an agent.
func admitRead(actor rpc.Actor, agentID string) error {
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	return rpc.CheckAgent(actor, agentID)
}

// shownWaits is how many waits GetAgent lists; ListWaits has them all.
const shownWaits = 100

// GetAgent reads an agent with its posture, its waits and its visible children
// (SPEC A4). It wakes nobody (SPEC X11).
func (s *Service) GetAgent(ctx context.Context, req *agentv1.GetAgentRequest) (*agentv1.GetAgentResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	type seen struct {
		rec         *agentv1.Agent
		lane        *agentv1.Lane
		delegations []*agentv1.Delegation
	}
	a, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (seen, error) {
		a := st.lookup(ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()})
		if own := a != nil && a.rec.GetSupervisorAgentId() == actor.AgentID; !own {
			// An agent sees itself and its children; whether there are others is
			// not for it to know.
			if err := rpc.CheckAgent(actor, req.GetAgentId()); err != nil {
				return seen{}, err
			}
		}
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return seen{}, err
		}
		out := seen{rec: a.rec, lane: a.lane.Counts()}
		for _, d := range a.delegations {
			out.delegations = append(out.delegations, d.rec)
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	view, waits, err := s.derived(ctx, a.rec, a.lane)
	if err != nil {
		return nil, err
	}
	resp := &agentv1.GetAgentResponse{Agent: view, Waits: waits[:min(len(waits), shownWaits)], TotalWaits: int32(len(waits))}
	for _, d := range a.delegations {
		c, err := s.child(ctx, ref.Agent{Namespace: actor.Namespace, ID: d.GetChildAgentId()})
		if err != nil {
			return nil, err
		}
		if c.rec != nil && c.rec.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETED {
			resp.Children = append(resp.Children, c.rec)
		}
	}
	return resp, nil
}

// derived is an agent as every surface shows it: its record, and what follows
// from the other planes (SPEC X6); and all its active waits and intents, in order
// of creation.
func (s *Service) derived(ctx context.Context, rec *agentv1.Agent, lane *agentv1.Lane) (*agentv1.Agent, []*waitingv1.Wait, error) {
	// Who may see the agent may see its posture; what it follows from is asked
	// for on this plane's own account.
	ctx = rpc.WithActor(ctx, rpc.Actor(*plane.System(rpc.ActorFrom(ctx).Namespace)))
	queue, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: rec.GetAgentId(), OmitPlans: true})
	if err != nil {
		return nil, nil, err
	}
	var waits, own []*waitingv1.Wait
	for token := ""; ; {
		r, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: rec.GetAgentId(), PageSize: 500, PageToken: token})
		if err != nil {
			return nil, nil, err
		}
		waits = append(waits, r.GetWaits()...)
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	for _, w := range waits {
		if w.GetWorkItemId() == "" && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			own = append(own, w)
		}
	}
	view := proto.CloneOf(rec)
	view.Lane = lane
	view.CurrentWorkItemId = queue.GetCurrent().GetWorkItemId()
	view.Posture, view.PostureReason = posture(rec, lane, queue, own)
	return view, waits, nil
}

// posture is the first that holds (SPEC section 2). A wait of a queued item is
// no posture of the agent while it has an item in focus.
func posture(a *agentv1.Agent, lane *agentv1.Lane, q *workv1.GetWorkQueueResponse, own []*waitingv1.Wait) (agentv1.Posture, string) {
	n := q.GetCounts()
	current := q.GetCurrent()
	switch {
	case a.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETING, a.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED:
		return agentv1.Posture_POSTURE_STOPPED, "it is " + lower(a.GetLifecycle().String(), "LIFECYCLE_")
	case a.GetControl() == agentv1.Control_CONTROL_STOPPED:
		return agentv1.Posture_POSTURE_STOPPED, commandedBy("stopped", a)
	case a.GetControl() == agentv1.Control_CONTROL_PAUSED:
		return agentv1.Posture_POSTURE_PAUSED, commandedBy("paused", a)
	case a.GetCurrentTurnId() != "":
		return agentv1.Posture_POSTURE_RUNNING_TURN, "turn " + a.GetCurrentTurnId() + " is open"
	case lane.GetQueued() > 0:
		return agentv1.Posture_POSTURE_QUEUED_INPUT, fmt.Sprintf("%d message(s) queued, no runner has taken the turn", lane.GetQueued())
	case current.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE:
		return agentv1.Posture_POSTURE_RUNNABLE_WORK, "the current work item " + current.GetWorkItemId() + " is runnable"
	case n.GetQueuedRunnable() > 0:
		return agentv1.Posture_POSTURE_RUNNABLE_WORK, fmt.Sprintf("%d runnable work item(s) queued", n.GetQueuedRunnable())
	}
	items := slices.Concat(q.GetTriggeredBlocked(), q.GetBlocked(), q.GetWaitingForOperator())
	if current != nil {
		items = []*workv1.WorkItem{current}
	}
	for _, want := range []struct {
		states  []workv1.SchedulingState
		kinds   []waitingv1.WaitKind
		posture agentv1.Posture
		word    string
	}{
		{[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK}, []waitingv1.WaitKind{waitingv1.WaitKind_WAIT_KIND_TASK}, agentv1.Posture_POSTURE_WAITING_TASK, "waits for a task"},
		{[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL, workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER, workv1.SchedulingState_SCHEDULING_STATE_WAITING_SYSTEM}, []waitingv1.WaitKind{waitingv1.WaitKind_WAIT_KIND_EXTERNAL, waitingv1.WaitKind_WAIT_KIND_TIMER, waitingv1.WaitKind_WAIT_KIND_SYSTEM}, agentv1.Posture_POSTURE_WAITING_EXTERNAL, "waits for an event or a time"},
		{[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR}, []waitingv1.WaitKind{waitingv1.WaitKind_WAIT_KIND_OPERATOR}, agentv1.Posture_POSTURE_WAITING_OPERATOR, "waits for an operator"},
		{[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_BLOCKED}, nil, agentv1.Posture_POSTURE_BLOCKED, "is blocked"},
	} {
		for _, it := range items {
			if slices.Contains(want.states, it.GetSchedulingState()) {
				return want.posture, fmt.Sprintf("work item %s %s: %s", it.GetWorkItemId(), want.word, it.GetBlockedBy())
			}
		}
		for _, w := range own {
			if current == nil && slices.Contains(want.kinds, w.GetKind()) {
				return want.posture, fmt.Sprintf("it %s by itself: %s", want.word, w.GetReason())
			}
		}
	}
	return agentv1.Posture_POSTURE_IDLE, "nothing is open that it could do"
}

// commandedBy says who gave the order that an agent stands under, and why.
func commandedBy(how string, a *agentv1.Agent) string {
	text := "it was " + how
	if a.GetControlBy() != "" {
		text += " by " + a.GetControlBy()
	}
	if a.GetControlReason() != "" {
		text += ": " + a.GetControlReason()
	}
	return text
}

// ListAgents reads the agents of the namespace in order of id (SPEC A4). An
// agent is shown those that it made.
func (s *Service) ListAgents(ctx context.Context, req *agentv1.ListAgentsRequest) (*agentv1.ListAgentsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleRunner, rpc.RoleService, rpc.RoleIntegration, rpc.RoleAgent); err != nil {
		return nil, err
	}
	parent := req.GetLineageParentAgentId()
	if actor.Role == rpc.RoleAgent {
		if parent != "" && parent != actor.AgentID {
			return nil, rpc.CheckAgent(actor, parent)
		}
		parent = actor.AgentID
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	from, err := page.Position("agents", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	after := ref.Agent{Namespace: actor.Namespace, ID: ""}
	if from != nil {
		after.ID = from[0]
	}
	var all []*agentv1.Agent
	for _, p := range s.engine.All() {
		part, _, err := journal.View(ctx, p, func(st *State) ([]*agentv1.Agent, error) {
			var out []*agentv1.Agent
			st.ids.AscendGreaterOrEqual(after, func(k key) bool {
				if k.Namespace != actor.Namespace || len(out) > size {
					return false
				}
				a := st.lookup(k)
				private := a.rec.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
				deleted := a.rec.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED
				if k != after && (req.GetIncludePrivate() || !private) && (req.GetIncludeDeleted() || !deleted) && (parent == "" || a.rec.GetLineageParentAgentId() == parent) {
					v := proto.CloneOf(a.rec)
					v.Lane = a.lane.Counts()
					out = append(out, v)
				}
				return true
			})
			return out, nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	slices.SortFunc(all, func(a, b *agentv1.Agent) int { return strings.Compare(a.GetAgentId(), b.GetAgentId()) })
	resp := &agentv1.ListAgentsResponse{Agents: all}
	if len(all) > size {
		resp.Agents = all[:size]
		resp.NextPageToken = page.Token("agents", all[size-1].GetAgentId())
	}
	for i, a := range resp.GetAgents() {
		if resp.Agents[i], _, err = s.derived(ctx, a, a.GetLane()); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// GetMessage reads one message.
func (s *Service) GetMessage(ctx context.Context, req *agentv1.GetMessageRequest) (*agentv1.GetMessageResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	m, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.Message, error) {
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		if m := a.lane.Get(req.GetMessageId()); m != nil {
			return m, nil
		}
		return nil, fault.NotFound.Newf("agent %q has no message %q in memory; old ones are in the event stream", req.GetAgentId(), req.GetMessageId())
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.GetMessageResponse{Message: m}, nil
}

// ListMessages reads an agent's messages in order of arrival: all that are in
// the lane or in a turn, and the newest of those that are done.
func (s *Service) ListMessages(ctx context.Context, req *agentv1.ListMessagesRequest) (*agentv1.ListMessagesResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	if _, ok := agentv1.MessageState_name[int32(req.GetState())]; !ok {
		return nil, fault.Invalid("state", strconv.Itoa(int(req.GetState())), "must be a message state")
	}
	from, err := page.Position("messages", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	ms, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) ([]*agentv1.Message, error) {
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		after := ""
		if from != nil {
			after = from[0]
		}
		var out []*agentv1.Message
		for _, id := range a.lane.Arrivals(after) {
			m := a.lane.Get(id)
			if want := req.GetState(); want == agentv1.MessageState_MESSAGE_STATE_UNSPECIFIED || m.GetState() == want {
				out = append(out, m)
			}
			if len(out) > size {
				break
			}
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	resp := &agentv1.ListMessagesResponse{}
	bytes := 0
	for i, m := range ms {
		bytes += proto.Size(m)
		if i == size || i > 0 && bytes > page.MaxBytes {
			resp.NextPageToken = page.Token("messages", ms[i-1].GetMessageId())
			break
		}
		resp.Messages = append(resp.Messages, m)
	}
	return resp, nil
}

// ListTurns reads an agent's turns, newest first.
func (s *Service) ListTurns(ctx context.Context, req *agentv1.ListTurnsRequest) (*agentv1.ListTurnsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	from, err := page.Position("turns", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	r, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.ListTurnsResponse, error) {
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		var all []*agentv1.Turn
		if a.turn != nil {
			all = append(all, a.turn.rec)
		}
		for i := len(a.turns) - 1; i >= 0; i-- {
			all = append(all, a.turns[i].rec)
		}
		if from != nil {
			at := slices.IndexFunc(all, func(t *agentv1.Turn) bool { return t.GetTurnId() == from[0] })
			if at < 0 {
				return &agentv1.ListTurnsResponse{}, nil // that turn left the memory, and so did all before it
			}
			all = all[at+1:]
		}
		resp := &agentv1.ListTurnsResponse{Turns: all}
		if len(all) > size {
			resp.Turns = all[:size]
			resp.NextPageToken = page.Token("turns", all[size-1].GetTurnId())
		}
		return resp, nil
	})
	return r, err
}
