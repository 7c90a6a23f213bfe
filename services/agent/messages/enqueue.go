package messages

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

// EnqueueMessage adds a message to an agent's lane (SPEC A5). It never changes items or
// focus.
func (s *Service) EnqueueMessage(ctx context.Context, req *agentv1.EnqueueMessageRequest) (
	*agentv1.EnqueueMessageResponse, error,
) {
	m, err := admitMessage(rpc.ActorFrom(ctx), req)
	if err == nil {
		err = admitSender(rpc.ActorFrom(ctx), m.GetKind(), req)
	}
	if err != nil {
		return nil, err
	}
	var refused error
	if m.GetWorkItemId() != "" {
		_, refused = s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{
			AgentId:    m.GetAgentId(),
			WorkItemId: m.GetWorkItemId(), OmitTodoList: true,
		})
	}
	unanswered, err := s.checkAnswer(ctx, m)
	if err != nil {
		return nil, err
	}
	// The sender of a follow-up is left out of the arguments that a repeated request id is compared
	// with, so that a repetition from another run gets the first response.
	args := proto.CloneOf(req)
	args.SenderRunId, args.MaxAuthority = "", agentv1.Authority_AUTHORITY_UNSPECIFIED
	if m.Authority, err = s.senderAuthority(ctx, req); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.EnqueueMessageResponse]{
		Method: "EnqueueMessage", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: args,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.EnqueueMessageResponse], error) {
			if refused != nil { // refused in the rule, so that a repeated request gets its first response
				return journal.Decision[*agentv1.EnqueueMessageResponse]{}, refused
			}
			d, err := decideEnqueue(st, env, m)
			if err == nil && unanswered != nil {
				return journal.Decision[*agentv1.EnqueueMessageResponse]{}, unanswered
			}
			return d, err
		},
		Answer: answerEnqueue,
	})
}

// The kinds of messages that callers may send, by role. All other kinds are made by the
// runtime only (SPEC A5, X15).
var (
	operatorKinds = []agentv1.MessageKind{
		agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
		agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT, agentv1.MessageKind_MESSAGE_KIND_WEBHOOK_EVENT,
	}
	integrationKinds = []agentv1.MessageKind{
		agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT,
		agentv1.MessageKind_MESSAGE_KIND_WEBHOOK_EVENT,
	}
)

// admitMessage validates a request and returns its message. The sender's role determines which
// kinds and priorities are allowed and which kind is the default; the origin follows from the kind.
func admitMessage(actor rpc.Actor, req *agentv1.EnqueueMessageRequest) (*agentv1.Message, error) {
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := fault.RequestID(req.GetRequestId()); err != nil {
		return nil, err
	}
	switch {
	case actor.Role == rpc.RoleService && req.GetKind() == agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP &&
		req.GetWorkItemId() != "":
		return nil, fault.Invalid("work_item_id", req.GetWorkItemId(),
			"must be empty: a parent's item is not its child's")
	case req.GetText() == "" && len(req.GetData()) == 0:
		return nil, fault.Invalid("text", "", "must not be empty (or give data)")
	case req.GetText() != "" && len(req.GetData()) > 0:
		return nil, fault.Invalid("data", fmt.Sprintf("%d bytes", len(req.GetData())),
			"must not come together with text")
	}
	if err := fault.TextBytes("text", req.GetText(), fault.MaxMessageBytes, false); err != nil {
		return nil, err
	}
	if actor.Role != rpc.RoleService { // external content is delivered as it is
		if err := fault.NotBlank("text", req.GetText()); err != nil {
			return nil, err
		}
	}
	if err := fault.Bytes("data", len(req.GetData()), fault.MaxMessageBytes); err != nil {
		return nil, err
	}
	if err := fault.Text("content_type", req.GetContentType(), 255, false); err != nil {
		return nil, err
	}
	if err := fault.Text("correlation_id", req.GetCorrelationId(), 256, false); err != nil {
		return nil, err
	}
	if req.GetWorkItemId() != "" {
		if err := fault.ID("work_item_id", req.GetWorkItemId(), "wi_"); err != nil {
			return nil, err
		}
	}
	operator := actor.HasAny(rpc.RoleAdmin, rpc.RoleOperator)
	kind, allowed := req.GetKind(), integrationKinds
	if actor.Role == rpc.RoleService {
		// The task plane forwards what a supervisor sends to its child.
		allowed = []agentv1.MessageKind{
			agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT, agentv1.MessageKind_MESSAGE_KIND_WEBHOOK_EVENT,
			agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP,
		}
	}
	if operator {
		allowed = operatorKinds
	}
	if kind == agentv1.MessageKind_MESSAGE_KIND_UNSPECIFIED {
		kind = allowed[0]
	}
	if !slices.Contains(allowed, kind) {
		return nil,
			fault.PermissionDenied.Newf("messages of kind %s are made by the runtime or by another role than %s", kind,
				actor.Role).
				With("kind", kind.String()).WithField("kind", "must be a kind that your role may send")
	}
	urgent := req.GetPriority() == agentv1.Priority_PRIORITY_INTERJECT ||
		req.GetPriority() == agentv1.Priority_PRIORITY_NEXT
	if urgent && !operator {
		return nil, fault.PermissionDenied.Newf("priority %s is for operators; use normal or background",
			req.GetPriority())
	}
	m := &agentv1.Message{
		AgentId: req.GetAgentId(), Kind: kind, Text: req.GetText(), Data: req.GetData(),
		ContentType: req.GetContentType(),
		Priority:    req.GetPriority(), CorrelationId: req.GetCorrelationId(), WorkItemId: req.GetWorkItemId(),
		AnsweredWaitId: req.GetAnsweredWaitId(),
	}
	switch kind {
	case agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT:
		m.Origin = agentv1.Origin_ORIGIN_OPERATOR
	case agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT:
		m.Origin = agentv1.Origin_ORIGIN_CHANNEL
	case agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP:
		m.Origin = agentv1.Origin_ORIGIN_PARENT
	default:
		m.Origin = agentv1.Origin_ORIGIN_WEBHOOK
	}
	return m, nil
}

func decideEnqueue(s *state.State, env journal.Env, m *agentv1.Message) (
	journal.Decision[*agentv1.EnqueueMessageResponse], error,
) {
	var none journal.Decision[*agentv1.EnqueueMessageResponse]
	a, err := s.Find(env.Actor.Namespace, m.GetAgentId())
	if err != nil {
		return none, err
	}
	operator := m.GetOrigin() == agentv1.Origin_ORIGIN_OPERATOR
	followUp := m.GetOrigin() == agentv1.Origin_ORIGIN_PARENT
	private := a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
	switch {
	case private && !followUp:
		return none, fault.PermissionDenied.Newf("agent %q is private: only its supervisor %q reaches it, with "+
			"SendTaskInput", m.GetAgentId(), a.Record.GetSupervisorAgentId()).With("agent_id", m.GetAgentId())
	case !private && followUp:
		return none, fault.PermissionDenied.Newf("agent %q has no supervisor that could follow up", m.GetAgentId()).
			With("agent_id", m.GetAgentId())
	case a.CheckActive() != nil:
		return none, a.CheckActive()
	case a.Record.GetControl() == agentv1.Control_CONTROL_STOPPED && !operator && !followUp:
		return none, fault.AgentStopped.Newf("agent %q is stopped; start it first", m.GetAgentId()).
			With("agent_id", m.GetAgentId())
	}
	if err := lane.Room(m.GetAgentId(), a.Lane.Len(), a.Lane.Bytes()); err != nil {
		return none, err
	}
	msg := lane.NewMessage(env, proto.CloneOf(m)) // a rule may run twice
	return journal.Decision[*agentv1.EnqueueMessageResponse]{
		Events: []*journal.Event{lane.Event(msg, &agentv1.MessageQueued{Message: msg})},
	}, nil
}

var answerEnqueue = journal.AnswerOf(func(p *agentv1.MessageQueued) *agentv1.EnqueueMessageResponse {
	return &agentv1.EnqueueMessageResponse{MessageId: p.GetMessage().GetMessageId(), Message: p.GetMessage()}
})
