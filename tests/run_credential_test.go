package tests

import (
	"bufio"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// TestX4_ARunsTokenEndsWithItsRun: after the end of its run a credential reads and changes nothing,
// gets no other, and its streams end; the turn's own calls can be repeated.
func TestX4_ARunsTokenEndsWithItsRun(t *testing.T) {
	planes, door := twoDoors(t)
	_, operator := planes.key(t, &identityv1.CreateKeyRequest{Name: "op", Role: identityv1.Role_ROLE_OPERATOR})
	_, runner := planes.key(t, &identityv1.CreateKeyRequest{Name: "run", Role: identityv1.Role_ROLE_RUNNER})
	ok := func(a answer) answer {
		require.Equal(t, http.StatusOK, a.status, a.body)
		return a
	}
	ok(door.rest(t, operator, "POST", "/v1/agents", `{"preset":"public_named","agentId":"keeper"}`))
	ok(door.rest(t, operator, "POST", "/v1/agents/keeper/messages", `{"text":"hello"}`))
	turn := ok(door.rest(t, runner, "POST", "/v1/turns:acquire", `{"agentIds":["keeper"],"wait":"20s"}`))
	token := turn.field(t, "runToken")
	agents := agentv1.NewAgentServiceClient(planes.conn(t, token))
	ctx := soon(t)

	reads := map[string]func() error{
		"GetAgent": func() error { return must.Err(agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: "keeper"})) },
		"GetContext": func() error {
			return must.Err(agents.GetContext(ctx, &agentv1.GetContextRequest{AgentId: "keeper"}))
		},
		"ListConversation": func() error {
			return must.Err(agents.ListConversation(ctx, &agentv1.ListConversationRequest{AgentId: "keeper"}))
		},
		"CallTool": func() error {
			return must.Err(agents.CallTool(ctx, &agentv1.CallToolRequest{AgentId: "keeper", Name: "AgentGet"}))
		},
		"GetTurn": func() error {
			return must.Err(agents.GetTurn(ctx, &agentv1.GetTurnRequest{
				AgentId: "keeper", TurnId: turn.field(t, "turn", "turnId"),
			}))
		},
		"ListAgents": func() error { _, err := agents.ListAgents(ctx, &agentv1.ListAgentsRequest{}); return err },
		"a stream": func() error {
			s, err := eventv1.NewEventServiceClient(door.conn(t, token)).WatchEvents(ctx, &eventv1.WatchEventsRequest{
				FromStart: true, StopAtEnd: true,
			})
			for err == nil {
				_, err = s.Recv()
			}
			return err
		},
	}
	for name, read := range reads {
		if err := read(); err != nil {
			require.ErrorContains(t, err, "EOF", name)
		}
	}
	acquire := func() error {
		return must.Err(agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{AgentIds: []string{"keeper"}}))
	}
	require.ErrorIs(t, acquire(), fault.PermissionDenied)

	long, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := eventv1.NewEventServiceClient(door.conn(t, token)).WatchEvents(long, &eventv1.WatchEventsRequest{
		FromStart: true,
	})
	require.NoError(t, err)
	must.Value(watch.Recv())(t)
	req := must.Value(http.NewRequestWithContext(long, http.MethodGet, "http://"+door.cfg.HTTPAddr+
		"/v1/events?from_start=true", nil))(t)
	req.Header.Set("Authorization", "Bearer "+token)
	lines := must.Value(http.DefaultClient.Do(req))(t)
	defer lines.Body.Close()
	require.Equal(t, http.StatusOK, lines.StatusCode)

	finish := func() error {
		return must.Err(agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
			AgentId: "keeper", TurnId: turn.field(t, "turn", "turnId"), RunId: turn.field(t, "turn", "runId"),
		}))
	}
	require.NoError(t, finish())
	for name, read := range reads {
		require.ErrorIs(t, read(), fault.RunStale, name)
	}
	require.ErrorIs(t, acquire(), fault.PermissionDenied)
	require.NoError(t, finish(), "its own end may be repeated")
	require.Equal(t, http.StatusConflict, door.rest(t, token, "GET", "/v1/events?from_start=true&stop_at_end=true", "").
		status)
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Unauthenticated, fault.From(err).Code(), err)
	last := ""
	for scan := bufio.NewScanner(lines.Body); scan.Scan(); {
		last = scan.Text()
	}
	require.Contains(t, last, "has ended, and its credential with it")
	require.NoError(t, ctx.Err())
}

// TestA6_ATurnIsItsRunners: whoever else has a key of the namespace, of the same name or an admin's, and knows
// all ids of a turn, can neither go on with it nor get its results; its runner and the run's credential can.
func TestA6_ATurnIsItsRunners(t *testing.T) {
	h := newHouse(t, nil)
	const runner, operator = identityv1.Role_ROLE_RUNNER, identityv1.Role_ROLE_OPERATOR
	secret := func(name string, role identityv1.Role) string {
		_, s := h.key(t, &identityv1.CreateKeyRequest{Name: name, Role: role})
		return s
	}
	client := func(token string) agentv1.AgentServiceClient { return agentv1.NewAgentServiceClient(h.conn(t, token)) }
	op, own := client(secret("op", operator)), client(secret("runner", runner))
	others := map[string]agentv1.AgentServiceClient{
		"another runner":               client(secret("other", runner)),
		"a runner of the same name":    client(secret("runner", runner)),
		"an admin":                     client(secret("boss", identityv1.Role_ROLE_ADMIN)),
		"an admin of the installation": client(bootstrap),
		"the agent's own key": func() agentv1.AgentServiceClient {
			_, s := h.key(t, &identityv1.CreateKeyRequest{
				Name: "keeper", Role: identityv1.Role_ROLE_AGENT, AgentId: "keeper",
			})
			return client(s)
		}(),
	}
	ctx := soon(t)
	must.Value(op.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	must.Value(op.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: "keeper", Text: "go"}))(t)
	acquire := &agentv1.AcquireTurnRequest{
		AgentIds: []string{"keeper"}, Wait: durationpb.New(20 * time.Second), RequestId: "a1",
	}
	got := must.Value(own.AcquireTurn(ctx, acquire))(t)
	turn, run := got.GetTurn().GetTurnId(), got.GetTurn().GetRunId()

	round := &agentv1.SubmitRoundRequest{AgentId: "keeper", TurnId: turn, RunId: run, Text: "a word"}
	calls := map[string]func(ctx context.Context, c agentv1.AgentServiceClient) error{
		"SubmitRound": func(ctx context.Context, c agentv1.AgentServiceClient) error {
			return must.Err(c.SubmitRound(ctx, round))
		},
		"RenewTurn": func(ctx context.Context, c agentv1.AgentServiceClient) error {
			return must.Err(c.RenewTurn(ctx, &agentv1.RenewTurnRequest{AgentId: "keeper", TurnId: turn, RunId: run}))
		},
		"StartLocalCalls": func(ctx context.Context, c agentv1.AgentServiceClient) error {
			return must.Err(c.StartLocalCalls(ctx, &agentv1.StartLocalCallsRequest{
				AgentId: "keeper", TurnId: turn,
				RunId: run, RoundIndex: 1, Calls: []*agentv1.ToolCall{{CallId: "c", Name: "bash"}},
			}))
		},
		"WatchTurn": func(ctx context.Context, c agentv1.AgentServiceClient) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			s, err := c.WatchTurn(ctx, &agentv1.WatchTurnRequest{AgentId: "keeper", TurnId: turn, RunId: run})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"FinishTurn": func(ctx context.Context, c agentv1.AgentServiceClient) error {
			return must.Err(c.FinishTurn(ctx, &agentv1.FinishTurnRequest{AgentId: "keeper", TurnId: turn, RunId: run}))
		},
	}
	refused := func(names ...string) {
		t.Helper()
		for who, c := range others {
			for _, name := range names {
				err := calls[name](ctx, c)
				require.ErrorIs(t, err, fault.PermissionDenied, "%s by %s", name, who)
				require.ErrorContains(t, err, "run_token", "%s by %s", name, who)
			}
		}
	}
	refused("SubmitRound", "RenewTurn", "StartLocalCalls", "WatchTurn", "FinishTurn")
	rounds := must.Value(op.ListRounds(ctx, &agentv1.ListRoundsRequest{AgentId: "keeper"}))(t)
	require.Empty(t, rounds.GetRounds(), "what was refused changed nothing")
	for _, c := range []agentv1.AgentServiceClient{own, client(got.GetRunToken())} {
		for _, name := range []string{"SubmitRound", "RenewTurn", "StartLocalCalls", "WatchTurn"} {
			require.NoError(t, calls[name](ctx, c), name)
		}
	}
	refused("SubmitRound") // a round that was submitted
	for who, c := range others {
		if who == "the agent's own key" {
			continue // it would take a turn itself
		}
		other := must.Value(c.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
			AgentIds: []string{"keeper"}, Wait: durationpb.New(0), RequestId: "a1",
		}))(t, who)
		require.True(t, other.GetPending(), "%s got the turn by its request id", who)
	}
	require.NoError(t, calls["FinishTurn"](ctx, own))
	refused("SubmitRound", "RenewTurn", "StartLocalCalls")
	require.NoError(t, calls["FinishTurn"](ctx, client(got.GetRunToken())), "the turn's own call is repeated")
	stop(t, h) // afterwards the rounds of the turn are not in memory
	h.app = startApp(t, h.cfg)
	refused("SubmitRound")
	require.NoError(t, calls["SubmitRound"](ctx, own))
}
