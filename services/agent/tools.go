package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
)

const (
	toolExecCommand      = "ExecCommand"
	toolWaitFor          = "WaitFor"
	toolSpawnAgent       = "SpawnAgent"
	toolCompleteWorkItem = "CompleteWorkItem"
	statusSuccess        = "success"
	statusError          = "error"
)

// adaptUpdate: in the seeds todo_list is a list, and blocked_by null clears.
func adaptUpdate(args map[string]any, _ time.Duration) {
	pending(args["todo_list"])
	if list, ok := args["todo_list"].([]any); ok {
		args["todo_list"] = map[string]any{"items": list}
	}
	if v, given := args["blocked_by"]; given && v == nil {
		delete(args, "blocked_by")
		args["clear_blocked_by"] = true
	}
}

// adaptGet: in the seeds the checklist is asked for; here it comes unless it is
// left out.
func adaptGet(args map[string]any, _ time.Duration) {
	if include, ok := args["include_todo_list"].(bool); ok {
		delete(args, "include_todo_list")
		args["omit_todo_list"] = !include
	}
}

// adaptList: the seeds' limit is a page's size.
func adaptList(args map[string]any, _ time.Duration) {
	if limit, given := args["limit"]; given && args["page_size"] == nil {
		delete(args, "limit")
		args["page_size"] = limit
	}
}

// commandFields of ExecCommand stand beside the others in the seeds' shape.
var commandFields = []string{"cmd", "argv", "workdir", "env", "tty", "accepts_input", "timeout", "pool", "worker_labels", "limits", "restart_policy"}

// adaptExec folds the command together and keeps the round's calls within their
// common term.
func adaptExec(args map[string]any, left time.Duration) {
	command := map[string]any{}
	for _, f := range commandFields {
		if v, ok := args[f]; ok {
			command[f] = v
			delete(args, f)
		}
	}
	if _, given := args["command"]; !given {
		args["command"] = command
	}
	left = max(left, 0)
	wanted := 10 * time.Second
	if given, ok := args["yield_time"]; ok {
		v, _ := given.(string)
		d, err := time.ParseDuration(v)
		if err != nil {
			return // the decoder names what is wrong with it
		}
		wanted = d
	}
	if wanted > left {
		wanted = left
	}
	args["yield_time"] = fmt.Sprintf("%.3fs", wanted.Seconds())
}

// callScope is what a call runs under.
type callScope struct {
	agent     key
	runID     string
	turnID    string
	binding   string
	requestID string
	left      time.Duration
	silent    bool // the round has no text that could be a report
}

// reportMissing is the warning of a completion in a round without text (SPEC W7).
func reportMissing() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"kind":    structpb.NewStringValue("report_missing"),
		"message": structpb.NewStringValue("The round has no text, so the work item has no report; completing it again with text adds one."),
	}}
}

// outcome is the one result of a call, and the item that the next is bound to.
type outcome struct {
	result  *agentv1.ToolResult
	mutated bool
	bind    string
	// replayed: the plane had run the call before, under the same request id.
	replayed bool
}

// call runs one tool call. It always gives a result; a failure is one too.
func (s *Service) call(ctx context.Context, scope callScope, c *agentv1.ToolCall) outcome {
	return s.callAs(ctx, runActor(scope.agent, scope.runID), scope, c)
}

func (s *Service) callAs(ctx context.Context, actor rpc.Actor, scope callScope, c *agentv1.ToolCall) (out outcome) {
	out.bind = scope.binding
	has, err := s.profile(ctx, scope.agent)
	if err != nil {
		out.result = failed(c, err)
		return out
	}
	t, err := has.find(c.GetName())
	if err != nil {
		out.result = failed(c, err)
		return out
	}
	defer func() { t.reword(out.result) }()
	if !s.may(actor.Role, t) {
		out.result = failed(c, fault.ToolNotAvailable.Newf("tool %q is not for role %s; an agent has it in its turns", c.GetName(), actor.Role).With("tool", c.GetName()).With("role", actor.Role))
		return out
	}
	req, err := t.prepare(scope, c.GetArguments())
	if err != nil {
		out.result = failed(c, err)
		return out
	}
	conn, err := s.deps.Conn(t.plane)
	if err != nil {
		out.result = failed(c, err)
		return out
	}
	reply := t.reply()
	ctx, span := s.toolSpan(ctx, t, c)
	defer func() { endTool(span, out.result) }()
	ctx = rpc.WithActor(ctx, actor)
	var header metadata.MD
	if err := invoke(ctx, conn, t.method, req, reply, grpc.Header(&header)); err != nil {
		out.result = failed(c, err)
		return out
	}
	out.replayed = rpc.WasReplayed(header)
	out.result, err = succeeded(c, t, reply)
	if err != nil {
		out.result = failed(c, err)
		return out
	}
	if t.name == toolCompleteWorkItem && scope.silent {
		out.result.Warnings = append(out.result.Warnings, reportMissing())
	}
	out.mutated = t.mutates
	out.bind = rebound(scope.binding, reply)
	return out
}

// invoke tries again while the other side cannot be reached: the request id
// makes that safe, and a restart of one plane must not fail an agent's call.
func invoke(ctx context.Context, conn grpc.ClientConnInterface, method string, req, reply proto.Message, opts ...grpc.CallOption) error {
	wait := 20 * time.Millisecond
	for {
		err := conn.Invoke(ctx, method, req, reply, opts...)
		if err == nil || fault.From(err).Code() != codes.Unavailable {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
		wait = min(2*wait, time.Second)
	}
}

// prepare makes the request of a call.
func (t tool) prepare(scope callScope, arguments *structpb.Struct) (proto.Message, error) {
	args := arguments.AsMap()
	for _, own := range []string{"agent_id", "request_id", "session_id"} {
		if _, given := args[own]; given && (own != "agent_id" || !t.anyAgent) {
			return nil, fault.UnknownField.Newf("%s: argument %q is set by the runtime; leave it out", t.name, own)
		}
	}
	lack := t.lacks(args) // told after what is not an argument at all
	if t.adapt != nil {
		t.adapt(args, scope.left)
	}
	req := t.request()
	if err := durations(args, req.ProtoReflect().Descriptor(), ""); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, fault.MalformedJSON.Newf("%s: the arguments are not JSON: %v", t.name, err)
	}
	if err := pbjson.Unmarshal(raw, req); err != nil {
		return nil, err
	}
	if lack != nil {
		return nil, lack
	}
	if spawn, ok := req.(*agentv1.SpawnAgentRequest); ok {
		if spawn.GetPreset() != agentv1.Preset_PRESET_PUBLIC_NAMED {
			spawn.ParentAgentId = scope.agent.ID
		}
	} else {
		set(req, "agent_id", scope.agent.ID, !t.anyAgent)
		set(req, "session_id", scope.agent.ID, true)
	}
	if t.mutates {
		set(req, "request_id", scope.requestID, true)
	}
	if t.bound && scope.binding != "" {
		set(req, "work_item_id", scope.binding, false)
	}
	return req, nil
}

// set writes a string field if the message has it; without force only where it
// is empty.
func set(m proto.Message, field, value string, force bool) {
	r := m.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd == nil || fd.Kind() != protoreflect.StringKind || !force && r.Has(fd) {
		return
	}
	r.Set(fd, protoreflect.ValueOfString(value))
}

// rebound is the item that following calls are bound to: a pick moves the
// binding, a completion of the bound item ends it.
func rebound(binding string, reply proto.Message) string {
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

func succeeded(c *agentv1.ToolCall, t tool, reply proto.Message) (*agentv1.ToolResult, error) {
	result, err := toStruct(reply)
	if err != nil {
		return nil, err
	}
	if !t.mutates {
		countList(result, reply.ProtoReflect().Descriptor())
	}
	out := &agentv1.ToolResult{
		CallId: c.GetCallId(), ToolName: t.name, Status: statusSuccess, Result: result,
		SummaryText: summaryOf(t, result, reply),
	}
	if spawned, ok := reply.(*agentv1.SpawnAgentResponse); ok && spawned.GetTaskId() != "" {
		// The handle in the seed's shape (S4, Spawn Result Contract).
		result.Fields["task_handle"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"task_id": structpb.NewStringValue(spawned.GetTaskId()), "task_kind": structpb.NewStringValue("child_agent_task"), "status": structpb.NewStringValue("running"),
		}})
	}
	if ws := result.GetFields()["warnings"].GetListValue().GetValues(); len(ws) > 0 {
		for _, w := range ws {
			out.Warnings = append(out.Warnings, w.GetStructValue())
		}
		delete(result.GetFields(), "warnings")
		out.SummaryText += fmt.Sprintf(", with %d warning(s)", len(ws))
	}
	return out, nil
}

// countList says of an answer that is a list of records how many it has, none too:
// a message leaves out what is empty, and a model cannot tell that from nothing.
func countList(result *structpb.Struct, m protoreflect.MessageDescriptor) {
	if name := listOf(m); name != "" && result.GetFields()[name] == nil {
		result.Fields[name] = structpb.NewListValue(&structpb.ListValue{})
	}
}

// listOf names the one list of records that a message is about; "" if it is not.
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

// summaryOf says what came of a call that worked. What it did may have failed all
// the same: a command's end is said in so many words.
func summaryOf(t tool, result *structpb.Struct, reply proto.Message) string {
	exec, ok := reply.(*taskv1.ExecCommandResponse)
	if ok && exec.GetOutcome() != taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED {
		runs := "runs on as a task"
		if exec.GetOutcome() == taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING {
			runs = "was running already"
		}
		return fmt.Sprintf("%s: the command %s%s", t.name, runs, subject(result))
	}
	about, ok := reply.(interface{ GetTask() *taskv1.Task })
	task := (*taskv1.Task)(nil)
	if ok {
		task = about.GetTask()
	}
	end := lower(task.GetState().String(), "TASK_STATE_")
	switch list := listOf(reply.ProtoReflect().Descriptor()); {
	case !t.mutates && task == nil && list != "" && subject(result) == "":
		return fmt.Sprintf("%s succeeded: %d %s", t.name, len(result.GetFields()[list].GetListValue().GetValues()), strings.ReplaceAll(list, "_", " "))
	case task.GetEndedAt() == nil:
		return t.name + " succeeded" + subject(result)
	case task.GetEndMessage() != "":
		end += ", " + cutLine(task.GetEndMessage(), remindObjective)
	case task.ExitCode != nil:
		end += fmt.Sprintf(", exit code %d", task.GetExitCode())
	}
	if t.name == toolExecCommand {
		return fmt.Sprintf("%s: the command %s: %s", t.name, end, task.GetTaskId())
	}
	return fmt.Sprintf("%s succeeded: %s %s", t.name, task.GetTaskId(), end)
}

// subject names the record that a result is about.
func subject(result *structpb.Struct) string {
	if id := result.GetFields()["agent_id"].GetStringValue(); id != "" {
		return ": " + id
	}
	for _, at := range [][2]string{{"work_item", "work_item_id"}, {"wait", "wait_id"}, {"handle", "task_id"}, {"task", "task_id"}, {"trigger", "trigger_id"}, {"timer", "timer_id"}} {
		if id := result.GetFields()[at[0]].GetStructValue().GetFields()[at[1]].GetStringValue(); id != "" {
			return ": " + id
		}
	}
	return ""
}

func toStruct(m proto.Message) (*structpb.Struct, error) {
	raw, err := pbjson.Append(nil, m)
	if err != nil {
		return nil, err
	}
	out := &structpb.Struct{}
	return out, pbjson.Unmarshal(raw, out)
}

// failed is the result of a call that did not succeed. Its kind is the reason
// in the seeds' lower case (SPEC X5).
func failed(c *agentv1.ToolCall, err error) *agentv1.ToolResult {
	f := fault.From(err)
	e := &agentv1.ToolError{
		Kind: strings.ToLower(string(f.Reason())), Message: f.Message(), RecoveryHint: hint(f.Reason()),
		Retryable: f.Code() == codes.Unavailable || f.Code() == codes.Aborted || f.Code() == codes.DeadlineExceeded || f.Code() == codes.ResourceExhausted,
	}
	if len(f.Metadata()) > 0 {
		e.Details = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for k, v := range f.Metadata() {
			e.Details.Fields[k] = structpb.NewStringValue(v)
		}
	}
	return &agentv1.ToolResult{CallId: c.GetCallId(), ToolName: c.GetName(), Status: statusError, SummaryText: f.Message(), Error: e}
}

// hints say to a model how to go on, where the list of reasons speaks to
// programs.
var hints = map[fault.Reason]string{
	fault.InvalidArgument: "Correct that argument by the tool's schema and call again.",
	fault.UnknownField:    "Leave that argument out; the tool's schema has all there are.",
	fault.LimitExceeded:   "Keep to the limit: shorten or split it, and call again.",
	fault.TooLarge:        "Send less at a time: a smaller text, or several files.",
	fault.NotFound:        "Look up what there is with the tool that lists it, and use an id from there.",
}

// reword says an error in the tool's words.
func (t tool) reword(r *agentv1.ToolResult) {
	e := r.GetError()
	if e == nil {
		return
	}
	e.Message = t.plain(e.GetMessage())
	r.SummaryText = e.GetMessage()
	for name, v := range e.GetDetails().GetFields() {
		if text := v.GetStringValue(); name == "field" || name == "value" {
			if name == "field" || strings.ToUpper(text) == text {
				text = t.plain(text)
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
