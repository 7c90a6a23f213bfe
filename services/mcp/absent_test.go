package mcp_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/mcp"
	"quartet/tests/dev"
)

// SPEC C5.7: a session begins without a server, says how to start one, and has the tools once one
// runs, without beginning again.
func TestC5_ASessionBeforeItsServer(t *testing.T) {
	for _, set := range []string{mcp.AllTools, mcp.MemoryTools} {
		t.Run(set, func(t *testing.T) {
			r := newRig(t)
			r.Down()
			h := r.hand(t, mcp.Config{Version: "test", Patience: 20 * time.Millisecond},
				mcp.Options{AgentID: "keeper", Create: true, Tools: set, Address: "127.0.0.1:7481"}, r.conn)
			require.Contains(t, h.greeting, "No Quartet server answers at 127.0.0.1:7481")
			require.Contains(t, h.greeting, "quartet dev --data-dir")
			require.Contains(t, h.greeting, "ListWorkItems", "the other instructions follow")
			require.Contains(t, h.request("tools/list", `{}`), `"tools":[]`)
			require.Contains(t, h.request("resources/list", `{}`), "briefs")
			for method, params := range map[string]string{
				"tools/call":          `{"name":"ListWorkItems","arguments":{}}`,
				"resources/read":      `{"uri":"` + uriOf("keeper", "") + `"}`,
				"resources/subscribe": `{"uri":"` + uriOf("keeper", "") + `"}`,
			} {
				answer := h.request(method, params)
				require.Contains(t, answer, "quartet dev --data-dir", method)
				require.Contains(t, answer, "rror", method)
			}
			r.Up()
			h.notified("notifications/tools/list_changed")
			require.Contains(t, h.request("tools/list", `{}`), "PickWorkItem")
			require.Contains(t, h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`),
				`"status":"success"`)
			require.NotContains(t, h.request("resources/subscribe", `{"uri":"`+uriOf("keeper", "")+`"}`), `"error"`)
			got, err := r.Agents.GetAgent(dev.Within(t), &agentv1.GetAgentRequest{AgentId: "keeper"})
			require.NoError(t, err)
			require.Equal(t, "keeper", got.GetAgent().GetAgentId())
		})
	}
}

// SPEC C5.7: an agent that turns out not to exist is said by every call, and a call waits a moment
// for a server that is about to answer.
func TestC5_ASessionBeforeItsServerWithoutTheAgent(t *testing.T) {
	r := newRig(t)
	r.Down()
	h := r.hand(t, mcp.Config{Version: "test", Patience: 20 * time.Millisecond}, mcp.Options{AgentID: "nobody"}, r.conn)
	require.Contains(t, h.greeting, "No Quartet server answers. Start one")
	r.Up()
	require.Eventually(t, func() bool {
		answer := h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`)
		return strings.Contains(answer, "not_found") && strings.Contains(answer, "nobody")
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, h.request("tools/list", `{}`), `"tools":[]`)
}

// SPEC C5.7: a server that runs is found at once, also by a session that would not wait.
func TestC5_ASessionOfAServerThatRuns(t *testing.T) {
	r := newRig(t)
	h := r.hand(t, mcp.Config{Version: "test", Patience: time.Minute}, mcp.Options{AgentID: "keeper", Create: true},
		r.conn)
	require.NotContains(t, h.greeting, "No Quartet server")
	r.Down()
	r.Up()
	require.Contains(t, h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`), `"status":"success"`,
		"a restart is waited for")
}

// SPEC C5.7: when the server ends during a session, a call waits for it for a moment only and then says
// where none answers and how to start one; once it runs again the session goes on.
func TestC5_AServerThatEndsDuringASession(t *testing.T) {
	r := newRig(t)
	address := r.Cfg.GRPCAddr
	h := r.hand(t, mcp.Config{Version: "test", Absence: 300 * time.Millisecond},
		mcp.Options{AgentID: "keeper", Create: true, Address: address}, r.conn)
	require.Contains(t, h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`), `"status":"success"`)
	r.Down()
	begun := time.Now()
	for method, params := range map[string]string{
		"tools/call":          `{"name":"CreateWorkItem","arguments":{"objective":"Go on"}}`,
		"resources/list":      `{}`,
		"resources/read":      `{"uri":"` + uriOf("keeper", "") + `"}`,
		"resources/subscribe": `{"uri":"` + uriOf("keeper", "") + `"}`,
	} {
		answer := h.request(method, params)
		require.Contains(t, strings.ToLower(answer), "server answers at "+address, method)
		require.Contains(t, answer, "quartet dev --grpc-addr "+address, method)
	}
	require.Less(t, time.Since(begun), 30*time.Second)
	r.Up()
	require.Eventually(t, func() bool {
		return strings.Contains(h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`),
			`"status":"success"`)
	}, time.Minute, 10*time.Millisecond, "the session goes on")
}

// notReady is a connection to a server that answers every call with an error of its own.
type notReady struct {
	grpc.ClientConnInterface
	on atomic.Bool
}

func (c *notReady) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.on.Load() {
		return fault.NotReady.New("the partition is read")
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// A server that answers that it is not ready is waited for longer, and its own words are passed on.
func TestC5_AServerThatIsNotReadyDuringASession(t *testing.T) {
	r := newRig(t)
	c := &notReady{ClientConnInterface: r.Conn()}
	h := r.hand(t, mcp.Config{Version: "test", Absence: time.Nanosecond, Starting: 300 * time.Millisecond},
		mcp.Options{AgentID: "keeper", Create: true},
		func(string) (grpc.ClientConnInterface, error) { return c, nil })
	require.Contains(t, h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`), `"status":"success"`)
	c.on.Store(true)
	begun := time.Now()
	answer := h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`)
	require.GreaterOrEqual(t, time.Since(begun), 300*time.Millisecond)
	require.Contains(t, answer, "the partition is read")
	require.NotContains(t, answer, "quartet dev", "a server runs")
}

// Where a server of the user runs elsewhere, the model is told where, and not to start another one.
func TestC5_ASessionWhoseServerIsElsewhere(t *testing.T) {
	r := newRig(t)
	r.Down()
	h := r.hand(t, mcp.Config{Version: "test", Patience: 20 * time.Millisecond},
		mcp.Options{AgentID: "keeper", Create: true, Address: "127.0.0.1:7481", Elsewhere: "127.0.0.1:19481"}, r.conn)
	for _, text := range []string{h.greeting, h.request("tools/call", `{"name":"ListWorkItems","arguments":{}}`)} {
		require.Contains(t, text, "--address 127.0.0.1:19481")
		require.NotContains(t, text, "quartet dev")
	}
}
