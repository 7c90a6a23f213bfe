package prompt

import (
	"fmt"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/utf8cut"
)

// The lengths of texts in short forms, in characters.
const (
	lineChars    = 160
	previewChars = 400 // of a candidate's plan
	reportChars  = 600
	traceChars   = 600
	noteChars    = 240
)

// heading returns the heading of a section, with its outcome and the number of records left out.
func heading(title string, o outcome, more int) string {
	switch {
	case more > 0:
		return fmt.Sprintf("\n## %s (%s, %d more)\n", title, o, more)
	case o == full:
		return fmt.Sprintf("\n## %s\n", title)
	}
	return fmt.Sprintf("\n## %s (%s)\n", title, o)
}

// messageForms returns the renderings of the turn's message, the longest first: the whole text, whatever room is;
// as much of its beginning as fits into room bytes, with a note of its length; and the note without the text. The
// second one is left out if no text fits. Without a message there are none.
func messageForms(in Input, room int) []form {
	m := in.Message
	if m == nil {
		return nil
	}
	title := fmt.Sprintf("Message (%s, %s)", enumWord(m.GetKind().String(), "MESSAGE_KIND_"),
		enumWord(m.GetAuthority().String(), "AUTHORITY_"))
	dataNote := "" // data is not shown
	if len(m.GetData()) > 0 {
		dataNote = fmt.Sprintf("[%d bytes of %s]\n", len(m.GetData()), m.GetContentType())
	}
	forms := []form{{full, heading(title, full, 0) + quote(m.GetText()) + dataNote}}

	// As much of the text as there is room for beside the notes.
	cutHeading := heading(title, truncated, 0)
	cutNote := fmt.Sprintf("[cut: the message has %d bytes]\n", len(m.GetText()))
	textRoom := room - len(cutHeading) - len(cutNote) - len(dataNote)
	if textRoom > 0 {
		forms = append(forms, form{truncated, cutHeading + quoteWithin(m.GetText(), textRoom) + cutNote + dataNote})
	}
	return append(forms, form{truncated, cutHeading + cutNote})
}

const itemTitle = "Work item of this turn"

// noItem is shown in a turn that is bound to no work item.
const noItem = "None. PickWorkItem binds this turn to one; CreateWorkItem makes one.\n"

// itemHead returns the part of an item that seldom changes: its objective and where its plan is.
func itemHead(it *workv1.WorkItem) string {
	return fmt.Sprintf("%s\nObjective: %s\n", it.GetWorkItemId(), indented(it.GetObjective())) + descriptor(it)
}

// itemLeast returns the required part about the turn's item.
func itemLeast(in Input) string {
	if in.Item == nil {
		return heading(itemTitle, full, 0) + noItem
	}
	return heading(itemTitle, compact, 0) + itemHead(in.Item)
}

// descriptor returns where the plan of an item is, for the tools of the agent's home and as a file.
func descriptor(it *workv1.WorkItem) string {
	return fmt.Sprintf("Plan: work-items/%s/plan.md in your home, file ", it.GetWorkItemId()) +
		planFile(it.GetPlanArtifact())
}

// planFile returns the file of a plan and what is known of it.
func planFile(plan *workv1.PlanArtifact) string {
	switch {
	case plan.GetProblem() != "":
		return fmt.Sprintf("%s (%s)\n", plan.GetPath(), plan.GetProblem())
	case plan.GetBytes() == 0:
		return fmt.Sprintf("%s (empty)\n", plan.GetPath())
	}
	return fmt.Sprintf("%s (%d bytes, sha256 %s)\n", plan.GetPath(), plan.GetBytes(), plan.GetSha256())
}

// itemForms returns the renderings of the turn's item, the largest first: with the plan's preview,
// with the preview cut to previewRoom, and compact. Without a preview there are two, the full and the
// compact one, and without an item there is one.
func itemForms(in Input, previewRoom int) []form {
	least := itemLeast(in)
	preview := in.Item.GetPlanArtifact().GetPreview()
	switch {
	case in.Item == nil:
		return []form{{full, least}}
	case preview == "":
		return []form{{full, heading(itemTitle, full, 0) + itemHead(in.Item)}, {compact, least}}
	}
	moreNote := ""
	if !in.Item.GetPlanArtifact().GetPreviewComplete() {
		moreNote = "[the plan goes on in its file; HomeRead reads it]\n"
	}
	head := itemHead(in.Item) + "Plan begins:\n"
	return []form{
		{full, heading(itemTitle, full, 0) + head + quote(preview) + moreNote},
		{truncated, heading(itemTitle, truncated, 0) + head + quoteWithin(preview, previewRoom) +
			"[cut: the plan goes on in its file; HomeRead reads it]\n"},
		{compact, least},
	}
}

const stateTitle = "Where it stands"

// stateLeast returns the required part about where the turn's item stands: its blocker, the
// todos that are not done, and how many others there are.
func stateLeast(in Input) string { return stateHead(in, false) }

// stateHead returns the blocker and the todos: those that are not done and, after these, the others if withDone is set
// or else their number, since a model that writes the list without them would remove them.
func stateHead(in Input, withDone bool) string {
	it := in.Item
	if it == nil {
		return ""
	}
	var b strings.Builder
	state := enumWord(it.GetSchedulingState().String(), "SCHEDULING_STATE_")
	plan := enumWord(it.GetPlanStatus().String(), "PLAN_STATUS_")
	b.WriteString(heading(fmt.Sprintf("%s: %s, plan %s", stateTitle, state, plan), full, 0))
	if it.GetBlockedBy() != "" {
		fmt.Fprintf(&b, "Blocked by: %s\n", oneLine(it.GetBlockedBy(), noteChars))
	}

	// The todos that are not done, in their order, and then the others.
	var done []string
	for _, t := range it.GetTodoList() {
		line := fmt.Sprintf("- [%s] %s\n", enumWord(t.GetState().String(), "TODO_STATE_"), indented(t.GetText()))
		if t.GetState() == workv1.TodoState_TODO_STATE_COMPLETED {
			done = append(done, line)
		} else {
			b.WriteString(line)
		}
	}
	switch {
	case withDone:
		b.WriteString(strings.Join(done, ""))
	case len(done) > 0:
		fmt.Fprintf(&b, "%d of %d todos are done and not shown. UpdateWorkItem replaces the whole list: read it with "+
			"GetWorkItem first.\n", len(done), len(it.GetTodoList()))
	}
	return b.String()
}

// stateForms returns where the turn's item stands: with its waits and all todos, with its waits and the todos that are
// not done, and without waits. The first is left out if it has more than room bytes more than the last. The item may be
// nil.
func stateForms(in Input, room int) []form {
	it := in.Item
	if it == nil {
		return nil
	}

	// A line for each wait of the item.
	var waits strings.Builder
	for _, w := range it.GetWaits() {
		fmt.Fprintf(&waits, "Waits for %s: %s", enumWord(w.GetKind().String(), "WAIT_KIND_"),
			oneLine(strings.TrimSpace(w.GetReason()+" "+w.GetCondition()), lineChars))
		if w.GetSource() != "" {
			fmt.Fprintf(&waits, " from %s", oneLine(w.GetSource(), lineChars))
		}
		waits.WriteString(resourceText(w.GetResource(), w.GetResourceDescription()))
		unseen := w.GetTriggerCount() - w.GetConsumedCount()
		if unseen > 0 {
			fmt.Fprintf(&waits, ", triggered %d time(s) since you looked", unseen)
		}
		waits.WriteByte('\n')
	}

	whole, least := stateHead(in, true), stateLeast(in)
	switch {
	case whole == least:
		return []form{{full, least + waits.String()}, {compact, least}}
	case len(whole)+waits.Len() > len(least)+room:
		return []form{{truncated, least + waits.String()}, {compact, least}}
	}
	return []form{{full, whole + waits.String()}, {truncated, least + waits.String()}, {compact, least}}
}

// candidateForms returns the renderings of the items of one class: with plan and todos; as one line
// for each; and what cutForms returns of these lines.
func candidateForms(title string, items []*workv1.WorkItem, total, room int) []form {
	// Each item is rendered twice: as several lines in b, and as one line.
	var long, short []string
	for _, it := range items {
		state := enumWord(it.GetSchedulingState().String(), "SCHEDULING_STATE_")
		line := fmt.Sprintf("- %s: %s [%s]", it.GetWorkItemId(), oneLine(it.GetObjective(), lineChars), state)
		var b strings.Builder
		fmt.Fprintf(&b, "- %s: %s [%s]\n", it.GetWorkItemId(), indented(it.GetObjective()), state)

		// Whether it can go on.
		if w := it.GetResumed().GetWait(); w != nil {
			line += ", resumed"
			fmt.Fprintf(&b, "  resumed: its wait for %s is over: %s\n",
				awaited(w.GetKind(), w.GetResource(), w.GetResourceDescription()),
				oneLine(w.GetReason(), noteChars))
		}
		if it.GetBlockedBy() != "" {
			line += " " + oneLine(it.GetBlockedBy(), lineChars)
			fmt.Fprintf(&b, "  blocked by: %s\n", oneLine(it.GetBlockedBy(), noteChars))
		}
		if n := unseenTriggers(it); n > 0 {
			line += fmt.Sprintf(" triggered %d time(s)", n)
			fmt.Fprintf(&b, "  triggered %d time(s) since you looked\n", n)
		}

		// What is known of it. The todo and the plan have no place in one line.
		if todo := it.GetCurrentTodo().GetText(); todo != "" {
			fmt.Fprintf(&b, "  todo: %s\n", oneLine(todo, noteChars))
		}
		if preview := it.GetPlanArtifact().GetPreview(); preview != "" {
			fmt.Fprintf(&b, "  plan: %s\n", oneLine(preview, previewChars))
		}
		if it.GetResultSummary() != "" {
			line += " => " + oneLine(it.GetResultSummary(), lineChars)
			fmt.Fprintf(&b, "  report: %s\n", oneLine(it.GetResultSummary(), reportChars))
		}
		long, short = append(long, b.String()), append(short, line+"\n")
	}

	more := total - len(items)
	forms := []form{
		{full, heading(title, full, more) + strings.Join(long, "")},
		{compact, heading(title, compact, more) + strings.Join(short, "")},
	}
	return append(forms, cutForms(title, short, total, room, keepFirst)...)
}

// unseenTriggers returns how often the waits of an item were triggered since the agent looked.
func unseenTriggers(it *workv1.WorkItem) int64 {
	var unseen int64
	for _, w := range it.GetWaits() {
		unseen += max(0, w.GetTriggerCount()-w.GetConsumedCount())
	}
	return unseen
}

// keep is the end of a list whose lines are kept when it is cut.
type keep int

const (
	keepFirst keep = iota
	keepLast
)

// lineForms returns the renderings of a list: all of its lines, and what cutForms returns of them.
func lineForms(title string, lines []string, room int, which keep) []form {
	if len(lines) == 0 {
		return nil
	}
	return append([]form{{full, heading(title, full, 0) + strings.Join(lines, "")}},
		cutForms(title, lines, len(lines), room, which)...)
}

// cutForms returns a list with as many lines as fit into room, but not all of them, or only with their
// number if not even one fits.
func cutForms(title string, lines []string, total, room int, which keep) []form {
	for shown := len(lines) - 1; shown > 0; shown-- {
		kept := lines[:shown]
		if which == keepLast {
			kept = lines[len(lines)-shown:]
		}
		text := heading(title, truncated, total-shown) + strings.Join(kept, "")
		if len(text) <= room {
			return []form{{truncated, text}}
		}
	}
	return []form{{truncated, heading(title, truncated, total)}}
}

// taskLines returns a line for each task.
func taskLines(tasks []*taskv1.Task) []string {
	var out []string
	for _, t := range tasks {
		line := fmt.Sprintf("- %s %s: %s", t.GetTaskId(), enumWord(t.GetState().String(), "TASK_STATE_"),
			oneLine(t.GetLabel(), noteChars))
		if t.GetWorkItemId() != "" {
			line += " (for " + t.GetWorkItemId() + ")"
		}
		out = append(out, line+"\n")
	}
	return out
}

// roundLines returns the texts and calls of rounds, newest first.
func roundLines(rounds []*agentv1.Round) []string {
	var out []string
	for _, r := range rounds {
		var b strings.Builder
		fmt.Fprintf(&b, "- %s/%d: %s\n", r.GetTurnId(), r.GetIndex(), oneLine(r.GetText(), traceChars))
		for i, c := range r.GetToolCalls() {
			fmt.Fprintf(&b, "  %s: %s\n", c.GetName(), callStatus(r, i))
		}
		out = append(out, b.String())
	}
	return out
}

// tracedRounds is how many rounds the trace of a context has. They change with every turn, and what
// came of older ones is in the notes.
const tracedRounds = 4

// callLines returns the calls of the newest tracedRounds rounds and what came of them, one line for
// each round that has calls. rounds are newest first, and so are the lines. The texts of rounds are in
// the conversation.
func callLines(rounds []*agentv1.Round) []string {
	var out []string
	for _, r := range rounds[:min(len(rounds), tracedRounds)] {
		var calls []string
		for i, c := range r.GetToolCalls() {
			calls = append(calls, fmt.Sprintf("%s: %s", oneLine(c.GetName(), lostChars), callStatus(r, i)))
		}
		for _, l := range r.GetLocalToolResults() {
			calls = append(calls, fmt.Sprintf("%s: %s", oneLine(l.GetToolName(), lostChars),
				pbjson.EnumText(l.GetStatus())))
		}
		if len(calls) > 0 {
			out = append(out, fmt.Sprintf("- %s/%d %s\n", r.GetTurnId(), r.GetIndex(), strings.Join(calls, "; ")))
		}
	}
	return out
}

// callStatus returns the status of the i-th call of a round, the kind of its error, or "no result".
func callStatus(r *agentv1.Round, i int) string {
	if i >= len(r.GetToolResults()) {
		return "no result"
	}
	res := r.GetToolResults()[i]
	if res.GetError() != nil {
		return res.GetError().GetKind()
	}
	return pbjson.EnumText(res.GetStatus())
}

// breaks replaces the characters other than a newline that may be read as the end of a line.
var breaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n",
	"\u2029", "\n")

// quote puts "> " before each line of a text that did not come from the runtime, so that no line of
// it can be mistaken for a heading.
func quote(text string) string {
	if text == "" {
		return ""
	}
	return "> " + strings.ReplaceAll(strings.TrimRight(breaks.Replace(text), "\n"), "\n", "\n> ") + "\n"
}

// quoteWithin returns, quoted, as much of the beginning of a text as fits into maxBytes.
func quoteWithin(text string, maxBytes int) string {
	var b strings.Builder
	for line := range strings.Lines(breaks.Replace(text)) {
		room := maxBytes - b.Len() - len("> \n")
		if room <= 0 {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		shown := utf8cut.Bytes(line, room)
		b.WriteString("> " + shown + "\n")
		if len(shown) < len(line) {
			break
		}
	}
	return b.String()
}

// indented returns a text with its further lines indented, so that they cannot be mistaken for list entries.
func indented(text string) string { return strings.ReplaceAll(breaks.Replace(text), "\n", "\n  ") }

// oneLine returns a text as one line, with white space folded. If this line has more than maxChars characters, it
// returns the first maxChars, followed by "…".
func oneLine(text string, maxChars int) string {
	text = strings.Join(strings.Fields(text), " ")
	chars := 0
	for i := range text {
		if chars == maxChars {
			return text[:i] + "…"
		}
		chars++
	}
	return text
}

// enumWord returns the name of an enum value in lower case and without its prefix.
func enumWord(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
