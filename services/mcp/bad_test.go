package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/mcp"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// byHand speaks the protocol without an SDK, so that it can speak it badly.
type byHand interface {
	// ask sends text as it is and gives what is answered; "" for nothing.
	ask(text string) string
}

// hand is at the other end of a pipe.
type hand struct {
	t        *testing.T
	in       io.Writer
	out      *bufio.Reader
	greeting string   // the answer to initialize
	skipped  []string // notifications that came before an answer
}

const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"hand","version":"1"}}}`

func (r *rig) handOnStdio(t *testing.T, agentID string) *hand {
	return r.hand(t, mcp.Config{Version: "test"}, mcp.Options{AgentID: agentID}, r.conn)
}

// hand connects to ServeStdio.
func (r *rig) hand(t *testing.T, cfg mcp.Config, o mcp.Options, conn func(string) (grpc.ClientConnInterface,
	error),
) *hand {
	s := must.Value(mcp.New(cfg, mcp.Deps{Conn: conn}))(t)
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	ctx, cancel := context.WithCancel(dev.Within(t))
	ended := make(chan error, 1)
	go func() {
		ended <- s.ServeStdio(ctx, toServer, fromServer, o)
		_ = fromServer.Close()
	}()
	h := &hand{t: t, in: fromClient, out: bufio.NewReader(toClient)}
	// A test that waits for an answer which never comes is ended by its context.
	stop := context.AfterFunc(ctx, func() { _ = toClient.Close(); _ = toServer.Close() })
	t.Cleanup(func() {
		_ = fromClient.Close()
		go func() { _, _ = io.Copy(io.Discard, h.out) }()
		require.NoError(t, wait(t, ended), "bad input is no end of a session")
		stop()
		cancel()
		_ = toClient.Close()
	})
	h.greeting = h.ask(hello)
	require.Contains(t, h.greeting, `"protocolVersion"`)
	h.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return h
}

func (h *hand) write(text string) {
	must.Value(io.WriteString(h.in, text+"\n"))(h.t)
}

// ask keeps notifications for notified: the lists may change at any time.
func (h *hand) ask(text string) string {
	h.write(text)
	for {
		line := must.Value(h.out.ReadString('\n'))(h.t)
		if !strings.Contains(line, `"method":"notifications/`) {
			return line
		}
		h.skipped = append(h.skipped, line)
	}
}

// notified returns the next notification of a method, and drops those of other methods.
func (h *hand) notified(method string) string {
	for {
		for i, line := range h.skipped {
			if strings.Contains(line, `"method":"`+method+`"`) {
				h.skipped = h.skipped[i+1:]
				return line
			}
		}
		h.skipped = []string{must.Value(h.out.ReadString('\n'))(h.t)}
	}
}

// request sends a request and returns the answer.
func (h *hand) request(method, params string) string {
	return h.ask(`{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`)
}

// post is over HTTP, a request each.
type post struct {
	*rig
	t    *testing.T
	path string
	hc   *http.Client
}

func (r *rig) handOnHTTP(t *testing.T, agentID string) *post {
	p := &post{
		rig: r, t: t, path: "/mcp/" + agentID,
		hc: &http.Client{Transport: proc.WithToken{RoundTripper: &http.Transport{}}},
	}
	t.Cleanup(p.hc.CloseIdleConnections)
	return p
}

func (p *post) do(method, body string, header map[string]string) (int, string) {
	req := must.Value(http.NewRequestWithContext(dev.Within(p.t), method, p.URL()+p.path, strings.NewReader(body)))(p.t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp := must.Value(p.hc.Do(req))(p.t)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, string(must.Value(io.ReadAll(resp.Body))(p.t))
}

func (p *post) ask(text string) string {
	_, answer := p.do(http.MethodPost, text, nil)
	return answer
}

func callOf(tool, arguments string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments +
		`}}`
}

// SPEC C4, C5, X5: whatever comes in, each request gets its one answer, which
// says what is wrong, and the next one is served as if nothing had been.
func TestC5_BadInputs(t *testing.T) {
	r := newRig(t)
	must.Value(r.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	child := must.Value(r.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		ParentAgentId: "keeper", Preset: agentv1.Preset_PRESET_PRIVATE_CHILD, InitialMessage: "Count.",
	}))(t)

	long := strings.Repeat("x", fault.MaxRoundTextBytes+1)
	huge := strings.Repeat("x", fault.MaxRequestBytes)
	deep := strings.Repeat("[", 2_000) + strings.Repeat("]", 2_000)
	for transport, connect := range map[string]func(t *testing.T, agentID string) byHand{
		"stdio": func(t *testing.T, agentID string) byHand { return r.handOnStdio(t, agentID) },
		"http":  func(t *testing.T, agentID string) byHand { return r.handOnHTTP(t, agentID) },
	} {
		for name, c := range map[string]struct {
			says  string // what both transports answer
			stdio string // or one alone
			http  string
			text  string
			agent string
		}{
			"no JSON": {
				text: `{"jsonrpc":"2.0","id":7,"method":`, stdio: `-32700`, http: "malformed payload",
			},
			"no JSON at all":       {text: `tools/list`, stdio: `-32700`, http: "malformed payload"},
			"JSON, but no message": {text: `{"tool":"ListWorkItems"}`, stdio: `-32600`, http: "version tag"},
			"a batch": {
				text:  `[{"jsonrpc":"2.0","id":7,"method":"tools/list"}]`,
				stdio: `batches are not supported`, http: `"id":7`,
			},
			"a string": {text: `"tools/list"`, stdio: `-32600`, http: "malformed payload"},
			"another version": {
				text: `{"jsonrpc":"1.0","id":7,"method":"tools/list"}`, stdio: `"id":7`, http: "version tag",
			},
			"an id that is none": {
				text: `{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}`, stdio: `-32600`, http: "ID",
			},
			"unknown method": {text: `{"jsonrpc":"2.0","id":7,"method":"tools/fly"}`, says: `tools/fly`},
			"no tool named": {
				text: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}`,
				says: `name is required`,
			},
			"no params": {
				text: `{"jsonrpc":"2.0","id":7,"method":"tools/call"}`, stdio: `"id":7`, http: `missing required`,
			},
			"params are a list": {
				text: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":[1]}`,
				says: `"id":7`,
			},
			"unknown tool":         {text: callOf("Fly", "{}"), says: `tool_not_available`},
			"arguments are a list": {text: callOf("ListWorkItems", "[1]"), says: `malformed_json`},
			"arguments are a text": {text: callOf("ListWorkItems", `"all"`), says: `malformed_json`},
			"an argument's type":   {text: callOf("CreateWorkItem", `{"objective":7}`), says: `objective`},
			"an unknown argument": {
				text: callOf("CreateWorkItem", `{"objective":"x","wish":1}`),
				says: `unknown_field`,
			},
			"nested without end":    {text: callOf("CreateWorkItem", `{"objective":`+deep+`}`), says: `nesting depth`},
			"a text over its limit": {text: callOf("CreateWorkItem", `{"objective":"`+long+`"}`), says: `2000`},
			"a report over its": {
				text: callOf("CompleteWorkItem", `{"work_item_id":"wi_01m7xc9djrj3khnachkj8gd2n0","report":"`+long+
					`"}`), says: `262144`,
			},
			"a message over all": {
				text: callOf("CreateWorkItem", `{"objective":"`+huge+`"}`), stdio: `"id":7`, http: "TOO_LARGE",
			},
			"its id at the end": {
				text: `{"method":"tools/call","params":{"name":"CreateWorkItem","arguments":{"objective":"` + huge +
					`"}},"jsonrpc":"2.0","id":"at the end"}`, stdio: `"id":"at the end"`, http: "TOO_LARGE",
			},
			"unknown resource": {
				text: `{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}`,
				says: `file:///etc/passwd`,
			},
			"outside the profile": {
				agent: child.GetAgentId(), text: callOf("SpawnAgent", `{"initial_message":"x"}`),
				says: `tool_not_available`,
			},
			"outside, dotted": {
				agent: child.GetAgentId(), text: callOf("agent.task_create", `{}`), says: `tool_not_available`,
			},
		} {
			t.Run(transport+"/"+name, func(t *testing.T) {
				if c.agent == "" {
					c.agent = "keeper"
				}
				h := connect(t, c.agent)
				want := c.says + map[string]string{"stdio": c.stdio, "http": c.http}[transport]
				answer := h.ask(c.text)
				require.NotEmpty(t, answer)
				require.Contains(t, short(answer), want)
				require.NotContains(t, answer, "goroutine", "no insides")
				again := h.ask(callOf("ListWorkItems", `{}`))
				require.Contains(t, again, `"status":"success"`, "and it goes on")
			})
		}
	}
	listed := must.Value(r.Work.ListWorkItems(dev.Within(t), &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
	require.Empty(t, listed.GetWorkItems(), "nothing of it changed anything")
}

// short returns a response, shortened for the message of a failure.
func short(answer string) string {
	if len(answer) > 4000 {
		return answer[:4000] + "…"
	}
	return answer
}

// SPEC C5: what HTTP has of its own.
func TestC5_BadRequests(t *testing.T) {
	r := newRig(t)
	must.Value(r.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	p := r.handOnHTTP(t, "keeper")
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for name, c := range map[string]struct {
		method string
		header map[string]string
		status int
	}{
		"GET":    {http.MethodGet, nil, http.StatusMethodNotAllowed},
		"DELETE": {http.MethodDelete, nil, http.StatusMethodNotAllowed},
		"PUT":    {http.MethodPut, nil, http.StatusMethodNotAllowed},
		"no JSON": {
			http.MethodPost,
			map[string]string{"Content-Type": "text/plain"},
			http.StatusUnsupportedMediaType,
		},
		"accepts neither":   {http.MethodPost, map[string]string{"Accept": "text/html"}, http.StatusBadRequest},
		"a made up session": {http.MethodPost, map[string]string{"Mcp-Session-Id": "made-up"}, http.StatusOK},
		"a foreign origin": {
			http.MethodPost,
			map[string]string{"Origin": "https://evil.example"},
			http.StatusForbidden,
		},
		"a null origin":  {http.MethodPost, map[string]string{"Origin": "null"}, http.StatusForbidden},
		"its own origin": {http.MethodPost, map[string]string{"Origin": r.URL()}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			status, body := p.do(c.method, list, c.header)
			require.Equal(t, c.status, status, short(body))
		})
	}
}

// SPEC C5: an agent that is not there is said before the protocol begins, and a
// name that can be none too.
func TestC5_UnknownAgents(t *testing.T) {
	r := newRig(t)
	s := must.Value(mcp.New(mcp.Config{Version: "test"}, mcp.Deps{Conn: func(string) (grpc.ClientConnInterface, error) {
		return r.Conn(), nil
	}}))(t)
	var out strings.Builder
	require.ErrorIs(t, s.ServeStdio(dev.Within(t), strings.NewReader(hello+"\n"), &out, mcp.Options{AgentID: "nobody"}),
		fault.NotFound)
	require.ErrorIs(t, s.ServeStdio(dev.Within(t), strings.NewReader(hello+"\n"), &out,
		mcp.Options{AgentID: "No One", Create: true}), fault.InvalidArgument)
	require.Empty(t, out.String())
	for agentID, status := range map[string]int{"nobody": http.StatusNotFound, "No%20One": http.StatusBadRequest} {
		got, _ := r.handOnHTTP(t, agentID).do(http.MethodPost, hello, nil)
		require.Equal(t, status, got)
	}
}

// full is a connection to a server whose namespace may have no further agent.
type full struct{ grpc.ClientConnInterface }

// Invoke implements grpc.ClientConnInterface.
func (c full) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method == agentv1.AgentService_SpawnAgent_FullMethodName {
		return fault.QuotaExceeded.New("namespace acme has 5 agents, the most it may have")
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// SPEC C5.1: a quota that is full is said at once, and not waited for.
func TestC5_AnAgentBeyondTheQuota(t *testing.T) {
	r := newRig(t)
	s := must.Value(mcp.New(mcp.Config{Version: "test", Patience: time.Minute},
		mcp.Deps{Conn: func(string) (grpc.ClientConnInterface, error) { return full{r.Conn()}, nil }}))(t)
	require.ErrorIs(t, s.ServeStdio(dev.Within(t), strings.NewReader(hello+"\n"), io.Discard,
		mcp.Options{AgentID: "keeper", Create: true}), fault.QuotaExceeded)
}

// SPEC C5: while a call waits, whoever asked for it hears that it goes on, over
// each transport.
func TestC5_ProgressWhileACallWaits(t *testing.T) {
	r := newRig(t)
	for transport, connect := range r.transports() {
		t.Run(transport, func(t *testing.T) {
			h := &heard{}
			s := connect(t, h)
			ran, _ := call(t, s, "ExecCommand", map[string]any{
				"cmd":           "read line; echo got $line",
				"accepts_input": true, "yield_time": "0.05s",
			})
			task := at(ran, "result", "handle", "task_id")
			require.NotEmpty(t, task, "%v", ran)
			params := &sdk.CallToolParams{Name: "TaskOutput", Arguments: map[string]any{
				"task_id": task, "block": true,
				"timeout": "40s",
			}}
			params.SetProgressToken("waits")
			answered := make(chan string, 1)
			ctx := dev.Within(t)
			go func() {
				got, err := s.CallTool(ctx, params)
				if err != nil {
					answered <- err.Error()
					return
				}
				raw, _ := json.Marshal(got.StructuredContent)
				answered <- string(raw)
			}()
			first := wait(t, h.progress)
			require.Equal(t, "waits", first.ProgressToken)
			require.Contains(t, first.Message, "TaskOutput runs for")
			require.Eventually(t, func() bool {
				in, _ := call(t, s, "TaskInput", map[string]any{"task_id": task, "text": "on\n"})
				accepted, _ := in["result"].(map[string]any)["accepted_input"].(bool)
				return accepted
			}, time.Minute, 10*time.Millisecond)
			require.Contains(t, wait(t, answered), "got on")
		})
	}
}
