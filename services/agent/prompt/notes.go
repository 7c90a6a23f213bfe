package prompt

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// maxNotes is how many notes of an item are kept, the newest ones.
const maxNotes = 60

// Digest derives notes from what an agent did for an item: decisions, completed todos,
// blockers, resources created and changes of scope (SPEC C2). Notes are not stored: the
// same rounds give the same notes, and rounds without effects give none. Its zero value
// is ready to use.
type Digest struct {
	lines []string
	done  map[string]bool
}

// Lines returns the notes, oldest first.
func (d *Digest) Lines() []string { return slices.Clone(d.lines) }

// Add adds the notes of a settled round. Rounds are added oldest first.
func (d *Digest) Add(r *agentv1.Round) {
	for i, c := range r.GetToolCalls() {
		if i < len(r.GetToolResults()) && r.GetToolResults()[i].GetStatus() == agentv1.ToolStatus_TOOL_STATUS_SUCCESS {
			d.call(c.GetName(), c.GetArguments().GetFields(), r.GetToolResults()[i].GetResult().GetFields())
		}
	}
	tooMany := len(d.lines) - maxNotes
	if tooMany > 0 {
		d.lines = slices.Delete(d.lines, 0, tooMany)
	}
}

// itemNotes returns the notes on the turn's item and their title. If older rounds were removed, the title says since
// when there are notes.
func itemNotes(in Input) (title string, notes []string) {
	title = "Notes on it, from what was done"
	if in.DoneSince == "" {
		return title, in.Notes
	}
	title += " since " + in.DoneSince + "; your older rounds for it were removed because of their age"
	if len(in.Notes) == 0 {
		return title, []string{"- none\n"}
	}
	return title, in.Notes
}

// note adds a note of a kind.
func (d *Digest) note(kind, format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf("- %s: %s\n", kind, oneLine(fmt.Sprintf(format, args...), noteChars)))
}

// call adds the notes of a call that succeeded.
func (d *Digest) call(name string, args, result map[string]*structpb.Value) {
	switch name {
	case "PickWorkItem":
		if reason := stringField(args, "reason"); reason != "" {
			d.note("decision", "picked %s, %s", stringField(args, "work_item_id"), reason)
		}
	case "UpdateWorkItem":
		d.update(args)
	case "CreateWorkItem":
		d.note("made", "work item %s: %s", idOf(result, "work_item", "work_item_id"), stringField(args, "objective"))
	case "CompleteWorkItem":
		d.note("done", "completed %s", idOf(result, "work_item", "work_item_id"))
	case "WaitFor":
		d.note("blocker", "waits for %s: %s", stringField(args, "wake"), stringField(args, "reason"))
	case "CreateExternalTrigger":
		d.note("made", "trigger %s %s", idOf(result, "trigger", "trigger_id"), stringField(args, "description"))
	case "CreateTimer":
		d.note("made", "timer %s %s", idOf(result, "timer", "timer_id"), stringField(args, "description"))
	case "SpawnAgent":
		d.note("made", "agent %s: %s", stringField(result, "agent_id"), stringField(args, "initial_message"))
	case "ExecCommand":
		if h := idOf(result, "handle", "task_id"); h != "" && stringField(result, "outcome") != "completed" {
			d.note("made", "task %s: %s", h, stringField(args, "cmd"))
		}
	}
}

// update adds the notes of an UpdateWorkItem call. A completed todo gets one note, however
// many calls repeat it; todos are told apart by their text.
func (d *Digest) update(args map[string]*structpb.Value) {
	if objective := stringField(args, "objective"); objective != "" {
		d.note("scope", "the objective is now: %s", objective)
	}
	if status := stringField(args, "plan_status"); status != "" {
		d.note("decision", "the plan is %s", status)
	}
	if blocker, given := args["blocked_by"]; given {
		if blocker.GetStringValue() == "" {
			d.note("blocker", "cleared")
		} else {
			d.note("blocker", "%s", blocker.GetStringValue())
		}
	}
	for _, todo := range args["todo_list"].GetListValue().GetValues() {
		f := todo.GetStructValue().GetFields()
		text := stringField(f, "text")
		if stringField(f, "state") != "completed" || d.done[text] {
			continue
		}
		if d.done == nil {
			d.done = map[string]bool{}
		}
		d.done[text] = true
		d.note("done", "%s", text)
	}
}

// stringField returns a string field of a struct, or "" if there is no field of this name or it is no string.
func stringField(fields map[string]*structpb.Value, name string) string {
	return fields[name].GetStringValue()
}

// idOf returns a string field of a record that is a field of a struct.
func idOf(fields map[string]*structpb.Value, record, name string) string {
	return stringField(fields[record].GetStructValue().GetFields(), name)
}
