package briefs

import (
	"context"
	"fmt"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/tools"
)

// Report says of which work item the text of a round is the report, if it is the report of one.
type Report struct {
	ItemID   string // empty: the text is no report
	warnings []*workv1.Warning
	notices  []string // why the text is no report
}

// ReportOf finds the one work item that a round completed, wherever the focus was (SPEC W7). A
// round that completed several items, or has no text, is no report, and a notice says so. The
// completion of an item that has its report already does not count.
func ReportOf(round *agentv1.Round) Report {
	completions := 0
	candidate := ""
	var warnings []*workv1.Warning
	seen := map[string]bool{}
	for _, r := range round.GetToolResults() {
		if r.GetToolName() != tools.ToolCompleteWorkItem || r.GetStatus() != tools.StatusSuccess {
			continue
		}
		f := r.GetResult().GetFields()
		item := f["work_item"].GetStructValue().GetFields()
		again := f["already_completed"].GetBoolValue()
		id := item["work_item_id"].GetStringValue()
		if again && (item["result_brief_id"].GetStringValue() != "" || seen[id]) {
			continue // the item has its report, or this round completed it a second time
		}
		seen[id] = true
		completions++
		candidate, warnings = id, warningsOf(r)
	}
	switch {
	case completions == 0:
		return Report{}
	case completions > 1:
		return Report{notices: []string{"multiple_completions: the round completed several work items, so its text " +
			"is the report of none of them"}}
	case strings.TrimSpace(round.GetText()) == "":
		return Report{notices: []string{"report_missing: write the report as text in the same round as " +
			"CompleteWorkItem; completing the item again with text adds it"}}
	}
	return Report{ItemID: candidate, warnings: warnings}
}

// Promote makes a round's text the report of the one item that the round completed (SPEC
// W7). It returns that item, or "" and the notices that say why the text is no report; a round
// that completed nothing has neither. It may be repeated after a crash: an item has one report.
func (s *Service) Promote(ctx context.Context, k plane.Key, runID string, round *agentv1.Round) (itemID string,
	notices []string, err error,
) {
	of := ReportOf(round)
	if of.ItemID == "" {
		return "", of.notices, nil
	}
	itemID, err = s.Deliver(access.AsRun(ctx, k, runID), k, of, round,
		fmt.Sprintf("%s/%d/promote", runID, round.GetIndex()))
	return itemID, nil, err
}

// Deliver sends a report to the work plane. If the item already has a report, it keeps that one and
// ignores round's text. Deliver returns the item's id if the item has a report now, from this call or
// an earlier one, and "" if it has none because it is not completed.
func (s *Service) Deliver(ctx context.Context, k plane.Key, of Report, round *agentv1.Round, requestID string) (string,
	error,
) {
	done, err := s.deps.Work.PromoteReport(ctx, &workv1.PromoteReportRequest{
		AgentId: k.ID, WorkItemId: of.ItemID, Text: round.GetText(), TurnId: round.GetTurnId(),
		RequestId: requestID, Warnings: of.warnings,
	})
	if err != nil || done.GetWorkItem().GetResultBriefId() == "" {
		return "", err
	}
	return of.ItemID, nil
}

// warningsOf decodes the warnings of a completion from its recorded result. Warnings that
// are not the work plane's, such as report_missing, are left out.
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
