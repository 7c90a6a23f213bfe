package mcp_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/mcp"
	"quartet/tests/dev"
)

// listedBytes returns how many bytes a list of tools takes.
func listedBytes(t *testing.T, tools []*sdk.Tool) int {
	n := 0
	for _, tool := range tools {
		shown := map[string]any{"name": tool.Name, "description": tool.Description, "inputSchema": tool.InputSchema}
		if tool.OutputSchema != nil {
			shown["outputSchema"] = tool.OutputSchema
		}
		n += len(must.Value(json.Marshal(shown))(t))
	}
	return n
}

// SPEC C5.2: the set memory has at most ten tools in 2000 tokens, over both transports, and does
// what a coding agent needs; a tool outside of it cannot be called.
func TestC5_MemoryTools(t *testing.T) {
	r := newRig(t)
	for transport, connect := range map[string]func(*testing.T) *sdk.ClientSession{
		"http": func(t *testing.T) *sdk.ClientSession {
			s := must.Value(r.overHTTP(dev.Within(t), "/mcp/over-http?create=true&tools=memory", &heard{}))(t)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		"stdio": func(t *testing.T) *sdk.ClientSession {
			r.t = t
			return r.serve(dev.Within(t), mcp.Config{}, mcp.Options{
				AgentID: "over-stdio", Create: true, Tools: mcp.MemoryTools,
			}, r.conn, &heard{})
		},
	} {
		t.Run(transport, func(t *testing.T) {
			s := connect(t)
			listed := must.Value(s.ListTools(dev.Within(t), nil))(t)
			require.Len(t, listed.Tools, 10)
			require.LessOrEqual(t, listedBytes(t, listed.Tools), 4*mcp.MemoryTokens)
			names := map[string]*sdk.Tool{}
			for _, tool := range listed.Tools {
				names[tool.Name] = tool
				require.Nil(t, tool.OutputSchema)
				require.NotEmpty(t, tool.Description)
			}
			for _, name := range []string{
				"CreateWorkItem", "PickWorkItem", "UpdateWorkItem", "CompleteWorkItem",
				"GetWorkItem", "ListWorkItems", "WaitFor", "HomeRead", "HomeWrite", "HomeEdit",
			} {
				require.Contains(t, names, name)
				if name != "GetWorkItem" { // the others are steps of the procedure
					require.Contains(t, s.InitializeResult().Instructions, name)
				}
			}
			require.NotContains(t, s.InitializeResult().Instructions, "ExecCommand")
			for _, name := range []string{"GetWorkItem", "UpdateWorkItem", "CompleteWorkItem"} {
				schema := must.Value(json.Marshal(names[name].InputSchema))(t)
				require.NotContains(t, string(schema), `"required":["work_item_id"]`, name)
				require.Contains(t, string(schema), "Default: the item in focus.", name)
			}

			// Each tool is called, with every argument that its schema lists.
			made, got := call(t, s, "CreateWorkItem", map[string]any{
				"objective": "Ship it", "plan": "1. build\n", "plan_status": "ready",
				"todo_list": []any{map[string]any{"text": "build"}},
			})
			require.False(t, got.IsError, text(t, got))
			item := at(made, "result", "work_item", "work_item_id")
			plan := "work-items/" + item + "/plan.md"
			calls := []struct {
				name string
				args map[string]any
			}{
				{"PickWorkItem", map[string]any{"work_item_id": item, "reason": "first"}},
				{"HomeRead", map[string]any{"path": plan, "offset": 0, "limit": 100}},
				{"HomeWrite", map[string]any{"path": "notes.md", "text": "kept", "expected_sha256": "absent"}},
				{"HomeEdit", map[string]any{
					"path": plan, "old_text": "build", "new_text": "build all",
					"replace_all": true,
				}},
				{"UpdateWorkItem", map[string]any{
					"work_item_id": item, "objective": "Ship all", "plan_status": "ready",
					"todo_list": []any{map[string]any{"text": "build", "state": "completed"}}, "blocked_by": "no key",
					"expected_revision": 1,
				}},
				{"UpdateWorkItem", map[string]any{"work_item_id": item, "blocked_by": nil}},
				{"WaitFor", map[string]any{
					"work_item_id": item, "reason": "a day passes", "wake": "timer",
					"after": "24h",
				}},
				{"WaitFor", map[string]any{
					"work_item_id": item, "reason": "a day passes", "wake": "timer",
					"at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
				}},
				{"WaitFor", map[string]any{"work_item_id": item, "reason": "CI", "wake": "external"}},
				{"ListWorkItems", map[string]any{"filter": "open", "include_todo_list": true, "limit": 5}},
				{"GetWorkItem", map[string]any{"work_item_id": item}},
				{"CompleteWorkItem", map[string]any{"work_item_id": item, "report": "Shipped."}},
			}
			for _, c := range calls {
				given := must.Value(json.Marshal(names[c.name].InputSchema))(t)
				var schema jsonschema.Schema
				require.NoError(t, json.Unmarshal(given, &schema))
				require.NoError(t, must.Value(schema.Resolve(nil))(t).Validate(c.args), c.name)
				for argument := range c.args {
					require.Contains(t, schema.Properties, argument, c.name)
				}
				_, got := call(t, s, c.name, c.args)
				require.False(t, got.IsError, "%s: %s", c.name, text(t, got))
			}

			for _, name := range []string{
				"ExecCommand", "TaskList", "board_create", "agent_task_create", "HomeList",
				"Fly",
			} {
				envelope, got := call(t, s, name, nil)
				require.True(t, got.IsError)
				require.Equal(t, "tool_not_available", at(envelope, "error", "kind"), name)
				require.Contains(t, text(t, got), name)
				require.Contains(t, text(t, got), "CreateWorkItem")
				require.Contains(t, text(t, got), "How to fix it: ")
			}
		})
	}
}

// Every tool and argument of the set exists in the table of tools with another description, so
// that a renamed argument is noticed here.
func TestC5_MemoryToolsAreTools(t *testing.T) {
	r := newRig(t)
	all := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?create=true&tools=all", &heard{}))(t)
	defer all.Close()
	short := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?tools=memory", &heard{}))(t)
	defer short.Close()
	whole := must.Value(all.ListTools(dev.Within(t), nil))(t)
	memory := must.Value(short.ListTools(dev.Within(t), nil))(t)
	arguments := 0
	for _, m := range memory.Tools {
		arguments += len(m.InputSchema.(map[string]any)["properties"].(map[string]any))
		found := false
		for _, w := range whole.Tools {
			if w.Name != m.Name {
				continue
			}
			found = true
			require.NotEqual(t, w.Description, m.Description)
			for name, p := range m.InputSchema.(map[string]any)["properties"].(map[string]any) {
				same := w.InputSchema.(map[string]any)["properties"].(map[string]any)[name].(map[string]any)
				require.Equal(t, same["type"], p.(map[string]any)["type"], "%s %s", m.Name, name)
				require.Equal(t, same["enum"], p.(map[string]any)["enum"], "%s %s", m.Name, name)
			}
			if m.Name == "HomeWrite" { // the only form of a content here
				require.Equal(t, []any{"path", "text"}, m.InputSchema.(map[string]any)["required"])
			} else {
				require.Equal(t, w.InputSchema.(map[string]any)["required"], m.InputSchema.(map[string]any)["required"])
			}
			require.Equal(t, w.Annotations, m.Annotations)
		}
		require.True(t, found, m.Name)
	}
	require.Equal(t, 35, arguments, "an argument is described that the server does not have")
}

// bearer sends a key with each request.
type bearer struct {
	http.RoundTripper
	key string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.RoundTripper.RoundTrip(r)
}

// TestC5_ARefusalNamesTheToolsOfTheSession: to a caller whose key allows only some tools of the set, those are named.
func TestC5_ARefusalNamesTheToolsOfTheSession(t *testing.T) {
	r := newRig(t)
	must.Value(r.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	key, err := identityv1.NewIdentityServiceClient(r.Conn()).CreateKey(dev.Within(t), &identityv1.CreateKeyRequest{
		Name: "ci", Role: identityv1.Role_ROLE_OPERATOR, Tools: []string{"CreateWorkItem", "ListWorkItems"},
	})
	require.NoError(t, err)
	hc := &http.Client{Transport: bearer{&http.Transport{}, key.GetSecret()}}
	defer hc.CloseIdleConnections()
	s := must.Value((&heard{}).client().Connect(dev.Within(t), &sdk.StreamableClientTransport{
		Endpoint: r.URL() + "/mcp/keeper?tools=memory", HTTPClient: hc, DisableStandaloneSSE: true, MaxRetries: -1,
	}, nil))(t)
	defer func() { _ = s.Close() }()
	_, got := call(t, s, "ExecCommand", nil)
	require.True(t, got.IsError)
	require.Contains(t, text(t, got), "this session has the tools ListWorkItems, CreateWorkItem\n")
	require.NotContains(t, text(t, got), "WaitFor")
}

// An unknown set is refused before anything is created.
func TestC5_UnknownSetsOfTools(t *testing.T) {
	r := newRig(t)
	s := must.Value(mcp.New(mcp.Config{Version: "test"}, mcp.Deps{Conn: func(string) (grpc.ClientConnInterface, error) {
		return r.Conn(), nil
	}}))(t)
	var out strings.Builder
	for _, set := range []string{"Memory", "some", "memory,all", " memory"} {
		err := s.ServeStdio(dev.Within(t), strings.NewReader(hello+"\n"), &out,
			mcp.Options{AgentID: "keeper", Create: true, Tools: set})
		require.ErrorIs(t, err, fault.InvalidArgument)
		require.ErrorContains(t, err, "must be all or memory")
	}
	require.Empty(t, out.String())
	for query, says := range map[string]string{
		"tools=Memory": "must be all or memory", "tools=": "", "tools=memory&tools=all": "UNKNOWN_FIELD",
		"tool=memory": "create and tools", "tools=all": "",
	} {
		p := r.handOnHTTP(t, "keeper")
		p.path += "?" + query
		status, body := p.do(http.MethodPost, hello, nil)
		if says == "" {
			require.Equal(t, http.StatusNotFound, status, "the default, of an agent that does not exist: %s", body)
			continue
		}
		require.Equal(t, http.StatusBadRequest, status, query)
		require.Contains(t, body, says)
	}
	must.Refuse(r.Agents.GetAgent(dev.Within(t), &agentv1.GetAgentRequest{AgentId: "keeper"}))(t, fault.NotFound)
}

// SPEC C5.4: what a session returns is what the output schemas allow, refusals included.
func TestC5_ResultsMatchTheirOutputSchemas(t *testing.T) {
	r := newRig(t)
	s := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?create=true", &heard{}))(t)
	defer s.Close()
	listed := must.Value(s.ListTools(dev.Within(t), nil))(t)
	schemas := map[string]*jsonschema.Resolved{}
	for _, tool := range listed.Tools {
		raw := must.Value(json.Marshal(tool.OutputSchema))(t)
		var schema jsonschema.Schema
		require.NoError(t, json.Unmarshal(raw, &schema))
		require.Equal(t, "object", schema.Type, tool.Name)
		schemas[tool.Name] = must.Value(schema.Resolve(nil))(t)
		require.Equal(t, tool.Name == "CompleteWorkItem", schema.Properties["promoted_work_item_id"] != nil)
	}
	checked := func(name string, args map[string]any, fails bool) map[string]any {
		envelope, got := call(t, s, name, args)
		require.Equal(t, fails, got.IsError, text(t, got))
		require.NoError(t, schemas[name].Validate(envelope), name)
		return envelope
	}
	for name := range schemas { // a refusal of each before a tool is executed, and one by the plane
		checked(name, map[string]any{"no_such_argument": 1}, true)
	}
	checked("CompleteWorkItem", map[string]any{"report": 5}, true)
	item := at(
		checked("CreateWorkItem", map[string]any{
			"objective": "Ship it",
			"todo_list": []any{map[string]any{"text": "build"}},
		}, false), "result", "work_item", "work_item_id")
	checked("PickWorkItem", map[string]any{"work_item_id": item}, false)
	checked("CreateTimer", map[string]any{"description": "look", "after": "1h", "work_item_id": item}, false)
	checked("ListWorkItems", nil, false)
	checked("GetWorkItem", map[string]any{"work_item_id": item}, false)
	checked("AgentGet", nil, false)
	checked("ExecCommand", map[string]any{"cmd": "echo hello"}, false)
	checked("TaskList", map[string]any{"include_terminal": true}, false)
	checked("HomeWrite", map[string]any{"path": "a.md", "text": ""}, false)
	checked("HomeList", nil, false)
	checked("board_create", map[string]any{
		"board_id": "b", "wal_name": "b", "title": "B",
		"steps": []any{map[string]any{"step_id": "a", "title": "A"}},
	}, false)
	checked("board_get", map[string]any{"board_id": "b"}, false)
	checked("SpawnAgent", map[string]any{"initial_message": "Count."}, false)
	checked("CompleteWorkItem", map[string]any{"work_item_id": item, "report": "Shipped."}, false)
}

// SPEC C5.3: a list of 31 items with plans fits into a context.
func TestC5_AListOfManyItemsIsShort(t *testing.T) {
	r := newRig(t)
	s := must.Value(r.overHTTP(dev.Within(t), "/mcp/keeper?create=true", &heard{}))(t)
	defer s.Close()
	plan := strings.Repeat("a line of the plan that a preview would show\n", 40)
	var last string
	for range 31 {
		last = must.Value(r.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
			AgentId: "keeper", Objective: "An objective of ordinary length", Plan: plan,
		}))(t).GetWorkItem().GetWorkItemId()
	}
	listed, got := call(t, s, "ListWorkItems", map[string]any{"filter": "open", "limit": 31})
	require.NotContains(t, text(t, got), "preview")
	items := listed["result"].(map[string]any)["work_items"].([]any)
	require.Len(t, items, 31)
	artifact := items[0].(map[string]any)["plan_artifact"].(map[string]any)
	require.NotEmpty(t, artifact["path"])
	require.NotEmpty(t, artifact["sha256"])
	require.EqualValues(t, len(plan), artifact["bytes"])
	one, _ := call(t, s, "GetWorkItem", map[string]any{"work_item_id": last})
	require.Contains(t, at(one, "result", "work_item", "plan_artifact", "preview"), "a line of the plan")
}
