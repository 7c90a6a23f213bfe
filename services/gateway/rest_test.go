package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/rpc"
)

const items = "/v1/agents/keeper/work-items"

func TestX13_ProtoJSONBothWays(t *testing.T) {
	r := newRig(t)
	a := r.do(http.MethodPost, items,
		`{"objective":"a","planStatus":"needs_input","todo_list":[{"text":"x","state":"TODO_STATE_PENDING"}]}`)
	require.Equal(t, 200, a.status, string(a.body))
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.Equal(t, `"1"`, a.header.Get("ETag"))
	item := a.json(t)["workItem"].(map[string]any)
	require.Equal(t, "PLAN_STATUS_NEEDS_INPUT", item["planStatus"])
	require.Equal(t, "1", item["revision"], "64-bit integers are strings in ProtoJSON")
	require.NotContains(t, item, "blockedBy", "what has no value is left out")

	b := r.do(http.MethodPost, items, `{"objective":"b","plan_status":"PLAN_STATUS_READY"}`)
	require.Equal(t, 200, b.status)
	list := r.do(http.MethodGet, items+"?filter=queued&page_size=5", "")
	require.Equal(t, 200, list.status, string(list.body))
	require.Len(t, list.json(t)["workItems"], 2)
	require.Empty(t, list.header.Get("ETag"), "a list is no record")
	list = r.do(http.MethodGet, items+"?filter=WORK_ITEM_FILTER_COMPLETED&pageSize=5&include_todo_list=true", "")
	require.Equal(t, 200, list.status)
	require.JSONEq(t, `{}`, string(list.body))
}

func TestX3_ETagAndIfMatch(t *testing.T) {
	r := newRig(t)
	path := items + "/" + r.create("keeper", "a")

	got := r.do(http.MethodGet, path, "")
	require.Equal(t, `"1"`, got.header.Get("ETag"))
	a := r.do(http.MethodPatch, path, `{"objective":"b"}`, "If-Match", `"1"`)
	require.Equal(t, 200, a.status, string(a.body))
	require.Equal(t, `"2"`, a.header.Get("ETag"))
	a = r.do(http.MethodPatch, path, `{"objective":"c"}`, "If-Match", `"1"`)
	require.Equal(t, http.StatusPreconditionFailed, a.status)
	require.Equal(t, "REVISION_CONFLICT", a.fault.Reason)
	require.Equal(t, "ABORTED", a.fault.Status)
	require.Equal(t, 412, a.fault.Code)
	for _, body := range []string{
		`{"objective":"c","expected_revision":1}`,
		`{"objective":"c","expectedRevision":"1"}`,
	} {
		a = r.do(http.MethodPatch, path, body)
		require.Equal(t, http.StatusConflict, a.status, "without If-Match it is a conflict like others")
		require.Equal(t, "REVISION_CONFLICT", a.fault.Reason)
	}
	require.Equal(t, 200, r.do(http.MethodPatch, path, `{"objective":"c","expectedRevision":"2"}`, "If-Match", `"2"`).
		status)
	require.Equal(t, 200, r.do(http.MethodPatch, path, `{"objective":"d"}`, "If-Match", `*`).status)
	require.Equal(t, 412, r.do(http.MethodPost, path+":complete", ``, "If-Match", `"1"`).status)
	require.Equal(t, 200, r.do(http.MethodPost, path+":complete", ``, "If-Match", `"4"`).status)
}

// A DELETE takes its fields from headers, from the query string as OpenAPI says, or from a body,
// and none of them is lost on the way (SPEC X2.3, X3).
func TestX3_FieldsOfADelete(t *testing.T) {
	r := newRig(t)
	const path = "/v1/agents/keeper"
	reason := func(a answer) any { return a.json(t)["agent"].(map[string]any)["controlReason"] }
	require.Equal(t, "/", reason(r.do(http.MethodDelete, path, "")))
	require.Equal(t, "k1/done with it",
		reason(r.do(http.MethodDelete, path+"?reason=done+with+it", "", "Idempotency-Key", "k1")))
	require.Equal(t, "k2/over", reason(r.do(http.MethodDelete, path, `{"reason":"over","requestId":"k2"}`)))
	require.Equal(t, "k3/", reason(r.do(http.MethodDelete, path+"?request_id=k3&expectedRevision=1", "")))
	for _, a := range []answer{
		r.do(http.MethodDelete, path, "", "If-Match", `"7"`), r.do(http.MethodDelete, path, `{"reason":"x"}`,
			"If-Match", `"7"`),
		r.do(http.MethodDelete, path+"?reason=x", "", "If-Match", `"7"`),
	} {
		require.Equal(t, http.StatusPreconditionFailed, a.status, string(a.body))
	}
	require.Equal(t, http.StatusConflict, r.do(http.MethodDelete, path+"?expected_revision=7", "").status)
	for query, body := range map[string]string{
		"?reason=x": `{"reason":"y"}`, "?colour=red": "", "": `{"colour":"red"}`,
		"?expected_revision=seven": "", "?agent_id=other": "",
	} {
		require.Equal(t, http.StatusBadRequest, r.do(http.MethodDelete, path+query, body).status, query+body)
	}
}

func TestX2_IdempotencyKey(t *testing.T) {
	r := newRig(t)
	first := r.do(http.MethodPost, items, `{"objective":"a"}`, "Idempotency-Key", "k1")
	require.Equal(t, 200, first.status)
	require.Empty(t, first.header.Get("Idempotent-Replayed"))
	for _, key := range []string{"k1", `"k1"`} {
		again := r.do(http.MethodPost, items, `{"objective":"a"}`, "Idempotency-Key", key)
		require.Equal(t, 200, again.status)
		require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
		require.Equal(t, first.json(t)["workItem"].(map[string]any)["workItemId"],
			again.json(t)["workItem"].(map[string]any)["workItemId"])
	}
	require.Equal(t, "true", r.do(http.MethodPost, items, `{"objective":"a","requestId":"k1"}`).
		header.Get("Idempotent-Replayed"))

	other := r.do(http.MethodPost, items, `{"objective":"b"}`, "Idempotency-Key", "k1")
	require.Equal(t, http.StatusConflict, other.status)
	require.Equal(t, "REQUEST_ID_REUSED", other.fault.Reason)
	require.Equal(t, "k1", other.fault.RequestID)
}

// SPEC X5.1: the message names methods, and the refusal adds their paths.
func TestX5_RefusalsHaveThePathsOfMethods(t *testing.T) {
	r := newRig(t)
	a := r.do(http.MethodGet, items+"/wi_00000000000000000000000000", "")
	require.Equal(t, http.StatusNotFound, a.status)
	require.Contains(t, a.fault.Message, "ListWorkItems")
	require.Equal(t, map[string]string{"ListWorkItems": "GET /v1/agents/{agent_id}/work-items"}, a.fault.Methods)
	require.NotContains(t, string(r.do(http.MethodGet, "/v1/nothing", "").body), "methods")
}

func TestX5_BadInputIsRefusedByName(t *testing.T) {
	r := newRig(t)
	path := items + "/" + r.create("keeper", "a")
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		reason, field            string
	}{
		{"unknown field", "POST", items, `{"objective":"x","bogus":1}`, nil, 400, "UNKNOWN_FIELD", "bogus"},
		{
			"unknown nested field", "POST", items, `{"objective":"x","todoList":[{"text":"a","done":true}]}`, nil, 400,
			"UNKNOWN_FIELD", "todo_list[0].done",
		},
		{
			"wrong enum", "POST", items, `{"objective":"x","planStatus":"done"}`, nil, 400, "INVALID_ARGUMENT",
			"plan_status",
		},
		{"wrong type", "POST", items, `{"objective":7}`, nil, 400, "INVALID_ARGUMENT", "objective"},
		{"twice", "POST", items, `{"objective":"x","objective":"y"}`, nil, 400, "INVALID_ARGUMENT", "objective"},
		{"empty objective", "POST", items, `{"objective":""}`, nil, 400, "INVALID_ARGUMENT", "objective"},
		{"no body", "POST", items, ``, nil, 400, "INVALID_ARGUMENT", "objective"},
		{"malformed JSON", "POST", items, `{"objective":`, nil, 400, "MALFORMED_JSON", ""},
		{"no JSON at all", "POST", items, `objective=x`, nil, 400, "MALFORMED_JSON", ""},
		{"not an object", "POST", items, `["x"]`, nil, 400, "INVALID_ARGUMENT", ""},
		{
			"path against body", "POST", items, `{"objective":"x","agentId":"other"}`, nil, 400, "INVALID_ARGUMENT",
			"agent_id",
		},
		{
			"query on a POST", "POST", items + "?objective=x", `{"objective":"x"}`, nil, 400, "UNKNOWN_FIELD",
			"objective",
		},
		{"unknown parameter", "GET", items + "?colour=red", ``, nil, 400, "UNKNOWN_FIELD", "colour"},
		{"unknown parameter where there are none", "GET", "/v1/agents/keeper?x=1", ``, nil, 400, "UNKNOWN_FIELD", "x"},
		{"wrong enum in the query", "GET", items + "?filter=odd", ``, nil, 400, "INVALID_ARGUMENT", "filter"},
		{"number in the query", "GET", items + "?page_size=many", ``, nil, 400, "INVALID_ARGUMENT", "page_size"},
		{"number too large", "GET", items + "?page_size=99999999999", ``, nil, 400, "INVALID_ARGUMENT", "page_size"},
		{
			"switch in the query", "GET", items + "?include_todo_list=maybe", ``, nil, 400, "INVALID_ARGUMENT",
			"include_todo_list",
		},
		{"parameter twice", "GET", items + "?filter=all&filter=open", ``, nil, 400, "INVALID_ARGUMENT", "filter"},
		{"query escapes", "GET", items + "?filter=%zz", ``, nil, 400, "INVALID_ARGUMENT", ""},
		{"foreign page token", "GET", items + "?page_token=abc", ``, nil, 400, "CURSOR_INVALID", "page_token"},
		{
			"key too long", "POST", items, `{"objective":"x"}`,
			[]string{"Idempotency-Key", strings.Repeat("k", 129)},
			400,
			"LIMIT_EXCEEDED", "request_id",
		},
		{
			"key against body", "POST", items, `{"objective":"x","request_id":"a"}`,
			[]string{"Idempotency-Key", "b"},
			400,
			"INVALID_ARGUMENT", "request_id",
		},
		{
			"If-Match is no revision", "PATCH", path, `{"objective":"x"}`,
			[]string{"If-Match", "1"},
			400,
			"INVALID_ARGUMENT", "If-Match",
		},
		{
			"weak If-Match", "PATCH", path, `{"objective":"x"}`,
			[]string{"If-Match", `W/"1"`},
			400, "INVALID_ARGUMENT",
			"If-Match",
		},
		{
			"If-Match against body", "PATCH", path, `{"objective":"x","expectedRevision":"2"}`,
			[]string{"If-Match", `"1"`},
			400, "INVALID_ARGUMENT", "expected_revision",
		},
		{
			"If-Match where it means nothing", "POST", items, `{"objective":"x"}`,
			[]string{"If-Match", `"1"`},
			400,
			"INVALID_ARGUMENT", "",
		},
		{"nothing given", "PATCH", path, `{}`, nil, 400, "INVALID_ARGUMENT", ""},
		{
			"too long a duration", "POST", "/v1/agents/keeper/timers", `{"description":"x","after":"999999999999999s"}`,
			nil, 400, "LIMIT_EXCEEDED", "after",
		},
		{"no such item", "GET", items + "/wi_00000000000000000000000000", ``, nil, 404, "NOT_FOUND", ""},
		{"bad agent", "GET", "/v1/agents/UPPER/work-items", ``, nil, 400, "INVALID_ARGUMENT", "agent_id"},
		{"unknown address", "GET", "/v1/nothing", ``, nil, 404, "NOT_FOUND", ""},
		{"unknown address outside", "GET", "/nothing", ``, nil, 404, "NOT_FOUND", ""},
		{"unknown verb", "POST", path + ":explode", ``, nil, 405, "UNIMPLEMENTED", ""},
		{"wrong method", "DELETE", items, ``, nil, 405, "UNIMPLEMENTED", ""},
		{"wrong method outside", "POST", "/version", ``, nil, 405, "UNIMPLEMENTED", ""},
		{"method override", "POST", path, ``, []string{"X-HTTP-Method-Override", "GET"}, 405, "UNIMPLEMENTED", ""},
		{"wrong token", "GET", items, ``, []string{"Authorization", "Bearer qtk_x.y"}, 401, "UNAUTHENTICATED", ""},
		{"no bearer", "GET", items, ``, []string{"Authorization", "Basic eDp5"}, 401, "UNAUTHENTICATED", ""},
		{"not there yet", "GET", "/v1/agents/keeper:explain", ``, nil, 501, "UNIMPLEMENTED", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			a := r.do(c.method, c.path, c.body, c.header...)
			require.Equal(t, c.status, a.status, string(a.body))
			require.Equal(t, c.status, a.fault.Code)
			require.Equal(t, c.reason, a.fault.Reason, a.fault.Message)
			require.NotEmpty(t, a.fault.Message)
			require.NotEmpty(t, a.fault.Status)
			if c.field != "" {
				require.Contains(t, string(a.body), `"`+c.field+`"`)
			}
		})
	}
}

func TestX8_OversizeBody(t *testing.T) {
	r := newRig(t)
	big := `{"objective":"` + strings.Repeat("x", 4<<20) + `"}`
	a := r.do(http.MethodPost, items, big)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.status)
	require.Equal(t, "TOO_LARGE", a.fault.Reason)
	require.Equal(t, "4194304", a.fault.Metadata["limit"])
}

func TestX4_TheActorIsTheCredentials(t *testing.T) {
	r := newRig(t)
	who := func(header ...string) string {
		a := r.do(http.MethodGet, "/v1/agents/keeper", "", header...)
		require.Equal(t, 200, a.status, string(a.body))
		return a.json(t)["agent"].(map[string]any)["postureReason"].(string)
	}
	require.Equal(t, "default/local/installation_admin", who())
	token := r.keys.Mint(rpc.Actor{Namespace: "acme", Principal: "olga", Role: rpc.RoleOperator})
	require.Equal(t, "acme/olga/operator", who("Authorization", "Bearer "+token))
	require.Equal(t, "acme/olga/operator", who("Authorization", "bearer "+token,
		"Quartet-Actor", "x", "Grpc-Metadata-Authorization", "Bearer evil", "Grpc-Metadata-Quartet-Actor", "evil"))
	run := r.keys.MintRun("acme", "keeper", "run_1")
	require.Equal(t, 403, r.do(http.MethodGet, "/v1/agents/other/work-items", "", "Authorization", "Bearer "+run).
		status)
	a := r.do(http.MethodGet, "/v1/agents/keeper", "", "Authorization", "Bearer nonsense")
	require.Equal(t, "Bearer realm=\"quartet\"", a.header.Get("WWW-Authenticate"))
}

func TestRetryAfterOnOverload(t *testing.T) {
	r := newRig(t)
	r.task.overload = true
	a := r.do(http.MethodGet, "/v1/agents/keeper/tasks/t1/output", "")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
}

func TestQueryReadsEveryType(t *testing.T) {
	r := newRig(t)
	a := r.do(http.MethodGet, "/v1/agents/keeper/tasks/t1/output?offset=-20&max_bytes=7&block=true&timeout=1.5s", "")
	require.Equal(t, 200, a.status, string(a.body))
	require.EqualValues(t, -20, r.task.asked.GetOffset())
	require.EqualValues(t, 7, r.task.asked.GetMaxBytes())
	require.True(t, r.task.asked.GetBlock())
	require.EqualValues(t, 1500, r.task.asked.GetTimeout().AsDuration().Milliseconds())
	require.Equal(t, `"4"`, a.header.Get("ETag"))
}

func TestStreamsOverREST(t *testing.T) {
	r := newRig(t)
	a := r.do(http.MethodGet, "/v1/agents/keeper/tasks/t1/output:follow?offset=3", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, "application/x-ndjson", a.header.Get("Content-Type"))
	require.Equal(t, `{"result":{"chunk":{"offset":"3","data":"YQ=="}}}`+"\n"+
		`{"result":{"chunk":{"offset":"3","data":"Yg=="}}}`+"\n", string(a.body))

	a = r.do(http.MethodGet, "/v1/agents/keeper/tasks/gone/output:follow", "")
	require.Equal(t, 404, a.status, string(a.body))
	require.Equal(t, "NOT_FOUND", a.fault.Reason)
	a = r.do(http.MethodGet, "/v1/agents/keeper/tasks/t1/output:follow?odd=3", "")
	require.Equal(t, "UNKNOWN_FIELD", a.fault.Reason)
	a = r.do(http.MethodGet, "/v1/agents/keeper/tasks/breaks/output:follow", "")
	require.Equal(t, 200, a.status)
	require.Contains(t, string(a.body),
		`{"error":{"code":409,"status":"FAILED_PRECONDITION","reason":"TASK_NOT_RUNNING","message":"it broke"}}`)
}

func TestLongNumbersInEveryPlace(t *testing.T) {
	r := newRig(t)
	a := r.do(http.MethodPost, "/v1/agents/keeper/turns/trn_1/rounds",
		`{"usage":{"inputTokens":"12","output_tokens":13},"toolCalls":[{"name":"x","arguments":{"inputTokens":"12","n":"7"}}]}`)
	require.Equal(t, 200, a.status, string(a.body))
	require.Contains(t, string(a.body), `"inputTokens":"12"`, "what is inside a Struct is the caller's")
	require.Contains(t, string(a.body), `input_tokens:12`)
	a = r.do(http.MethodPost, "/v1/agents/keeper/turns/trn_1/rounds", `{"usage":{"inputTokens":"twelve"}}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "usage.input_tokens")
}
