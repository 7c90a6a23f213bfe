package tests

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
)

// member returns a token of a namespace's operator.
func (h *house) member(t *testing.T, namespace string) string {
	_, secret := h.key(t, &identityv1.CreateKeyRequest{Name: "op", Role: operator, Namespace: namespace})
	return secret
}

// refusedFull checks a refusal over REST: what, how many, how to mend it, when.
func refusedFull(t *testing.T, a answer, kind string, limit, value int) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status, a.body)
	require.Equal(t, "QUOTA_EXCEEDED", a.field(t, "error", "reason"))
	require.Equal(t, "RESOURCE_EXHAUSTED", a.field(t, "error", "status"))
	require.Equal(t, []string{kind, strconv.Itoa(limit), strconv.Itoa(value)},
		[]string{
			a.field(t, "error", "metadata", "quota"), a.field(t, "error", "metadata", "limit"),
			a.field(t, "error", "metadata", "value"),
		})
	require.Contains(t, a.field(t, "error", "message"), "or have an admin raise the quota")
	require.Equal(t, "30", a.header.Get("Retry-After"))
}

// TestX15_AgentsHaveAQuota at, below and above it, for one namespace and not for
// another, over a restart, and with room again after a deletion.
func TestX15_AgentsHaveAQuota(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) {
		cfg.QuotaAgents, cfg.NamespaceQuotas = 2, map[string]string{"large.agents": "3", "free.agents": "0"}
	})
	small, large, free := h.member(t, "small"), h.member(t, "large"), h.member(t, "free")
	spawn := func(h *house, token, id string) answer {
		return h.rest(t, token, "POST", "/v1/agents", `{"agentId":"`+id+`","preset":"public_named","requestId":"spawn-`+
			id+`"}`)
	}
	for i := range 2 {
		require.Equal(t, http.StatusOK, spawn(h, small, fmt.Sprint("a", i)).status)
	}
	refusedFull(t, spawn(h, small, "a2"), "agents", 2, 2)
	again := spawn(h, small, "a1")
	require.Equal(t, http.StatusOK, again.status, "a repetition has its first answer, full or not (X2): %s", again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	reused := h.rest(t, small, "POST", "/v1/agents",
		`{"agentId":"other","preset":"public_named","requestId":"spawn-a1"}`)
	require.Equal(t, "REQUEST_ID_REUSED", reused.field(t, "error", "reason"), reused.body)
	for i := range 3 {
		require.Equal(t, http.StatusOK, spawn(h, large, fmt.Sprint("a", i)).status)
	}
	refusedFull(t, spawn(h, large, "a3"), "agents", 3, 3)
	for i := range 5 {
		require.Equal(t, http.StatusOK, spawn(h, free, fmt.Sprint("a", i)).status)
	}
	require.Equal(t, http.StatusNotFound, h.rest(t, small, "GET", "/v1/agents/a2", "").status,
		"a refusal changes nothing")

	stop(t, h)
	h = &house{cfg: h.cfg, app: startApp(t, h.cfg)}
	refusedFull(t, spawn(h, small, "a2"), "agents", 2, 2)
	require.Equal(t, http.StatusOK, h.rest(t, small, "DELETE", "/v1/agents/a0", "").status)
	require.Eventually(t, func() bool { return spawn(h, small, "a2").status == http.StatusOK }, eventually, tick)
	refusedFull(t, spawn(h, small, "a4"), "agents", 2, 2)
}

// TestX15_BytesHaveAQuota: a namespace that has written its share writes no more;
// it reads, and ends what it has.
func TestX15_BytesHaveAQuota(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) { cfg.QuotaMiB = 1 })
	token, other := h.member(t, "acme"), h.member(t, "other")
	for _, tok := range []string{token, other} {
		require.Equal(t, http.StatusOK,
			h.rest(t, tok, "POST", "/v1/agents", `{"agentId":"keeper","preset":"public_named"}`).status)
	}
	text := strings.Repeat("x", 100_000)
	say := func(tok string) answer {
		return h.rest(t, tok, "POST", "/v1/agents/keeper/messages", `{"text":"`+text+`","priority":"background"}`)
	}
	sent := 0
	require.Eventually(t, func() bool {
		a := say(token)
		if a.status == http.StatusOK {
			sent++
			return false
		}
		require.Equal(t, "mib", a.field(t, "error", "metadata", "quota"), a.body)
		require.Equal(t, "1", a.field(t, "error", "metadata", "limit"))
		return true
	}, eventually, tick)
	require.Greater(t, sent, 8, "1 MiB holds ten of them")
	require.Equal(t, http.StatusOK, say(other).status)
	require.Equal(t, http.StatusOK, h.rest(t, token, "GET", "/v1/agents/keeper/messages", "").status)
	require.Equal(t, http.StatusOK, h.rest(t, token, "DELETE", "/v1/agents/keeper", "").status)
}

// TestX2_ARefusedRepetitionHasItsFirstAnswer: a namespace at its limit is refused what would add something, but has the
// first answers of its earlier requests, also where the board plane decides before it asks the request memory.
func TestX2_ARefusedRepetitionHasItsFirstAnswer(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) { cfg.QuotaMiB = 1 })
	_, token := h.key(t, &identityv1.CreateKeyRequest{
		Name: "admin", Role: identityv1.Role_ROLE_ADMIN, Namespace: "acme",
	})
	conn, ctx := h.conn(t, token), soon(t)
	agents := agentv1.NewAgentServiceClient(conn)
	must.Value(agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	worker := must.Value(boardv1.NewBoardWorkerServiceClient(conn).Connect(ctx))(t)
	require.NoError(t, worker.Send(&boardv1.ConnectRequest{Hello: &boardv1.BoardWorkerHello{
		WorkerId: "w", BootId: "boot", WorkerPoolIds: []string{"default"}, Capacity: 1, ChoosesSteps: true,
	}}))
	boards, waits := boardv1.NewBoardServiceClient(conn), waitingv1.NewWaitingServiceClient(conn)
	require.Eventually(t, func() bool {
		return len(must.Value(boards.ListWorkers(ctx, &boardv1.ListWorkersRequest{}))(t).GetWorkers()) == 1
	}, eventually, tick)
	calls := map[string]func(id string, header grpc.CallOption) (proto.Message, error){
		"CreateWait": func(id string, header grpc.CallOption) (proto.Message, error) {
			return waits.CreateWait(ctx, &waitingv1.CreateWaitRequest{AgentId: "keeper", RequestId: id}, header)
		},
		"CreateBoard": func(id string, header grpc.CallOption) (proto.Message, error) {
			return boards.CreateBoard(ctx, &boardv1.CreateBoardRequest{
				SessionId: "keeper", BoardId: "b", WalName: "b", Title: "t", RequestId: id,
				Steps: []*boardv1.StepInput{{StepId: "s", Title: "s"}},
			}, header)
		},
		"UpdateBoard": func(id string, header grpc.CallOption) (proto.Message, error) {
			return boards.UpdateBoard(ctx, &boardv1.UpdateBoardRequest{
				SessionId: "keeper", BoardId: "b", RequestId: id, Operations: []*boardv1.Operation{{
					Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: &boardv1.StepInput{StepId: id, Title: "s"},
				}},
			}, header)
		},
		"DispatchWorker": func(id string, header grpc.CallOption) (proto.Message, error) {
			return boards.DispatchWorker(ctx, &boardv1.DispatchWorkerRequest{
				SessionId: "keeper", BoardId: "b", RequestId: id,
			}, header)
		},
		"OpenStandingDispatch": func(id string, header grpc.CallOption) (proto.Message, error) {
			return boards.OpenStandingDispatch(ctx, &boardv1.OpenStandingDispatchRequest{
				SessionId: "keeper", BoardId: "b", RequestId: id,
			}, header)
		},
	}
	for _, name := range []string{
		"CreateBoard", "CreateWait", "UpdateBoard", "DispatchWorker", "OpenStandingDispatch",
	} {
		must.Value(calls[name]("first", grpc.EmptyCallOption{}))(t, name)
	}
	message := strings.Repeat("x", 100_000)
	require.Eventually(t, func() bool {
		_, err := agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: "keeper", Text: message})
		return errors.Is(err, fault.QuotaExceeded)
	}, eventually, tick)

	board := &boardv1.GetBoardRequest{SessionId: "keeper", BoardId: "b"}
	revision := must.Value(boards.GetBoard(ctx, board))(t).GetBoard().GetRevision()
	for name, call := range calls {
		var header metadata.MD
		must.Value(call("first", grpc.Header(&header)))(t, name)
		require.True(t, rpc.WasReplayed(header), name)
		_, err := call("second", grpc.EmptyCallOption{})
		require.ErrorIs(t, err, fault.QuotaExceeded, name)
	}
	require.Equal(t, revision, must.Value(boards.GetBoard(ctx, board))(t).GetBoard().GetRevision())
}

// TestX15_RequestsHaveARate, over REST and over gRPC together with when to come
// again; others are not slowed.
func TestX15_RequestsHaveARate(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) { cfg.NamespaceQuotas = map[string]string{"acme.requests": "5"} })
	token, other := h.member(t, "acme"), h.member(t, "other")
	agents, ctx := agentv1.NewAgentServiceClient(h.conn(t, token)), soon(t)
	limited := 0
	for range 200 {
		_, err := agents.ListAgents(ctx, &agentv1.ListAgentsRequest{})
		if err == nil {
			continue
		}
		e := fault.From(err)
		require.ErrorIs(t, err, fault.RateLimited)
		require.Equal(t, codes.ResourceExhausted, e.Code())
		require.Equal(t, "5", e.Metadata()["limit"])
		require.Positive(t, e.RetryAfter())
		require.LessOrEqual(t, e.RetryAfter().Seconds(), 1.0)
		info := false
		for _, d := range e.GRPCStatus().Details() {
			_, ok := d.(*errdetails.RetryInfo)
			info = info || ok
		}
		require.True(t, info)
		limited++
	}
	require.Positive(t, limited, "200 requests take 40 s at this rate")
	require.Eventually(t, func() bool { // until one comes in the wrong moment
		a := h.rest(t, token, "GET", "/v1/agents", "")
		if a.status == http.StatusOK {
			return false
		}
		require.Equal(t, http.StatusTooManyRequests, a.status)
		require.Equal(t, "RATE_LIMITED", a.field(t, "error", "reason"))
		require.Equal(t, "1", a.header.Get("Retry-After"))
		return true
	}, eventually, 1)
	for range 50 {
		require.Equal(t, http.StatusOK, h.rest(t, other, "GET", "/v1/agents", "").status)
	}
}

// TestX15_QuotasAreChecked before anything starts.
func TestX15_QuotasAreChecked(t *testing.T) {
	for name, cfg := range map[string]app.Config{
		"quota-agents is -2":    {QuotaAgents: -2},
		"must be a namespace":   {NamespaceQuotas: map[string]string{"acme.cows": "1"}},
		"a dot and one of":      {NamespaceQuotas: map[string]string{"Acme.agents": "1"}},
		"it must be a number":   {NamespaceQuotas: map[string]string{"acme.agents": "many"}},
		"acme.agents is \"-1\"": {NamespaceQuotas: map[string]string{"acme.agents": "-1"}},
	} {
		cfg.DataDir, cfg.GRPCAddr, cfg.HTTPAddr = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
		_, err := app.New(cfg, nil, "test")
		require.ErrorContains(t, err, name)
	}
}
