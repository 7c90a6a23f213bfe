package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
)

const (
	toolComplete = "CompleteWorkItem"
	// report is the argument that replaces the text of a round, which MCP calls do not
	// have.
	report = "report"
	// RequestIDKey is the key in a call's _meta with its request id. The header
	// Idempotency-Key is the same. A repeated call is answered and not executed again.
	RequestIDKey = "quartet/request_id"
	// callTerm is the maximum time of one call: the 45 s that its wait may take, a restart of a
	// plane, and time to answer.
	callTerm = 75 * time.Second
)

// creative has the tools that change something, and says whether they destroy nothing. Hosts ask their user before
// those that may.
var creative = map[string]bool{
	"CreateWorkItem": true, "PickWorkItem": true, "UpdateWorkItem": true, toolComplete: true, "WaitFor": true,
	"CreateWait": true, "CreateExternalTrigger": true, "CreateTimer": true, "SpawnAgent": true,
	"CancelWait": false, "CancelExternalTrigger": false, "CancelTimer": false, "ExecCommand": false,
	"TaskInput": false, "TaskStop": false, "HomeWrite": false, "HomeEdit": false,
	"board_create": false, "board_update": false, "board_update_step": false, "board_complete": false,
	"board_fail": false, "board_cancel": false, "board_dispatch_worker": false, "board_cancel_run": false,
	"board_open_dispatch": false, "board_close_dispatch": false,
}

// outward has the tools with effects outside Quartet.
var outward = map[string]bool{"ExecCommand": true, "TaskInput": true}

// outsideTurns rewords what descriptions say of turns: a session over MCP has none.
var outsideTurns = strings.NewReplacer("the one of this turn", "the one in focus", "the work item of this turn",
	"the work item in focus", ", and end this turn", "")

// syncTools fills the list of tools, the first time that it is called. An agent's profile
// never changes, and every addition would be announced as a change.
func (a *agentServer) syncTools(ctx context.Context) error {
	unlock, err := a.lock(ctx)
	if err != nil || a.tooled {
		unlock()
		return err
	}
	defer unlock()
	got, err := persist(ctx, a, func(ctx context.Context) (*agentv1.ListToolsResponse, error) {
		return a.agents.ListTools(a.as(ctx), &agentv1.ListToolsRequest{AgentId: a.agentID})
	})
	if err != nil {
		return err
	}
	a.tooled = true
	var listed []*sdk.Tool
	if a.tools == MemoryTools {
		listed = memoryOf(got.GetTools())
	} else {
		for _, t := range got.GetTools() {
			listed = append(listed, toolOf(t))
		}
	}
	for _, t := range listed {
		a.srv.AddTool(t, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return a.call(ctx, req)
		})
	}
	return nil
}

// toolOf returns a tool with its schema. CompleteWorkItem also gets the argument report.
func toolOf(t *agentv1.ToolSpec) *sdk.Tool {
	schema := t.GetInputSchema().AsMap()
	about := outsideTurns.Replace(t.GetDescription())
	if t.GetName() == toolComplete {
		about = "Complete a work item, by default the one in focus. Give the report for the operator as report: it " +
			"becomes the item's one report. Complete one item at a time."
		if properties, ok := schema["properties"].(map[string]any); ok {
			properties[report] = map[string]any{
				"type": "string", "description": "What was done, for the operator: results, decisions, what is left. " +
					"At most 256 KiB.",
			}
		}
	}
	tool := &sdk.Tool{
		Name: t.GetName(), Description: about, InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{
			ReadOnlyHint: !t.GetMutates(), IdempotentHint: !t.GetMutates(),
			DestructiveHint: new(t.GetMutates() && !creative[t.GetName()]), OpenWorldHint: new(outward[t.GetName()]),
		},
	}
	if t.GetOutputSchema() != nil { // a server of an earlier version has none
		output := t.GetOutputSchema().AsMap()
		if properties, ok := output["properties"].(map[string]any); ok && t.GetName() == toolComplete {
			properties["promoted_work_item_id"] = map[string]any{"type": "string"}
		}
		tool.OutputSchema = output
	}
	return tool
}

// call executes a tool. Each failure is a result with IsError set, which the model can read
// and react to; this includes arguments that cannot be read and a server that cannot be
// reached. The error is not nil only if the response cannot be encoded. After transient
// errors the call is repeated with the same request id, for at most callTerm and within the
// limits of persist.
func (a *agentServer) call(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	call := &agentv1.CallToolRequest{AgentId: a.agentID, Name: req.Params.Name, RequestId: a.requestID(req)}
	if err := a.reached(ctx); err != nil {
		return refused(call.GetName(), err, a.remedy(err)), nil
	}
	if a.tools == MemoryTools && call.GetName() != "" && !isMemoryTool(call.GetName()) {
		return refused(call.GetName(), a.notInMemory(ctx, call.GetName()),
			"Use one of the tools that this session lists. A session without the option tools=memory has more."), nil
	}
	var args map[string]any
	if raw := req.Params.Arguments; len(raw) > 0 {
		if err := json.Unmarshal(raw, &args); err != nil {
			return refused(call.GetName(), fault.MalformedJSON.Newf("the arguments are not a JSON object: %v", err),
				""), nil
		}
	}
	if given, ok := args[report]; ok && call.GetName() == toolComplete {
		if call.RoundText, ok = given.(string); !ok && given != nil {
			return refused(call.GetName(), fault.Invalid(report, fmt.Sprint(given), "must be text"), ""), nil
		}
		args = maps.Clone(args)
		delete(args, report)
	}
	var err error
	if call.Arguments, err = structpb.NewStruct(args); err != nil {
		return refused(call.GetName(), fault.MalformedJSON.Newf("the arguments cannot be read: %v", err), ""), nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTerm)
	defer cancel()
	stop := a.progress(ctx, req)
	got, err := persist(ctx, a, func(ctx context.Context) (*agentv1.CallToolResponse, error) {
		return a.agents.CallTool(a.as(ctx), call)
	})
	stop()
	if err != nil {
		return refused(call.GetName(), err, a.remedy(err)), nil
	}
	return resultOf(got, a.messages(ctx, call.GetName()))
}

// requestID returns the request id that the client gave, or a new one. The ids of the
// protocol cannot be used: every connection counts them from 1.
func (a *agentServer) requestID(req *sdk.CallToolRequest) string {
	if id, ok := req.Params.Meta[RequestIDKey].(string); ok && id != "" {
		return id
	}
	if req.Extra != nil {
		if id := req.Extra.Header.Get("Idempotency-Key"); id != "" {
			return strings.Trim(id, `"`)
		}
	}
	return a.ids.New("mcp_")
}

// progress notifies a client that requested it that the call still runs, until stop is
// called.
func (a *agentServer) progress(ctx context.Context, req *sdk.CallToolRequest) (stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	started := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(a.cfg.Progress)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				seconds := now.Sub(started).Seconds()
				err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
					ProgressToken: token, Progress: seconds, Message: fmt.Sprintf("%s runs for %.0f s", req.Params.Name,
						seconds),
				})
				if err != nil {
					return // the client is gone
				}
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// resultOf returns the result of a tool (SPEC C4) as structure and as text.
func resultOf(got *agentv1.CallToolResponse, messages any) (*sdk.CallToolResult, error) {
	r := got.GetResult()
	raw, err := pbjson.Append(nil, r) // enums as words, as journals and models have them
	if err != nil {
		return nil, err
	}
	var envelope map[string]any
	if err := json.Unmarshal(raw, &envelope); err != nil {
		return nil, err
	}
	delete(envelope, "call_id")
	if got.GetPromotedWorkItemId() != "" {
		envelope["promoted_work_item_id"] = got.GetPromotedWorkItemId()
	}
	if messages != nil {
		envelope["messages"] = messages
	}
	// Without HTML escapes, so that code stays readable for a model.
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(envelope); err != nil {
		return nil, err
	}
	out := &sdk.CallToolResult{StructuredContent: envelope, Content: []sdk.Content{
		&sdk.TextContent{Text: strings.TrimSuffix(text.String(), "\n")},
	}}
	if e := r.GetError(); e != nil {
		out.IsError = true
		out.Content = []sdk.Content{&sdk.TextContent{Text: errorText(e)}}
	}
	return out, nil
}

// errorText tells a model what is wrong and how to fix it.
func errorText(e *agentv1.ToolError) string {
	text := e.GetKind() + ": " + e.GetMessage()
	if e.GetRecoveryHint() != "" {
		text += "\nHow to fix it: " + e.GetRecoveryHint()
	}
	if e.GetRetryable() {
		text += "\nThe same call may succeed later."
	}
	return text
}

// remedy returns how to start a server if err says that none can be reached, otherwise "".
func (a *agentServer) remedy(err error) string {
	if !errors.Is(err, errAbsent) {
		return ""
	}
	return a.start()
}

// refused returns the result of a call that failed before a tool was executed. remedy says how to
// fix it; empty: as the code of the error implies.
func refused(name string, err error, remedy string) *sdk.CallToolResult {
	f := fault.From(err)
	e := &agentv1.ToolError{
		Kind: strings.ToLower(string(f.Reason())), Message: f.Message(),
		Retryable: client.Passing(err),
	}
	envelope := map[string]any{"kind": e.GetKind(), "message": e.GetMessage(), "retryable": e.GetRetryable()}
	if remedy == "" && f.Code() == codes.InvalidArgument {
		remedy = "Correct the call by the tool's schema and send it again."
	}
	if remedy != "" {
		e.RecoveryHint = remedy
		envelope["recovery_hint"] = remedy
	}
	return &sdk.CallToolResult{
		IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: errorText(e)}},
		StructuredContent: map[string]any{
			"tool_name": name, "status": "error", "summary_text": e.GetMessage(),
			"error": envelope,
		},
	}
}

// protocolError returns an error of the protocol for a refusal, with the remedy if no server can be
// reached.
func (a *agentServer) protocolError(err error) error {
	if errors.Is(err, errAbsent) {
		err = fault.NotReady.New(a.absence())
	}
	return protocolError(err)
}

// protocolError returns an error of the protocol for a refusal.
func protocolError(err error) error {
	f := fault.From(err)
	code := int64(jsonrpc.CodeInternalError)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.InvalidArgument) {
		code = jsonrpc.CodeInvalidParams
	}
	data, merr := json.Marshal(map[string]any{"reason": f.Reason(), "metadata": f.Metadata()})
	if merr != nil {
		data = nil
	}
	return &jsonrpc.Error{Code: code, Message: f.Error(), Data: data}
}
