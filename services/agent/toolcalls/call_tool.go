package toolcalls

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/briefs"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// CallTool executes one tool outside of a turn, as the caller (SPEC C4). A call that fails has a result that says so.
// An error concerns the request itself, unless ctx ends or what is to be recorded after the call fails: then the call
// may have had its effect. The round_text of a completion becomes the item's report, as in a round; WaitFor registers
// a wait and ends nothing. A call that names no work item is about the one in focus when the request was made first
// (SPEC A13.2).
func (s *Service) CallTool(ctx context.Context, req *agentv1.CallToolRequest) (*agentv1.CallToolResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		access.CheckRead(actor, req.GetAgentId()),
		fault.RequestID(req.GetRequestId()),
		fault.Text("name", req.GetName(), fault.MaxNameChars, true),
		fault.TextBytes("round_text", req.GetRoundText(), fault.MaxRoundTextBytes, false),
		tools.CheckNesting("arguments", req.GetArguments()),
	); err != nil {
		return nil, err
	}

	// Execute the call.
	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	if _, err := s.Profile(ctx, k); err != nil {
		return nil, err // the agent does not exist
	}
	c := &agentv1.ToolCall{Name: req.GetName(), Arguments: req.GetArguments()}
	out := s.CallAs(ctx, actor, tools.Scope{
		Agent: k, RequestID: req.GetRequestId(), Remaining: RoundTimeout, NoText: req.GetRoundText() == "",
	}, c)
	if err := ctx.Err(); err != nil {
		return nil, fault.From(err) // the result may be that of the expired deadline
	}
	if out.Replayed {
		rpc.Replayed(ctx)
	}
	tools.FitResult(&out, c, 0)
	clearBindingNote(out.Result)

	// The caller now has the result of a command that ended.
	if taskID := tools.CompletedTask(out.Result); taskID != "" {
		if err := s.recordAnswer(ctx, k, taskID); err != nil {
			return nil, plane.Stored(err) // the command ran
		}
	}

	// Deliver the report of an item that the call completed, as if the call were a round.
	resp := &agentv1.CallToolResponse{Result: out.Result}
	round := &agentv1.Round{
		Text: req.GetRoundText(), ToolCalls: []*agentv1.ToolCall{c}, ToolResults: []*agentv1.ToolResult{out.Result},
	}
	report := briefs.ReportOf(round)
	if report.ItemID == "" {
		return resp, nil
	}
	promotion := ""
	if req.GetRequestId() != "" {
		promotion = promotionID(req.GetRequestId())
	}
	var err error
	resp.PromotedWorkItemId, err = s.deps.Briefs.Deliver(ctx, k, report, round, promotion)
	if errors.Is(err, fault.RequestIDReused) {
		err = fault.RequestIDReused.Newf("request_id %s gave the completion another round_text before; use a new one "+
			"for a new request", req.GetRequestId()).With("request_id", req.GetRequestId())
	}
	return resp, plane.Stored(err) // the item is completed
}

// clearBindingNote corrects what the result of a pick says about the calls that follow:
// only in a turn are they bound to the item.
func clearBindingNote(r *agentv1.ToolResult) {
	if note := r.GetResult().GetFields()["binding_note"]; note != nil {
		r.Result.Fields["binding_note"] = structpb.NewStringValue("The item is in focus. No turn is open: calls that " +
			"name no work_item_id act on it.")
	}
}

// recordAnswer records that the caller has the result of a command, so that no message
// reports it again.
func (s *Service) recordAnswer(ctx context.Context, k plane.Key, taskID string) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, struct{}]{
		Method: "NoteAnswer", AgentID: k.ID,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			a, err := st.Find(k.Namespace, k.ID)
			if err != nil {
				return d, err
			}
			d.Events = a.RecordAnswer(env, taskID)
			return d, nil
		},
	})
	return err
}

// promotionID returns the request id of the report that belongs to a completion. A
// request id has up to 128 characters, so it is hashed rather than extended.
func promotionID(requestID string) string { return id.Derived("promote_", requestID) }
