package messages

import (
	"context"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// GetMessage reads one message. It returns NOT_FOUND if the message is not in memory.
func (s *Service) GetMessage(ctx context.Context, req *agentv1.GetMessageRequest) (*agentv1.GetMessageResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	m, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.Message, error) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		if m := a.Lane.Get(req.GetMessageId()); m != nil {
			return m, nil
		}
		return nil, fault.NotFound.Newf("agent %q has no message %q in memory; old ones are in the event stream",
			req.GetAgentId(), req.GetMessageId())
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.GetMessageResponse{Message: m}, nil
}

// ListMessages reads an agent's messages in order of arrival: all that are queued or in a
// turn, and the newest of those that are finished.
func (s *Service) ListMessages(ctx context.Context, req *agentv1.ListMessagesRequest) (*agentv1.ListMessagesResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	list, err := page.Read("messages", req)
	if err != nil {
		return nil, err
	}
	ms, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) ([]*agentv1.Message, error) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		var out []*agentv1.Message
		for _, m := range a.Lane.Arrived(list.After) {
			if want := req.GetState(); want == agentv1.MessageState_MESSAGE_STATE_UNSPECIFIED || m.GetState() == want {
				out = append(out, m)
			}
			if len(out) > list.Size {
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
		if i == list.Size || i > 0 && bytes > page.MaxBytes {
			resp.NextPageToken = list.Next(ms[i-1].GetMessageId())
			break
		}
		resp.Messages = append(resp.Messages, m)
	}
	return resp, nil
}
