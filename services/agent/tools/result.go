package tools

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/utf8cut"
)

// SummaryChars is how many characters of a text a summary has.
const SummaryChars = 120

// CompletedTask returns the command that ended within its call, or "" if it continues or
// the call was another one.
func CompletedTask(r *agentv1.ToolResult) string {
	f := r.GetResult().GetFields()
	if r.GetStatus() == StatusError {
		f = r.GetError().GetDetails().GetFields() // see cutShort
	}
	if r.GetToolName() != toolExecCommand || f["outcome"].GetStringValue() != "completed" {
		return ""
	}
	return f["task"].GetStructValue().GetFields()["task_id"].GetStringValue()
}

// ReportMissing returns the warning about a completion in a round without text (SPEC W7).
func ReportMissing() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"kind": structpb.NewStringValue("report_missing"),
		"message": structpb.NewStringValue("The round has no text, so the work item has no report; completing it " +
			"again with text adds one."),
	}}
}

// Outcome is the one result of a call, and the item that the next call is bound to.
type Outcome struct {
	Result     *agentv1.ToolResult
	Mutated    bool   // the call changed something
	WorkItemID string // the item that the next call is bound to; empty: none
	// Replayed: the plane had executed the call before, under the same request id.
	Replayed bool
}

// Unchanged reports whether a plane replied that the call changed nothing, so that it counts as
// no mutation of its turn.
func Unchanged(reply proto.Message) bool {
	r, ok := reply.(interface{ GetUnchanged() bool })
	return ok && r.GetUnchanged()
}

// Rebind returns the item that the following calls are bound to: a pick binds them to its
// item, the completion of the bound item to none.
func Rebind(binding string, reply proto.Message) string {
	switch r := reply.(type) {
	case *workv1.PickWorkItemResponse:
		return r.GetWorkItem().GetWorkItemId()
	case *workv1.CompleteWorkItemResponse:
		if r.GetWorkItem().GetWorkItemId() == binding {
			return ""
		}
	}
	return binding
}

// Succeeded returns the result of a call whose plane replied.
func Succeeded(c *agentv1.ToolCall, t Tool, reply proto.Message) (*agentv1.ToolResult, error) {
	result, err := ToStruct(reply)
	if err != nil {
		return nil, err
	}
	showExplicit(result, reply.ProtoReflect())
	if !t.Mutates {
		countList(result, reply.ProtoReflect().Descriptor())
	}
	out := &agentv1.ToolResult{
		CallId: c.GetCallId(), ToolName: t.Name, Status: StatusSuccess, Result: result,
		SummaryText: summaryOf(t, result, reply),
	}
	if ws := result.GetFields()["warnings"].GetListValue().GetValues(); len(ws) > 0 {
		for _, w := range ws {
			out.Warnings = append(out.Warnings, w.GetStructValue())
		}
		delete(result.GetFields(), "warnings")
		out.SummaryText += fmt.Sprintf(", with %d warning(s)", len(ws))
	}
	if r, ok := reply.(interface{ GetHistoryRemoved() bool }); ok && r.GetHistoryRemoved() {
		out.SummaryText += "; older ones were removed because of their age and cannot be read"
	}
	if e := cutShort(t, reply); e != nil {
		e.Message, e.Details = out.GetSummaryText(), result
		out.Status, out.Error, out.Result = StatusError, e, nil
	}
	return out, nil
}

// cutShort returns the error of a call whose command did not run to its end: its worker was lost,
// it was stopped, or its time was over. What the command should have done is then not known to be
// done, which a model must not read as a success. It returns nil for a command that ended by itself,
// with any exit code, for one that runs, and for tools that do not report about one command. The
// details of the error are what the result would have been, with the output so far.
func cutShort(t Tool, reply proto.Message) *agentv1.ToolError {
	about, ok := reply.(interface{ GetTask() *taskv1.Task })
	if !ok || t.Name != toolExecCommand && t.Name != toolTaskStatus && t.Name != toolTaskOutput {
		return nil
	}
	task := about.GetTask()
	if task.GetEndedAt() == nil || task.GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK {
		return nil
	}
	switch {
	case task.GetState() == taskv1.TaskState_TASK_STATE_INTERRUPTED:
		return &agentv1.ToolError{Kind: "task_interrupted", RecoveryHint: "Whether the command had an effect is " +
			"unknown, and it is not run again. Check what it did before you run it once more."}
	case task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLED:
		return &agentv1.ToolError{Kind: "task_cancelled", RecoveryHint: "The command was stopped on request. Run it " +
			"again only if it is still wanted."}
	case task.GetEndReason() == taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT:
		return &agentv1.ToolError{Kind: "task_timed_out", RecoveryHint: "Run it again with a longer timeout, or " +
			"split it."}
	}
	return nil
}

// countList adds an empty list to a response that lists records and has none: messages
// omit empty lists, and a model could not tell an omitted list from an unknown number of records.
func countList(result *structpb.Struct, m protoreflect.MessageDescriptor) {
	if name := listOf(m); name != "" && result.GetFields()[name] == nil {
		result.Fields[name] = structpb.NewListValue(&structpb.ListValue{})
	}
}

// listOf returns the name of the one list of records in a message, or "" if there is not
// exactly one.
func listOf(m protoreflect.MessageDescriptor) string {
	name := ""
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		switch {
		case !fd.IsList() || fd.Message() == nil || fd.Name() == "warnings":
		case name != "":
			return ""
		default:
			name = string(fd.Name())
		}
	}
	return name
}

// summaryOf returns one line about a call whose plane replied. A command that the call executed
// may have failed all the same, so the line says how it ended.
func summaryOf(t Tool, result *structpb.Struct, reply proto.Message) string {
	exec, ok := reply.(*taskv1.ExecCommandResponse)
	if ok && exec.GetOutcome() != taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED {
		runs := "runs on as a task"
		if exec.GetOutcome() == taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING {
			runs = "was running already"
		}
		return fmt.Sprintf("%s: the command %s%s", t.Name, runs, subject(result))
	}
	about, ok := reply.(interface{ GetTask() *taskv1.Task })
	task := (*taskv1.Task)(nil)
	if ok {
		task = about.GetTask()
	}
	end := pbjson.EnumText(task.GetState())
	if s := task.GetState(); s == taskv1.TaskState_TASK_STATE_INTERRUPTED ||
		s == taskv1.TaskState_TASK_STATE_CANCELLED {
		end = "was " + end
	}
	if Unchanged(reply) {
		return t.Name + " changed nothing: the record has these values already" + subject(result)
	}
	switch list := listOf(reply.ProtoReflect().Descriptor()); {
	case !t.Mutates && task == nil && list != "" && subject(result) == "":
		return fmt.Sprintf("%s succeeded: %d %s", t.Name, len(result.GetFields()[list].GetListValue().GetValues()),
			strings.ReplaceAll(list, "_", " "))
	case task.GetEndedAt() == nil:
		return t.Name + " succeeded" + subject(result)
	case task.GetEndMessage() != "":
		end += ", " + utf8cut.Line(task.GetEndMessage(), SummaryChars)
	case task.ExitCode != nil:
		end += fmt.Sprintf(", exit code %d", task.GetExitCode())
	}
	if t.Name == toolExecCommand {
		return fmt.Sprintf("%s: the command %s: %s", t.Name, end, task.GetTaskId())
	}
	if cutShort(t, reply) != nil {
		return fmt.Sprintf("%s: %s %s", t.Name, task.GetTaskId(), end)
	}
	return fmt.Sprintf("%s succeeded: %s %s", t.Name, task.GetTaskId(), end)
}

// subject returns the id of the record that a result is about, after a colon.
func subject(result *structpb.Struct) string {
	if id := result.GetFields()["agent_id"].GetStringValue(); id != "" {
		return ": " + id
	}
	for _, at := range [][2]string{
		{"work_item", "work_item_id"},
		{"wait", "wait_id"},
		{"handle", "task_id"},
		{"task", "task_id"},
		{"trigger", "trigger_id"},
		{"timer", "timer_id"},
	} {
		if id := result.GetFields()[at[0]].GetStructValue().GetFields()[at[1]].GetStringValue(); id != "" {
			return ": " + id
		}
	}
	return ""
}

// ToStruct returns a message in the form of tool results: snake_case fields, lower-case enums.
func ToStruct(m proto.Message) (*structpb.Struct, error) {
	raw, err := pbjson.Append(nil, m)
	if err != nil {
		return nil, err
	}
	out := &structpb.Struct{}
	return out, pbjson.Unmarshal(raw, out)
}

// Failed returns the result of a call that failed. Its kind is the reason of the error in
// lower case (SPEC X5).
func Failed(c *agentv1.ToolCall, err error) *agentv1.ToolResult {
	f := fault.From(err)
	e := &agentv1.ToolError{
		Kind: strings.ToLower(string(f.Reason())), Message: f.Message(), RecoveryHint: hint(f.Reason()),
		Retryable: f.Code() == codes.Unavailable || f.Code() == codes.Aborted || f.Code() == codes.DeadlineExceeded ||
			f.Code() == codes.ResourceExhausted,
	}
	if len(f.Metadata()) > 0 {
		e.Details = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for k, v := range f.Metadata() {
			e.Details.Fields[k] = structpb.NewStringValue(v)
		}
	}
	return &agentv1.ToolResult{
		CallId: c.GetCallId(), ToolName: c.GetName(), Status: StatusError,
		SummaryText: f.Message(), Error: e,
	}
}

// hints tell a model how to continue, where the documentation of a reason addresses
// programs.
var hints = map[fault.Reason]string{
	fault.InvalidArgument: "Correct that argument by the tool's schema and call again.",
	fault.UnknownField:    "Leave that argument out; the tool's schema has all there are.",
	fault.LimitExceeded:   "Keep to the limit: shorten or split it, and call again.",
	fault.TooLarge:        "Send less at a time: a smaller text, or several files.",
	fault.NotFound:        "Look up what there is with the tool that lists it, and use an id from there.",
}

// Reword translates the names in the error of a result, if it has one, as Translate does.
func (t Tool) Reword(r *agentv1.ToolResult) {
	e := r.GetError()
	if e == nil {
		return
	}
	e.Message = t.Translate(e.GetMessage())
	r.SummaryText = e.GetMessage()
	for name, v := range e.GetDetails().GetFields() {
		if text := v.GetStringValue(); name == "field" || name == "value" {
			if name == "field" || strings.ToUpper(text) == text {
				text = t.Translate(text)
			}
			e.Details.Fields[name] = structpb.NewStringValue(text)
		}
	}
}

func hint(r fault.Reason) string {
	if text := hints[r]; text != "" {
		return text
	}
	for _, e := range fault.All {
		if e.Reason == r {
			return e.Doc
		}
	}
	return ""
}
