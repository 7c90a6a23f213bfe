package agent

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
)

// recentMutations is how far back a completion is looked for that a crash cut
// off: after it an item is written once more at most, by its report.
const recentMutations = 10

// report is what a round's text is the report of.
type report struct {
	itemID   string // empty: of nothing
	warnings []*workv1.Warning
	notices  []string // why not
}

// reportOf finds the one item that a round completed, of those in focus (SPEC W7).
func reportOf(round *agentv1.Round) report {
	completions := 0
	candidate := ""
	var warnings []*workv1.Warning
	seen := map[string]bool{}
	for _, r := range round.GetToolResults() {
		if r.GetToolName() != toolCompleteWorkItem || r.GetStatus() != statusSuccess {
			continue
		}
		f := r.GetResult().GetFields()
		item := f["work_item"].GetStructValue().GetFields()
		again := f["already_completed"].GetBoolValue()
		id := item["work_item_id"].GetStringValue()
		if again && (item["result_brief_id"].GetStringValue() != "" || seen[id]) {
			continue // it has its report, or this very round completed it
		}
		seen[id] = true
		completions++
		if again || f["was_current"].GetBoolValue() {
			candidate, warnings = id, warningsOf(r)
		}
	}
	switch {
	case completions == 0:
		return report{}
	case completions > 1:
		return report{notices: []string{"multiple_completions: the round completed several work items, so its text is the report of none of them"}}
	case strings.TrimSpace(round.GetText()) == "":
		return report{notices: []string{"report_missing: write the report as text in the same round as CompleteWorkItem; completing the item again with text adds it"}}
	case candidate == "":
		return report{notices: []string{"not_current: the completed work item was not in focus, so the text is not its report"}}
	}
	return report{itemID: candidate, warnings: warnings}
}

// promote makes the round's text the report of the one item completed in it
// (SPEC W7). It may run again after a crash: an item has one report for ever.
func (s *Service) promote(ctx context.Context, k key, runID string, round *agentv1.Round) (itemID string, notices []string, err error) {
	of := reportOf(round)
	if of.itemID == "" {
		return "", of.notices, nil
	}
	itemID, err = s.deliver(s.asRun(ctx, k, runID), k, of, round, fmt.Sprintf("%s/%d/promote", runID, round.GetIndex()))
	return itemID, nil, err
}

// deliver hands a report to the work plane. It gives the item that has it.
func (s *Service) deliver(ctx context.Context, k key, of report, round *agentv1.Round, requestID string) (string, error) {
	done, err := s.deps.Work.PromoteReport(ctx, &promoteRequest{
		AgentId: k.ID, WorkItemId: of.itemID, Text: round.GetText(), TurnId: round.GetTurnId(),
		RequestId: requestID, Warnings: of.warnings,
	})
	if err != nil || done.GetWorkItem().GetResultBriefId() == "" {
		return "", err
	}
	return of.itemID, nil
}

// warningsOf reads a completion's warnings back from its recorded result. What
// is not the work plane's, such as report_missing, does not fit and is left out.
func warningsOf(r *agentv1.ToolResult) []*workv1.Warning {
	var out []*workv1.Warning
	for _, w := range r.GetWarnings() {
		raw, err := pbjson.Append(nil, w)
		m := &workv1.Warning{}
		if err == nil && pbjson.Unmarshal(raw, m) == nil {
			out = append(out, m)
		}
	}
	return out
}

// recoverRound finishes what a crash or a lost runner left of the newest round:
// a completion that is recorded keeps its report. Calls without a result are
// not run again (SPEC A6). It gives the open turn of the run, nil if it ended, and
// whether the round's text is a report by now.
func (s *Service) recoverRound(ctx context.Context, k key, runID string) (open *agentv1.Turn, reported bool, err error) {
	type found struct {
		turn  *agentv1.Turn
		round *agentv1.Round
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (found, error) {
		a := st.lookup(k)
		if a == nil || a.turn == nil || a.turn.rec.GetRunId() != runID {
			return found{}, nil
		}
		f := found{turn: a.turn.rec}
		if n := len(a.turn.rounds); n > 0 && !a.turn.rounds[n-1].GetSettled() {
			f.round = a.turn.rounds[n-1]
		}
		return f, nil
	})
	if err != nil || f.round == nil {
		return f.turn, false, err
	}
	round, err := s.withLanded(ctx, k, runID, f.round)
	if err != nil {
		return nil, false, err
	}
	itemID, _, err := s.promote(ctx, k, runID, round)
	return f.turn, itemID != "", err
}

// withLanded adds the completion that was under way when the round was cut off,
// if it reached the work plane: the item's history names the request that
// completed it. To ask by the request id itself would run the call if it had
// not landed, and recovery runs nothing again.
func (s *Service) withLanded(ctx context.Context, k key, runID string, round *agentv1.Round) (*agentv1.Round, error) {
	at := len(round.GetToolResults())
	if at >= len(round.GetToolCalls()) || round.GetToolCalls()[at].GetName() != toolCompleteWorkItem {
		return round, nil
	}
	itemID := round.GetToolCalls()[at].GetArguments().GetFields()["work_item_id"].GetStringValue()
	h, err := s.deps.Work.ListWorkItemHistory(s.asRun(ctx, k, runID), &workv1.ListWorkItemHistoryRequest{
		AgentId: k.ID, WorkItemId: itemID, NewestFirst: true, PageSize: recentMutations,
	})
	if err != nil {
		if fault.From(err).Code() == codes.Unavailable {
			return nil, err
		}
		return round, nil // an item that is not there, or not this agent's, was not completed
	}
	for i, m := range h.GetMutations() {
		if m.GetEventType() != "work_item_completed" || m.GetRequestId() != callID(runID, round, at) {
			continue
		}
		// Newest first: the release of the focus, of the same commit, comes before.
		wasCurrent := i > 0 && h.GetMutations()[i-1].GetEventType() == "focus_released"
		result, err := structpb.NewStruct(map[string]any{"work_item": map[string]any{"work_item_id": itemID}, "was_current": wasCurrent})
		if err != nil {
			return nil, fault.Internal(err)
		}
		next := proto.CloneOf(round)
		next.ToolResults = append(next.ToolResults, &agentv1.ToolResult{ToolName: toolCompleteWorkItem, Status: statusSuccess, Result: result})
		return next, nil
	}
	return round, nil
}
