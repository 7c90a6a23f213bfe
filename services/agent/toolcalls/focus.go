package toolcalls

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// focus sets the work item of a request that was made outside of a turn and names none to the item
// in focus (SPEC A13.2). If the call has a request id, the request memory of this plane records the
// item before the call is sent. A repetition then names the same item wherever the focus is by then,
// even if the first call was cut off in between, and gets the first answer of the tool's plane.
func (s *Service) focus(ctx context.Context, actor rpc.Actor, scope tools.Scope, t tools.Tool,
	req proto.Message,
) error {
	itemID, err := s.current(ctx, scope.Agent)
	if err != nil {
		return err
	}
	if scope.RequestID == "" {
		return t.Focus(req, itemID)
	}

	// Record it, or read what a first request recorded.
	// Not plane.Do, which would mark the response as repeated if the item is recorded, although the
	// call itself may never have been sent.
	first, _, err := journal.Do(ctx, s.engine.For(scope.Agent.Namespace, scope.Agent.ID),
		journal.Op[*state.State, *wrapperspb.StringValue]{
			Method: "CallTool/" + t.Name, Actor: plane.Recorded(actor), AgentID: scope.Agent.ID,
			RequestID: scope.RequestID,
			Args:      req,
			Decide: func(*state.State, journal.Env) (journal.Decision[*wrapperspb.StringValue], error) {
				return journal.Decision[*wrapperspb.StringValue]{Reply: wrapperspb.String(itemID), Remember: true},
					t.Focus(proto.Clone(req), itemID)
			},
		})
	if err != nil {
		return err
	}
	return t.Focus(req, first.GetValue())
}

// current returns the item in focus, "" if there is none.
func (s *Service) current(ctx context.Context, k plane.Key) (string, error) {
	conn, err := s.deps.Conn("work")
	if err != nil {
		return "", err
	}
	var reply workv1.GetWorkItemResponse
	err = invoke(rpc.WithActor(ctx, access.AgentActor(k)), conn, workv1.WorkService_GetWorkItem_FullMethodName,
		&workv1.GetWorkItemRequest{AgentId: k.ID, OmitTodoList: true}, &reply)
	if err != nil && fault.From(err).Code() == codes.InvalidArgument {
		return "", nil // it was not named and none is in focus
	}
	return reply.GetWorkItem().GetWorkItemId(), err
}
