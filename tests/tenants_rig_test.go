package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// tenant is a namespace with something of everything in it, and a credential of
// every kind that its people could hold.
type tenant struct {
	h      *house
	name   string
	mark   string // stands in every text of the tenant, and in no id
	tokens map[string]string
	conns  map[string]*grpc.ClientConn
	// ids are the tenant's, by the snake_case name of the field they were found
	// in: page tokens and cursors too.
	ids map[string][]string
}

// shared is an agent that every tenant has; own is one that only this one has.
const shared = "vault"

func (te *tenant) own() string { return "only-" + te.name }

var attackers = []string{
	rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleRunner, rpc.RoleAgent, rpc.RoleWorker,
	rpc.RoleIntegration,
}

func newTenant(t *testing.T, h *house, name string) *tenant {
	te := &tenant{
		h: h, name: name, mark: "qzmark" + name + "zq", tokens: map[string]string{},
		conns: map[string]*grpc.ClientConn{}, ids: map[string][]string{},
	}
	for _, role := range attackers {
		req := &identityv1.CreateKeyRequest{Name: "k-" + te.mark + "-" + role, Namespace: name}
		for r, number := range identityv1.Role_value {
			if strings.EqualFold(r, "ROLE_"+role) {
				req.Role = identityv1.Role(number)
			}
		}
		if role == rpc.RoleAgent {
			req.AgentId = shared
		}
		var id string
		id, te.tokens[role] = h.key(t, req)
		te.ids["key_id"] = append(te.ids["key_id"], id)
		te.conns[role] = h.conn(t, te.tokens[role])
	}
	te.settle(t)
	te.harvest(t)
	return te
}

// do calls REST as the tenant's admin and keeps the ids of the answer.
func (te *tenant) do(t *testing.T, method, path, body string) answer {
	t.Helper()
	a := te.h.rest(t, te.tokens[rpc.RoleAdmin], method, path, strings.ReplaceAll(body, "MARK", te.mark))
	require.Equal(t, http.StatusOK, a.status, "%s %s: %s", method, path, a.body)
	te.keep(t, a.body)
	return a
}

// settle makes something of everything.
func (te *tenant) settle(t *testing.T) {
	for _, agent := range []string{shared, te.own()} {
		at := "/v1/agents/" + agent
		te.do(t, "POST", "/v1/agents", `{"agentId":"`+agent+`","preset":"public_named"}`)
		te.do(t, "POST", at+"/messages", `{"text":"message MARK"}`)
		item := te.do(t, "POST", at+"/work-items",
			`{"objective":"objective MARK","todoList":[{"text":"todo MARK","state":"pending"}]}`).
			field(t, "workItem", "workItemId")
		te.do(t, "POST", at+"/waits", `{"workItemId":"`+item+`","condition":"condition MARK"}`)
		te.do(t, "POST", at+"/triggers", `{"workItemId":"`+item+`","description":"trigger MARK"}`)
		te.do(t, "POST", at+"/timers", `{"description":"timer MARK","after":"864000s"}`)
		te.do(t, "PUT", at+"/home/file", `{"path":"notes.md","text":"file MARK"}`)
		te.do(t, "POST", at+"/tasks:exec", `{"command":{"cmd":"echo output MARK"},"yieldTime":"20s"}`)
		te.do(t, "POST", "/v1/sessions/"+agent+"/boards", `{"boardId":"build-`+agent+`","walName":"wal-`+agent+
			`","title":"board MARK","steps":[{"stepId":"one","title":"step MARK","summary":"summary MARK"}]}`)
		te.do(t, "POST", "/v1/sessions/"+agent+"/boards/build-"+agent+"/dispatches",
			`{"workerPoolId":"pool","instruction":"instruction MARK"}`)
		turn := te.do(t, "POST", "/v1/turns:acquire", `{"agentIds":["`+agent+`"],"wait":"20s"}`)
		turnID, runID := turn.field(t, "turn", "turnId"), turn.field(t, "turn", "runId")
		require.NotEmpty(t, runID, turn.body)
		te.tokens["run of "+agent] = turn.field(t, "runToken")
		te.conns["run of "+agent] = te.h.conn(t, te.tokens["run of "+agent])
		te.do(t, "POST", at+"/turns/"+turnID+"/rounds", `{"runId":"`+runID+`","text":"round MARK","roundIndex":0}`)
	}
}

// harvest reads everything that can be read, for its ids, page tokens and
// cursors, and to see that the mark is there to be found.
func (te *tenant) harvest(t *testing.T) {
	at := "/v1/agents/" + te.own()
	marked := 0
	for _, path := range []string{
		"/v1/agents?page_size=1", at, at + "/messages?page_size=1", at + "/work-items?page_size=1", at + "/waits",
		at + "/triggers", at + "/timers",
		at + "/tasks", at + "/turns", at + "/rounds", at + "/home/files", at + "/home/file?path=notes.md",
		at + "/home/files:grep?pattern=file", at + "/context", at + "/briefs", at + "/decisions",
		at + "/delegations", at + "/tools", at + ":explain", at + "/work-queue",
		"/v1/sessions/" + te.own() + "/boards", "/v1/sessions/" + te.own() + "/boards/build-" + te.own(),
		"/v1/sessions/" + te.own() + "/boards/build-" + te.own() + "/steps", "/v1/sessions/" + te.own() +
			"/boards/build-" + te.own() + "/dispatches",
		"/v1/sessions/" + te.own() + "/wal", "/v1/sessions/" + te.own() + "/board-summary", "/v1/sessions/" + te.own() +
			"/wal/wal-" + te.own() + ".wal.jsonl",
	} {
		a := te.h.rest(t, te.tokens[rpc.RoleAdmin], "GET", path, "")
		require.Equal(t, http.StatusOK, a.status, "%s: %s", path, a.body)
		if strings.Contains(a.body, te.mark) {
			marked++
		}
		if !strings.HasSuffix(path, ".jsonl") {
			te.keep(t, a.body)
		}
	}
	require.Greater(t, marked, 12, "there is something to be found")
	for line := range strings.Lines(te.h.rest(t, te.tokens[rpc.RoleOperator], "GET",
		"/v1/events?from_start=true&stop_at_end=true", "").body) {
		te.keep(t, line)
	}
	require.NotEmpty(t, te.ids["cursor"])
	require.NotEmpty(t, te.ids["page_token"])
	for _, field := range []string{
		"work_item_id", "wait_id", "trigger_id", "timer_id", "task_id", "turn_id", "run_id",
		"message_id", "dispatch_id", "board_id",
	} {
		require.NotEmpty(t, te.ids[field], field)
	}
}

// keep notes the ids in an answer's JSON.
func (te *tenant) keep(t *testing.T, body string) {
	var v any
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for k, e := range v {
				text, isText := e.(string)
				name := snakeCase(k)
				if name == "next_page_token" {
					name = "page_token"
				}
				isID := strings.HasSuffix(name, "_id") || name == "cursor" || name == "page_token" ||
					name == "lease_token" || name == "wal_name"
				if isText && isID && text != "" && text != te.name && text != "default" &&
					!strings.Contains(text, te.mark) && !slices.Contains(te.ids[name], text) && len(te.ids[name]) < 50 {
					te.ids[name] = append(te.ids[name], text)
				}
				walk(e)
			}
		}
	}
	walk(v)
}

func snakeCase(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// routes returns the paths and methods of the served OpenAPI document.
func routes(t *testing.T) map[string][]string {
	raw := must.Value(os.ReadFile(filepath.Join("..", "deploy", "openapi", "quartet.openapi.json")))(t)
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(raw, &doc))
	out := map[string][]string{}
	for path, methods := range doc.Paths {
		for m := range methods {
			out[path] = append(out[path], strings.ToUpper(m))
		}
		slices.Sort(out[path])
	}
	require.Greater(t, len(out), 60)
	return out
}

// raw calls REST with a path as it is, such as with %00 in it; what net/http
// itself refuses to send is not sent.
func (te *tenant) raw(t *testing.T, token, method, path string, query url.Values, body string) (string, bool) {
	u := "http://" + te.h.cfg.HTTPAddr + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(soon(t), method, u, strings.NewReader(body))
	if err != nil {
		return "", false
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(path, "/mcp/") {
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	client := &http.Client{Timeout: 20 * time.Second}
	resp := must.Value(client.Do(req))(t)
	defer resp.Body.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "%d %v\n", resp.StatusCode, resp.Header)
	buf := make([]byte, 256<<10)
	for b.Len() < 1<<20 {
		n, err := resp.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	return b.String(), true
}
