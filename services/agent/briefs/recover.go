package briefs

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// recentMutations is how many of an item's newest mutations are searched for a completion
// that a crash cut off. After a completion an item is written at most once more, by its
// report.
const recentMutations = 10

// Recover finishes what a crash or a lost runner left of the newest round: an item whose
// completion is recorded gets its report. Calls without a result are not executed again
// (SPEC A6). It returns the open turn of the run, nil if the run has ended, and whether
// the round's text is a report now.
func (s *Service) Recover(ctx context.Context, k plane.Key, runID string) (open *agentv1.Turn, reported bool,
	err error,
) {
	type found struct {
		turn  *agentv1.Turn
		round *agentv1.Round
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a := st.Lookup(k)
		if a == nil || a.OpenTurn == nil || a.OpenTurn.Record.GetRunId() != runID {
			return found{}, nil
		}
		f := found{turn: a.OpenTurn.Record}
		if n := len(a.OpenTurn.Rounds); n > 0 && !a.OpenTurn.Rounds[n-1].GetSettled() {
			f.round = a.OpenTurn.Rounds[n-1]
		}
		return f, nil
	})
	if err != nil || f.round == nil {
		return f.turn, false, err
	}
	round, err := s.withLandedCompletion(ctx, k, f.turn, f.round)
	if err != nil {
		return nil, false, err
	}
	itemID, _, err := s.Promote(ctx, k, runID, round)
	return f.turn, itemID != "", err
}

// withLandedCompletion looks at the first call of a round that has no result. If it is a completion that
// the work plane executed, it returns a copy of the round with a result for that call, and otherwise
// the round itself. It looks for the request id of the call in the item's history; repeating the request
// would execute a call that had not arrived. A call that names no item is about the item of the turn.
func (s *Service) withLandedCompletion(ctx context.Context, k plane.Key, turn *agentv1.Turn, round *agentv1.Round) (
	*agentv1.Round, error,
) {
	at := len(round.GetToolResults())
	if at >= len(round.GetToolCalls()) || round.GetToolCalls()[at].GetName() != tools.ToolCompleteWorkItem {
		return round, nil
	}
	itemID := round.GetToolCalls()[at].GetArguments().GetFields()["work_item_id"].GetStringValue()
	if itemID == "" {
		itemID = turn.GetWorkItemId()
	}
	runID := turn.GetRunId()
	h, err := s.deps.Work.ListWorkItemHistory(access.AsRun(ctx, k, runID), &workv1.ListWorkItemHistoryRequest{
		AgentId: k.ID, WorkItemId: itemID, NewestFirst: true, PageSize: recentMutations,
	})
	if err != nil {
		if fault.From(err).Code() == codes.Unavailable {
			return nil, err
		}
		return round, nil // an item that does not exist, or is another agent's, was not completed
	}
	for _, m := range h.GetMutations() {
		if m.GetEventType() != "work_item_completed" || m.GetRequestId() != tools.CallRequestID(runID, round, at) {
			continue
		}
		result, err := structpb.NewStruct(map[string]any{"work_item": map[string]any{"work_item_id": itemID}})
		if err != nil {
			return nil, fault.Internal(err)
		}
		next := proto.CloneOf(round)
		next.ToolResults = append(next.ToolResults, &agentv1.ToolResult{
			ToolName: tools.ToolCompleteWorkItem,
			Status:   tools.StatusSuccess, Result: result,
		})
		return next, nil
	}
	return round, nil
}
