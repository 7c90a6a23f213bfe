package tests

import (
	"bufio"
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

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
