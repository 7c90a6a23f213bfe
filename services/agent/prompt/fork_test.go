package prompt

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// secret marks what belongs to one item alone.
func secret(id string) string { return "secret of " + id + "." }

// A10: whatever the parent has, the view stays within its budget, has its
// mandatory parts, is the same again, and shows another item only by the rules.
func TestA10_TheInheritedViewIsBoundedAndLeaksNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Fork{Message: "Do it. " + words.Draw(t, "message")}
		if rapid.Bool().Draw(t, "focus") {
			in.Current = item(t, "current")
			in.Current.Objective = rapid.StringN(1, 2000, 8000).Filter(utf8.ValidString).Draw(t, "long objective")
			for i := range rapid.IntRange(0, 200).Draw(t, "many todos") {
				in.Current.TodoList = append(in.Current.TodoList,
					&workv1.TodoItem{
						Text:  fmt.Sprint("todo ", i, strings.Repeat(" x", 400)),
						State: workv1.TodoState_TODO_STATE_PENDING,
					})
			}
			for i := range rapid.IntRange(0, 40).Draw(t, "waits") {
				in.Current.Waits = append(in.Current.Waits, &workv1.AttachedWait{
					Reason:   fmt.Sprint("wait ", i),
					Resource: words.Draw(t, "resource"),
				})
			}
		}
		allowed := map[string]bool{}
		n := rapid.IntRange(0, 12).Draw(t, "others")
		for i := range n {
			id := fmt.Sprint("wi_other", string(rune('a'+i)))
			o := item(t, strings.TrimPrefix(id, "wi_"))
			o.Objective, o.BlockedBy, o.ResultSummary = secret(id), secret(id), secret(id)
			o.PlanArtifact.Preview = secret(id)
			in.Others = append(in.Others, o)
			named := true
			switch rapid.IntRange(0, 9).Draw(t, "rule") {
			case 0:
				in.Message += " See " + id + "."
			case 1:
				if in.Current != nil {
					in.Current.BlockedBy += " after " + id
				}
			case 2:
				if in.Current != nil {
					in.Current.Waits = append(in.Current.Waits, &workv1.AttachedWait{Reason: "until", Resource: id})
				}
			case 3:
				if in.Current != nil {
					in.Current.PlanArtifact.Preview += "\nobey " + id + ","
				}
			default:
				named = false
			}
			allowed[id] = named
		}
		for i := range rapid.IntRange(0, 12).Draw(t, "rounds") {
			in.Trace = append(in.Trace, round(i, words.Draw(t, "said"), "UpdateWorkItem", "success",
				map[string]any{"blocked_by": "why"}))
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "reports") {
			d := &agentv1.Delegation{
				Label: fmt.Sprint("job ", i), Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED,
				ResultSummary: "report of the current item", ParentWorkItemId: in.Current.GetWorkItemId(),
			}
			if rapid.Bool().Draw(t, "elsewhere") {
				d.ParentWorkItemId, d.ResultSummary = "wi_elsewhere", secret("wi_elsewhere")
			}
			in.Reports = append(in.Reports, d)
		}
		text := Inherit(in)
		require.LessOrEqual(t, Tokens(text), ForkBudget)
		require.True(t, utf8.ValidString(text))
		require.Equal(t, text, Inherit(in))
		if in.Current != nil {
			require.Contains(t, text, "Objective: "+indented(in.Current.GetObjective()))
			require.Contains(t, text, in.Current.GetPlanArtifact().GetPath())
			require.Contains(t, text, oneLine(in.Current.GetBlockedBy(), noteChars))
		}
		require.NotContains(t, text, secret("wi_elsewhere"))
		shown := 0
		for id, may := range allowed {
			if strings.Contains(text, secret(id)) {
				require.True(t, may, "%s is nobody's business:\n%s", id, text)
				shown++
			}
		}
		require.LessOrEqual(t, shown, ForkOthers)
	})
}

// A10: what a usual item has is there whole.
func TestA10_TheInheritedView(t *testing.T) {
	in := Fork{
		Message: "Check what wi_b says",
		Current: &workv1.WorkItem{
			WorkItemId: "wi_a", Objective: "ship it\nsafely", BlockedBy: "needs wi_c",
			SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_BLOCKED,
			PlanStatus:      workv1.PlanStatus_PLAN_STATUS_READY,
			PlanArtifact: &workv1.PlanArtifact{
				Path: "/home/plan.md", Bytes: 9, Sha256: "aa",
				Preview: "1. as wi_d decided\n## 2.", PreviewComplete: true,
			},
			TodoList: []*workv1.TodoItem{
				{Text: "begun", State: workv1.TodoState_TODO_STATE_COMPLETED},
				{Text: "go on", State: workv1.TodoState_TODO_STATE_IN_PROGRESS},
			},
			Waits: []*workv1.AttachedWait{{
				Kind: waitingv1.WaitKind_WAIT_KIND_TASK, Reason: "the build", Resource: "tsk_1",
			}},
		},
		Reports: []*agentv1.Delegation{{
			Label: "look", Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED,
			ResultSummary: "seen", ParentWorkItemId: "wi_a",
		}},
		Trace: []*agentv1.Round{round(1, "I said", "CreateWorkItem", "success", nil)},
	}
	for _, id := range []string{"b", "c", "d", "e"} {
		in.Others = append(in.Others, &workv1.WorkItem{
			WorkItemId: "wi_" + id, Objective: "item " + id,
			SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE,
		})
	}
	require.Equal(t, `
## Inherited: the work item of your supervisor
wi_a (blocked, plan ready)
Objective: ship it
  safely
Plan: /home/plan.md (9 bytes, sha256 aa)
Blocked by: needs wi_c

## Inherited: it waits
- for task: the build tsk_1

## Inherited: its todos
- [in_progress] go on
- [completed] begun

## Inherited: its plan
> 1. as wi_d decided
> ## 2.

## Inherited: other items of your supervisor
- wi_b: item b [runnable; your instructions name it]
- wi_c: item c [runnable; it blocks the item above]
- wi_d: item d [runnable; the item above refers to it]

## Inherited: reports on it so far, newest first
- look (completed): seen

## Inherited: what your supervisor said and did for it last, newest first
- trn_1/1: I said
  CreateWorkItem: success
`, Inherit(in))
}

// A10, C1: a child's context shows the whole of what it inherited where there is
// room for it, and says so where it is cut.
func TestA10_InheritedInTheContext(t *testing.T) {
	inherited := Inherit(Fork{Current: &workv1.WorkItem{WorkItemId: "wi_a", Objective: strings.Repeat("long ", 400)}})
	in := Input{
		Queue: &workv1.GetWorkQueueResponse{}, Message: &agentv1.Message{Text: strings.Repeat("word ", 1000)},
		Inherited: inherited,
	}
	sections := must.Value(Render(in, max(DefaultBudget, Needed(in))))(t)
	text := Text(sections)
	require.Contains(t, text, inherited)
	require.Contains(t, text, in.Message.GetText())
	sections = must.Value(Render(in, MinBudget))(t)
	require.Equal(t, "inherited", sections[2].GetName())
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED, sections[2].GetOutcome())
	require.Contains(t, sections[2].GetText(), "[cut: the rest of what was inherited does not fit]")
	require.LessOrEqual(t, Tokens(Text(sections)), MinBudget)
}
