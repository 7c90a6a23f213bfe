package mcp_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/mcp"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a whole server in this process.
type rig struct {
	t *testing.T
	*dev.Server
}

func newRig(t *testing.T) *rig { return &rig{t: t, Server: dev.Start(t)} }

func (r *rig) conn(string) (grpc.ClientConnInterface, error) { return r.Conn(), nil }

// heard is what a client was notified of.
type heard struct {
	progress  chan *sdk.ProgressNotificationParams
	changed   chan struct{}
	listening chan struct{} // closed once the server said that it will tell of changes
	tools     chan struct{}
	updated   chan string // URIs of resources
}

func (h *heard) options() *sdk.ClientOptions {
	h.progress, h.changed = make(chan *sdk.ProgressNotificationParams, 100), make(chan struct{}, 100)
	h.tools, h.updated = make(chan struct{}, 100), make(chan string, 100)
	return &sdk.ClientOptions{
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { hear(h.tools, struct{}{}) },
		ResourceUpdatedHandler: func(_ context.Context, n *sdk.ResourceUpdatedNotificationRequest) {
			hear(h.updated, n.Params.URI)
		},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
			hear(h.progress, n.Params)
		},
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) {
			hear(h.changed, struct{}{})
		},
	}
}

// hear keeps what came. A test that hears the first ones only must not hold the
// session up, so what there is no room for is let go.
func hear[T any](into chan<- T, what T) {
	select {
	case into <- what:
	default:
	}
}

// client returns the SDK's own. It begins to listen while Connect returns, so what
// counts on being told has to wait for listening.
func (h *heard) client() *sdk.Client {
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, h.options())
	h.listening = make(chan struct{})
	once := sync.OnceFunc(func() { close(h.listening) })
	c.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "notifications/subscriptions/acknowledged" {
				once()
			}
			return next(ctx, method, req)
		}
	})
	return c
}

// wait returns a receive that a test does not outlive.
func wait[T any](t *testing.T, from <-chan T) T {
	select {
	case got := <-from:
		return got
	case <-dev.Within(t).Done():
		require.FailNow(t, "nothing was heard")
		panic("unreachable")
	}
}

// transports returns functions that connect a client, by the name of the transport.
func (r *rig) transports() map[string]func(*testing.T, *heard) *sdk.ClientSession {
	return map[string]func(*testing.T, *heard) *sdk.ClientSession{
		"http": func(t *testing.T, h *heard) *sdk.ClientSession {
			s := must.Value(r.overHTTP(dev.Within(t), "/mcp/over-http?create=true", h))(t)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		"stdio": func(t *testing.T, h *heard) *sdk.ClientSession {
			r.t = t
			return r.overStdio(dev.Within(t), "over-stdio", true, h)
		},
	}
}

// overHTTP connects the SDK's own client.
func (r *rig) overHTTP(ctx context.Context, path string, h *heard) (*sdk.ClientSession, error) {
	c := h.client()
	hc := &http.Client{Transport: proc.WithToken{RoundTripper: &http.Transport{}}}
	r.t.Cleanup(hc.CloseIdleConnections)
	return c.Connect(ctx, &sdk.StreamableClientTransport{
		Endpoint: r.URL() + path, HTTPClient: hc, DisableStandaloneSSE: true, MaxRetries: -1,
	}, nil)
}

// overStdio connects it to ServeStdio, as `quartet mcp` runs it.
func (r *rig) overStdio(ctx context.Context, agentID string, create bool, h *heard) *sdk.ClientSession {
	return r.serve(ctx, mcp.Config{Version: "test", Progress: 20 * time.Millisecond},
		mcp.Options{AgentID: agentID, Create: create}, r.conn, h)
}

// serve connects the SDK's own client to ServeStdio.
func (r *rig) serve(ctx context.Context, cfg mcp.Config, o mcp.Options, conn func(string) (grpc.ClientConnInterface,
	error), h *heard,
) *sdk.ClientSession {
	s := must.Value(mcp.New(cfg, mcp.Deps{Conn: conn}))(r.t)
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- s.ServeStdio(ctx, toServer, fromServer, o)
		fromServer.Close()
	}()
	c := h.client()
	session := must.Value(c.Connect(ctx, &sdk.IOTransport{Reader: toClient, Writer: fromClient}, nil))(r.t)
	r.t.Cleanup(func() {
		session.Close()
		require.NoError(r.t, wait(r.t, ended))
	})
	return session
}

func call(t *testing.T, s *sdk.ClientSession, name string, args map[string]any) (map[string]any, *sdk.CallToolResult) {
	got := must.Value(s.CallTool(dev.Within(t), &sdk.CallToolParams{Name: name, Arguments: args}))(t)
	envelope, ok := got.StructuredContent.(map[string]any)
	require.True(t, ok)
	return envelope, got
}

func text(t *testing.T, got *sdk.CallToolResult) string {
	require.Len(t, got.Content, 1)
	content, ok := got.Content[0].(*sdk.TextContent)
	require.True(t, ok)
	return content.Text
}

func at(v any, path ...string) string {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	s, _ := v.(string)
	return s
}

// SPEC C5: the whole loop of a coding agent, over each transport, with the
// SDK's own client.
func TestC5_TheLoop(t *testing.T) {
	r := newRig(t)
	for transport, connect := range r.transports() {
		t.Run(transport, func(t *testing.T) {
			h := &heard{}
			s := connect(t, h)
			ctx := dev.Within(t)
			require.Contains(t, s.InitializeResult().Instructions, "ListWorkItems")
			listed := must.Value(s.ListTools(ctx, nil))(t)
			tools := map[string]*sdk.Tool{}
			for _, tool := range listed.Tools {
				tools[tool.Name] = tool
			}
			require.True(t, tools["ListWorkItems"].Annotations.ReadOnlyHint)
			require.False(t, tools["CreateWorkItem"].Annotations.ReadOnlyHint)
			require.False(t, *tools["CreateWorkItem"].Annotations.DestructiveHint)
			require.True(t, *tools["ExecCommand"].Annotations.DestructiveHint)
			schema := must.Value(json.Marshal(tools["CompleteWorkItem"].InputSchema))(t)
			require.Contains(t, string(schema), `"report"`)
			require.Contains(t, string(schema), `"additionalProperties":false`)
			// they take the item in focus
			for _, name := range []string{
				"GetWorkItem", "UpdateWorkItem", "CompleteWorkItem", "WaitFor", "ExecCommand",
				"CreateTimer",
			} {
				schema := must.Value(json.Marshal(tools[name].InputSchema))(t)
				require.NotContains(t, string(schema), `"required":["work_item_id"]`)
				require.NotContains(t, tools[name].Description, "this turn")
			}

			made, got := call(t, s, "CreateWorkItem", map[string]any{
				"objective": "Ship it", "plan_status": "ready",
				"plan": "1. build\n",
			})
			require.False(t, got.IsError)
			require.Equal(t, "success", made["status"])
			item := at(made, "result", "work_item", "work_item_id")
			require.NotEmpty(t, item)

			resources := must.Value(s.ListResources(ctx, nil))(t)
			var uri string
			for _, res := range resources.Resources {
				if strings.HasSuffix(res.URI, item+"/plan.md") {
					uri = res.URI
					require.Equal(t, "Plan: Ship it", res.Title)
				}
			}
			require.NotEmpty(t, uri)
			read := must.Value(s.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri}))(t)
			require.Equal(t, "1. build\n", read.Contents[0].Text)
			_, got = call(t, s, "HomeWrite", map[string]any{
				"path": "work-items/" + item + "/plan.md",
				"text": "1. build\n2. ship\n",
			})
			require.False(t, got.IsError, text(t, got))
			read = must.Value(s.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri}))(t)
			require.Equal(t, "1. build\n2. ship\n", read.Contents[0].Text, "the plan is live")

			_, got = call(t, s, "PickWorkItem", map[string]any{"work_item_id": item})
			require.False(t, got.IsError)
			ran, _ := call(t, s, "ExecCommand", map[string]any{"cmd": "echo shipped", "work_item_id": item})
			require.Equal(t, "shipped\n", at(ran, "result", "output"))
			done, got := call(t, s, "CompleteWorkItem",
				map[string]any{"work_item_id": item, "report": "Shipped, and looked at."})
			require.False(t, got.IsError)
			require.Equal(t, item, done["promoted_work_item_id"])
			kept, _ := call(t, s, "GetWorkItem", map[string]any{"work_item_id": item})
			require.Equal(t, "Shipped, and looked at.", at(kept, "result", "work_item", "result_summary"))

			require.Eventually(t, func() bool {
				briefs, err := s.ReadResource(ctx, &sdk.ReadResourceParams{
					URI: strings.TrimSuffix(uri, "work-items/"+item+"/plan.md") + "briefs",
				})
				return err == nil && strings.Contains(briefs.Contents[0].Text, "Shipped, and looked at.")
			}, time.Minute, 5*time.Millisecond, "the report is a brief")

			resources = must.Value(s.ListResources(ctx, nil))(t)
			for _, res := range resources.Resources {
				require.NotEqual(t, uri, res.URI, "a completed item's plan is in no list")
			}
			read = must.Value(s.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri}))(t)
			require.NotEmpty(t, read.Contents[0].Text, "but can be read")
		})
	}
}

// SPEC X5, C4: what is wrong with a call is a result that says how to mend it.
func TestC5_RefusalsAreResults(t *testing.T) {
	r := newRig(t)
	s := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?create=true", &heard{}))(t)
	defer s.Close()
	for _, c := range []struct {
		tool string
		args map[string]any
		kind string
		says string
	}{
		{"PickWorkItem", map[string]any{"work_item_id": "wi_01m7xc9djrj3khnachkj8gd2n0"}, "not_found", "wi_01m7"},
		{"CreateWorkItem", map[string]any{"objective": ""}, "invalid_argument", "objective"},
		{"CreateWorkItem", map[string]any{"objective": "x", "nonsense": 1}, "unknown_field", "nonsense"},
		{"ListWorkItems", map[string]any{"report": "no report here"}, "unknown_field", "report"},
		{
			"CompleteWorkItem",
			map[string]any{"report": 5, "work_item_id": "wi_01m7xc9djrj3khnachkj8gd2n0"},
			"invalid_argument", "must be text",
		},
		{"Fly", nil, "tool_not_available", "CreateWorkItem"},
	} {
		envelope, got := call(t, s, c.tool, c.args)
		require.True(t, got.IsError, c.tool)
		require.Equal(t, c.kind, at(envelope, "error", "kind"))
		require.Contains(t, text(t, got), c.kind+": ")
		require.Contains(t, text(t, got), c.says)
		require.Contains(t, text(t, got), "How to fix it: ")
	}
	for _, uri := range []string{
		"quartet://agents/keeper/work-items/wi_01m7xc9djrj3khnachkj8gd2n0/plan.md",
		"quartet://agents/other/work-items/wi_01m7xc9djrj3khnachkj8gd2n0/plan.md",
		"quartet://agents/keeper/work-items/..%2f..%2fother/plan.md",
	} {
		require.Error(t, must.Err(s.ReadResource(dev.Within(t), &sdk.ReadResourceParams{URI: uri})), uri)
	}
}

// SPEC X2: a call that is sent again under its id is answered, and not run again.
func TestX2_ACallWithAnID(t *testing.T) {
	r := newRig(t)
	s := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?create=true", &heard{}))(t)
	defer s.Close()
	twice := func(id string) (string, string) {
		var ids []string
		for range 2 {
			got := must.Value(s.CallTool(dev.Within(t), &sdk.CallToolParams{
				Meta: sdk.Meta{mcp.RequestIDKey: id}, Name: "CreateWorkItem", Arguments: map[string]any{
					"objective": "Once",
				},
			}))(t)
			ids = append(ids, at(got.StructuredContent, "result", "work_item", "work_item_id"))
		}
		return ids[0], ids[1]
	}
	first, second := twice("mine-1")
	require.NotEmpty(t, first)
	require.Equal(t, first, second)
	first, second = twice("")
	require.NotEqual(t, first, second, "without one every call is its own")
}

// SPEC C5: a client that asks for it hears that a command still runs.
func TestC5_Progress(t *testing.T) {
	r := newRig(t)
	h := &heard{}
	s := r.overStdio(dev.Within(t), "keeper", true, h)
	params := &sdk.CallToolParams{Name: "ExecCommand", Arguments: map[string]any{
		"cmd":           "read line; echo got $line",
		"accepts_input": true, "yield_time": "40s",
	}}
	params.SetProgressToken("p1")
	type answer struct {
		got *sdk.CallToolResult
		err error
	}
	answered := make(chan answer, 1)
	ctx := dev.Within(t)
	go func() {
		got, err := s.CallTool(ctx, params)
		answered <- answer{got, err}
	}()
	first, second := wait(t, h.progress), wait(t, h.progress)
	require.Equal(t, "p1", first.ProgressToken)
	require.Contains(t, first.Message, "ExecCommand runs for")
	require.Greater(t, second.Progress, first.Progress)
	var tasks []any
	require.Eventually(t, func() bool { // on a busy machine the command may not be queued yet
		listed, _ := call(t, s, "TaskList", nil)
		tasks, _ = listed["result"].(map[string]any)["tasks"].([]any)
		return len(tasks) == 1
	}, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		in, _ := call(t, s, "TaskInput", map[string]any{"task_id": at(tasks[0], "task_id"), "text": "on\n"})
		accepted, _ := in["result"].(map[string]any)["accepted_input"].(bool)
		return accepted
	}, time.Minute, 10*time.Millisecond)
	a := wait(t, answered)
	require.NoError(t, a.err)
	require.Equal(t, "got on\n", at(a.got.StructuredContent, "result", "output"))
}

// SPEC C5: a client that listens hears that the list of plans changed, whoever
// changed it.
func TestC5_ListChanged(t *testing.T) {
	r := newRig(t)
	h := &heard{}
	s := r.overStdio(dev.Within(t), "keeper", true, h)
	has := func(objective string) bool {
		got := must.Value(s.ListResources(dev.Within(t), nil))(t)
		for _, res := range got.Resources {
			if res.Title == "Plan: "+objective {
				return true
			}
		}
		return false
	}
	wait(t, h.listening)
	require.False(t, has("From elsewhere"))
	made := must.Value(r.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: "keeper", Objective: "From elsewhere",
	}))(t)
	wait(t, h.changed)
	require.True(t, has("From elsewhere"))
	must.Value(r.Work.CompleteWorkItem(dev.Within(t), &workv1.CompleteWorkItemRequest{
		AgentId: "keeper", WorkItemId: made.GetWorkItem().GetWorkItemId(),
	}))(t)
	wait(t, h.changed)
	require.False(t, has("From elsewhere"))
}

// An agent is made on first use only if that is asked for, by many at once too.
func TestC5_CreateOnFirstUse(t *testing.T) {
	r := newRig(t)
	must.Fail(r.overHTTP(dev.Within(t), "/mcp/nobody", &heard{}))(t, "Not Found")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s, err := r.overHTTP(dev.Within(t), "/mcp/somebody?create=true", &heard{})
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	all.Wait()
	got := must.Value(r.Agents.GetAgent(dev.Within(t), &agentv1.GetAgentRequest{AgentId: "somebody"}))(t)
	require.Equal(t, agentv1.Visibility_VISIBILITY_PUBLIC, got.GetAgent().GetVisibility())
	require.EqualValues(t, 1, got.GetAgent().GetRevision())
}

// What is wrong before the protocol begins is answered as REST does; credentials,
// Host, Origin and size are checked the same.
func TestC5_TheDoor(t *testing.T) {
	r := newRig(t)
	post := func(path, body string, header map[string]string) (int, string) {
		req, err := http.NewRequestWithContext(dev.Within(t), http.MethodPost, r.URL()+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range header {
			if k == "Host" {
				req.Host = v
			}
			req.Header.Set(k, v)
		}
		resp := must.Value(proc.HTTP.Do(req))(t)
		defer resp.Body.Close()
		return resp.StatusCode, string(must.Value(io.ReadAll(resp.Body))(t))
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for name, c := range map[string]struct {
		path, body string
		header     map[string]string
		status     int
		says       string
	}{
		"no agent":      {"/mcp/", list, nil, 400, "INVALID_ARGUMENT"},
		"odd agent":     {"/mcp/No%20One", list, nil, 400, "INVALID_ARGUMENT"},
		"unknown agent": {"/mcp/nobody", list, nil, 404, "NOT_FOUND"},
		"odd parameter": {"/mcp/keeper?make=true", list, nil, 400, "UNKNOWN_FIELD"},
		"odd create":    {"/mcp/keeper?create=perhaps", list, nil, 400, "create"},
		"odd token": {
			"/mcp/keeper?create=true", list,
			map[string]string{"Authorization": "Bearer nonsense"},
			401,
			"UNAUTHENTICATED",
		},
		"odd origin": {
			"/mcp/keeper?create=true", list,
			map[string]string{"Origin": "https://evil.example"},
			403,
			"PERMISSION_DENIED",
		},
		"odd host": {
			"/mcp/keeper?create=true", list,
			map[string]string{"Host": "evil.example"},
			421,
			"PERMISSION_DENIED",
		},
		"too large": {
			"/mcp/keeper?create=true", `{"x":"` + strings.Repeat("x", 4<<20) + `"}`, nil, 413,
			"TOO_LARGE",
		},
		"good": {"/mcp/keeper?create=true", list, nil, 200, "PickWorkItem"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := post(c.path, c.body, c.header)
			require.Equal(t, c.status, status, body)
			require.Contains(t, body, c.says)
		})
	}
}

// SPEC X14: no session is kept, so a client goes on after a restart as if
// nothing had happened.
func TestX14_ARestartCostsAClientNothing(t *testing.T) {
	r := newRig(t)
	s := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?create=true", &heard{}))(t)
	defer s.Close()
	made, _ := call(t, s, "CreateWorkItem", map[string]any{"objective": "Before"})
	r.Down()
	r.Up()
	kept, got := call(t, s, "GetWorkItem",
		map[string]any{"work_item_id": at(made, "result", "work_item", "work_item_id")})
	require.False(t, got.IsError)
	require.Equal(t, "Before", at(kept, "result", "work_item", "objective"))
}

// A program that writes its requests and closes its side gets every answer.
func TestC5_AnswersOutliveTheEndOfInput(t *testing.T) {
	r := newRig(t)
	s := must.Value(mcp.New(mcp.Config{Version: "test"}, mcp.Deps{
		Conn: func(string) (grpc.ClientConnInterface, error) { return r.Conn(), nil },
	}))(t)
	in := strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"hand","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"ExecCommand","arguments":{"cmd":"echo heard"}}}
`)
	var out strings.Builder
	require.NoError(t, s.ServeStdio(dev.Within(t), in, &out, mcp.Options{AgentID: "keeper", Create: true}))
	require.Contains(t, out.String(), `"id":1`)
	require.Contains(t, out.String(), `"id":"two"`)
	require.Contains(t, out.String(), "heard")
}
