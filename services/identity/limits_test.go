package identity

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// names returns n different names.
func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "n" + strconv.Itoa(i)
	}
	return out
}

// TestI17_WhatAKeyMayBeLimitedTo at, below and above its limits.
func TestI17_WhatAKeyMayBeLimitedTo(t *testing.T) {
	const admin, operator, runner, agent, worker, integration = identityv1.Role_ROLE_ADMIN,
		identityv1.Role_ROLE_OPERATOR,
		identityv1.Role_ROLE_RUNNER, identityv1.Role_ROLE_AGENT, identityv1.Role_ROLE_WORKER,
		identityv1.Role_ROLE_INTEGRATION
	r := newRig(t)
	for _, c := range []struct {
		role          identityv1.Role
		agents, tools []string
		ok            bool
	}{
		{role: operator, agents: names(1), ok: true},
		{role: runner, agents: names(1), ok: true},
		{role: integration, agents: names(1), ok: true},
		{role: admin, agents: names(1)},
		{role: agent, agents: names(1)},
		{role: worker, agents: names(1)},
		{role: operator, tools: names(1), ok: true},
		{role: agent, tools: names(1), ok: true},
		{role: admin, tools: names(1)},
		{role: runner, tools: names(1)},
		{role: worker, tools: names(1)},
		{role: integration, tools: names(1)},
		{role: operator, agents: names(maxKeyAgents), tools: names(maxKeyTools), ok: true},
		{role: operator, agents: names(maxKeyAgents + 1)},
		{role: operator, tools: names(maxKeyTools + 1)},
		{role: operator, agents: []string{"a", "b", "a"}},
		{role: operator, agents: []string{"A"}},
		{role: operator, agents: []string{""}},
		{role: operator, tools: []string{"BoardGet", "board_get"}, ok: true},
		{role: operator, tools: []string{"x", "x"}},
		{role: operator, tools: []string{""}},
		{role: operator, tools: []string{"a,b"}},
	} {
		req := &identityv1.CreateKeyRequest{Name: "n", Role: c.role, AgentIds: c.agents, Tools: c.tools}
		if c.role == agent {
			req.AgentId = "keeper"
		}
		resp, err := r.service.CreateKey(r.admin(), req)
		if !c.ok {
			require.Contains(t, []fault.Reason{fault.InvalidArgument, fault.LimitExceeded}, fault.From(err).Reason(),
				"%v", req)
			continue
		}
		require.NoError(t, err, "%v", req)
		actor, err := r.enters(resp.GetSecret())
		require.NoError(t, err)
		require.Equal(t, rpc.NamesOf(c.agents), actor.Agents)
		require.Equal(t, rpc.NamesOf(c.tools), actor.Tools)
	}
}

func TestAllowedFollowsTheTableOfRoles(t *testing.T) {
	require.True(t, Allows(rpc.RoleAdmin, agentv1.AgentService_SpawnAgent_FullMethodName))
	require.False(t, Allows(rpc.RoleIntegration, agentv1.AgentService_SpawnAgent_FullMethodName))
	require.False(t, Allows(rpc.RoleAdmin, "/quartet.agent.v1.AgentService/NoSuchMethod"))
}

// TestI12_GuessesOfKeysWaitBySource: a source that guesses keys leaves others their places in the queue
// for the journal, in which a key that was created a moment ago waits.
func TestI12_GuessesOfKeysWaitBySource(t *testing.T) {
	k := NewKeys(KeysConfig{})
	guesser, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for range catchUpShare {
		require.True(t, k.enqueue(guesser))
	}
	require.False(t, k.enqueue(guesser))
	require.True(t, k.enqueue(other))
	k.dequeue(guesser)
	require.True(t, k.enqueue(guesser))
	for range catchUpShare {
		k.dequeue(guesser)
	}
	k.dequeue(other)
	require.Empty(t, k.waiting)
	require.Zero(t, k.waiters)
}
