package prompt

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
)

// The limits of what a forked child is shown of its parent's work (SPEC A10). ForkBudget fits the
// longest objective.
const (
	ForkBudget  = 3072 // tokens
	ForkOthers  = 5    // items that are not the current one
	ForkReports = 3    // of other children of the current item
	ForkRounds  = 4    // the recent tail
	forkWaits   = 20
)

// Fork is the work of a parent, from which Inherit renders what a forked child may see.
type Fork struct {
	Message string             // the child's initial message
	Current *workv1.WorkItem   // the parent's current item, with its plan; may be nil
	Others  []*workv1.WorkItem // of the same parent
	Reports []*agentv1.Delegation
	Trace   []*agentv1.Round // bound to the current item, newest first
}

// Admitted is an item other than the current one, and the rule that admits it.
type Admitted struct{ ItemID, Why string }

var itemID = regexp.MustCompile(`\bwi_[0-9a-z_-]+`)

// Admit returns the other items that a fork may show, at most ForkOthers: those that the initial
// message names, those that the current item is blocked by, and those that its objective, plan or
// todos name (SPEC A10).
func Admit(message string, current *workv1.WorkItem) []Admitted {
	// admit admits the items that texts name, each by the first rule that does.
	var admitted []Admitted
	admit := func(rule string, texts ...string) {
		for _, text := range texts {
			for _, id := range itemID.FindAllString(text, -1) {
				known := slices.ContainsFunc(admitted, func(a Admitted) bool { return a.ItemID == id })
				if !known && id != current.GetWorkItemId() && len(admitted) < ForkOthers {
					admitted = append(admitted, Admitted{id, rule})
				}
			}
		}
	}

	admit("your instructions name it", message)

	const blocks = "it blocks the item above"
	admit(blocks, current.GetBlockedBy())
	for _, w := range current.GetWaits() {
		admit(blocks, w.GetResource(), w.GetReason())
	}

	const isReferredTo = "the item above refers to it"
	admit(isReferredTo, current.GetObjective(), current.GetPlanArtifact().GetPreview())
	for _, t := range current.GetTodoList() {
		admit(isReferredTo, t.GetText())
	}
	return admitted
}

// Inherit renders the view with which a forked child starts: what it inherits of its parent's work. The
// text is the same for the same records and stays within ForkBudget. If there is a current item, it always
// has the item's objective, the place of its plan and its blocker. Other items and, for a current item only,
// reports and rounds follow as far as the budget allows.
func Inherit(in Fork) string {
	v := &view{room: ForkBudget * bytesPerToken}
	it := in.Current
	if it == nil {
		v.add("\n## Inherited: your supervisor has no work item in focus\n")
	} else {
		v.item(it)
	}

	// Other items that have to do with the child's work.
	var others []string
	for _, a := range Admit(in.Message, it) {
		for _, o := range in.Others {
			if o.GetWorkItemId() == a.ItemID {
				others = append(others, otherItem(o, a.Why))
			}
		}
	}
	v.list("Inherited: other items of your supervisor", others, 100)
	if it == nil {
		return v.String()
	}

	// What other children reported on the current item, and what the parent did for it.
	var reports []string
	for _, d := range in.Reports {
		if d.GetParentWorkItemId() == it.GetWorkItemId() && d.GetResultSummary() != "" && len(reports) < ForkReports {
			reports = append(reports, fmt.Sprintf("- %s (%s): %s\n", oneLine(d.GetLabel(), lineChars),
				pbjson.EnumText(d.GetOutcome()), oneLine(d.GetResultSummary(), reportChars)))
		}
	}
	v.list("Inherited: reports on it so far, newest first", reports, 100)
	v.list("Inherited: what your supervisor said and did for it last, newest first",
		roundLines(in.Trace[:min(len(in.Trace), ForkRounds)]), 100)
	return v.String()
}

// view builds a text of bounded size.
type view struct {
	strings.Builder
	room int // bytes
}

// add appends a text if it fits, and reports whether it did.
func (v *view) add(text string) bool {
	if len(text) > v.room {
		return false
	}
	v.room -= len(text)
	_, _ = v.WriteString(text) // a strings.Builder does not fail
	return true
}

// list appends as many lines as fit into a share of the room, and the number of the others.
func (v *view) list(title string, lines []string, percent int) {
	if len(lines) == 0 {
		return
	}
	room := v.room * percent / 100
	for _, f := range lineForms(title, lines, room, keepFirst) {
		if len(f.text) <= room && v.add(f.text) {
			return
		}
	}
}

// item appends the current item: first what a child needs most, then its waits and its todos, and at last as much of
// its plan as half of the room that is left holds.
func (v *view) item(it *workv1.WorkItem) {
	head := fmt.Sprintf("\n## Inherited: the work item of your supervisor\n%s (%s, plan %s)\nObjective: %s\n",
		it.GetWorkItemId(),
		enumWord(it.GetSchedulingState().String(), "SCHEDULING_STATE_"),
		enumWord(it.GetPlanStatus().String(), "PLAN_STATUS_"), indented(it.GetObjective()))
	if plan := it.GetPlanArtifact(); plan != nil {
		head += "Plan: " + planFile(plan)
	}
	if it.GetBlockedBy() != "" {
		head += fmt.Sprintf("Blocked by: %s\n", oneLine(it.GetBlockedBy(), noteChars))
	}
	v.add(head)

	var waits []string
	for _, w := range it.GetWaits()[:min(len(it.GetWaits()), forkWaits)] {
		waits = append(waits, fmt.Sprintf("- for %s: %s %s\n", enumWord(w.GetKind().String(), "WAIT_KIND_"),
			oneLine(w.GetReason(), lineChars), oneLine(w.GetResource(), lineChars)))
	}
	v.list("Inherited: it waits", waits, 25)

	// Open todos precede completed ones.
	var todos []string
	for _, done := range []bool{false, true} {
		for _, t := range it.GetTodoList() {
			if (t.GetState() == workv1.TodoState_TODO_STATE_COMPLETED) == done {
				todos = append(todos, fmt.Sprintf("- [%s] %s\n", enumWord(t.GetState().String(), "TODO_STATE_"),
					oneLine(t.GetText(), noteChars)))
			}
		}
	}
	v.list("Inherited: its todos", todos, 50)

	// The plan, whole or as its beginning.
	preview := it.GetPlanArtifact().GetPreview()
	if preview == "" {
		return
	}
	const cut = "[cut: the plan goes on in its file]\n"
	title := "\n## Inherited: its plan\n"
	whole := title + quote(preview)
	if !it.GetPlanArtifact().GetPreviewComplete() {
		whole += cut
	}
	if len(whole) <= v.room/2 && v.add(whole) {
		return
	}
	previewRoom := v.room/2 - len(title) - len(cut)
	if previewRoom > 0 {
		v.add(title + quoteWithin(preview, previewRoom) + cut)
	}
}

// otherItem returns the lines of an item other than the current one. rule is what admits it.
func otherItem(it *workv1.WorkItem, rule string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- %s: %s [%s; %s]\n", it.GetWorkItemId(), oneLine(it.GetObjective(), reportChars),
		enumWord(it.GetSchedulingState().String(), "SCHEDULING_STATE_"), rule)
	for _, line := range []struct {
		title, text string
		chars       int
	}{
		{"blocked by", it.GetBlockedBy(), noteChars},
		{"plan", it.GetPlanArtifact().GetPreview(), previewChars},
		{"report", it.GetResultSummary(), reportChars},
	} {
		if line.text != "" {
			fmt.Fprintf(&b, "  %s: %s\n", line.title, oneLine(line.text, line.chars))
		}
	}
	return b.String()
}

// inheritedForms returns what a forked child inherited, whole and as its beginning.
func inheritedForms(text string, room int) []form {
	forms := []form{{full, text}}
	const note = "[cut: the rest of what was inherited does not fit]\n"
	fits := text[:max(0, min(len(text), room-len(note)))]
	wholeLines := fits[:strings.LastIndexByte(fits, '\n')+1]
	return append(forms, form{truncated, wholeLines + note})
}
