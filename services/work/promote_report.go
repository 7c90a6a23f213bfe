package work

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
)

// PromoteReport makes the text of a round the report of a completed item (SPEC W7). The agent
// plane decides which round qualifies; this plane ensures that an item has at most one report,
// which is never replaced. For an item that is open or has a report, the call changes nothing
// and returns the item, with promoted false and no error.
func (s *Service) PromoteReport(ctx context.Context, req *workv1.PromoteReportRequest) (*workv1.PromoteReportResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admit(actor, req.GetAgentId()),
		fault.ID("work_item_id", req.GetWorkItemId(), "wi_"),
		fault.TextBytes("text", req.GetText(), fault.MaxRoundTextBytes, true),
	); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *workv1.PromoteReportResponse]{
		Frees: true, Method: "PromoteReport", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.PromoteReportResponse], error) {
			return decidePromote(st, env, req)
		},
		Answer: answerPromote,
	})
}

// decidePromote is the rule of PromoteReport, which makes a text the only report of a completed item. It replies
// without events if the item is open or has a report; otherwise answerPromote makes the reply.
func decidePromote(s *State, env journal.Env, req *workv1.PromoteReportRequest) (
	journal.Decision[*workv1.PromoteReportResponse], error,
) {
	var none journal.Decision[*workv1.PromoteReportResponse]
	old, err := s.owned(env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId())
	if err != nil {
		return none, err
	}
	if old.GetState() != workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED || old.GetResultBriefId() != "" {
		return journal.Decision[*workv1.PromoteReportResponse]{Reply: &workv1.PromoteReportResponse{
			WorkItem: derive.View(old, s.current(env.Actor.Namespace, req.GetAgentId())),
		}}, nil
	}
	it := next(old, env)
	it.ResultSummary = req.GetText()
	it.ResultBriefId = env.NewID("brf_")
	it.CompletedInTurnId = req.GetTurnId()
	ev := itemEvent(it, old, &workv1.ReportPromoted{
		WorkItem: it, Text: req.GetText(), BriefId: it.GetResultBriefId(), TurnId: req.GetTurnId(),
		Warnings: reportWarnings(old, req.GetWarnings()),
	})
	return journal.Decision[*workv1.PromoteReportResponse]{Events: []*journal.Event{ev}}, nil
}

// reportWarnings returns the warnings that are stored with the report: that todos of the item
// are not completed, and, of the given ones, that tasks were running when it was completed.
func reportWarnings(it *workv1.WorkItemRecord, given []*workv1.Warning) []*workv1.Warning {
	kept := unfinishedTodos(it.GetTodoList())
	for _, w := range given {
		if w.GetKind() == workv1.WarningKind_WARNING_KIND_ACTIVE_TASKS {
			kept = append(kept, w)
		}
	}
	return kept
}

var answerPromote = journal.AnswerOf(func(p *workv1.ReportPromoted) *workv1.PromoteReportResponse {
	return &workv1.PromoteReportResponse{WorkItem: derive.View(p.GetWorkItem(), ""), Promoted: true}
})
