package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

func TestA1_SpawnPublicNamed(t *testing.T) {
	r := newRig(t)
	req := &agentv1.SpawnAgentRequest{
		AgentId: "keeper", RequestId: "r1", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		InitialMessage: "hello", WorkspaceRoot: "/srv/repo",
	}
	resp := must.Value(r.service.SpawnAgent(r.operator(), req))(t)
	a := resp.GetAgent()
	require.Equal(t, "keeper", resp.GetAgentId())
	require.Nil(t, resp.GetTaskHandle(), "no task supervises a public agent")
	require.Equal(t, agentv1.Visibility_VISIBILITY_PUBLIC, a.GetVisibility())
	require.Equal(t, agentv1.Ownership_OWNERSHIP_SELF_OWNED, a.GetOwnership())
	require.Equal(t, agentv1.Lifecycle_LIFECYCLE_ACTIVE, a.GetLifecycle())
	require.Equal(t, agentv1.Control_CONTROL_RUNNING, a.GetControl())
	require.EqualValues(t, 1, a.GetRevision())
	require.Equal(t, "/srv/repo", a.GetWorkspaceRoot())

	require.Equal(t, a.GetAgentId(), must.Value(r.service.SpawnAgent(r.operator(), req))(t).GetAgentId())
	require.Equal(t, []string{"agent_spawned", "message_queued"}, planetest.Types(r.events()))

	// An id is never used again (SPEC A8).
	must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t, fault.AlreadyExists)

	// The same name in another namespace is another agent.
	ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "umbrella", Principal: "op", Role: rpc.RoleOperator})
	must.Value(r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
}

func TestA1_SpawnRefusals(t *testing.T) {
	r := newRig(t)
	public := agentv1.Preset_PRESET_PUBLIC_NAMED
	for name, req := range map[string]*agentv1.SpawnAgentRequest{
		"no preset":       {AgentId: "a"},
		"a private child": {AgentId: "a", Preset: agentv1.Preset_PRESET_PRIVATE_CHILD},
		"no id":           {Preset: public},
		"a bad id":        {AgentId: "A b", Preset: public},
		"explicit_root": {
			AgentId: "a", Preset: public, WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_EXPLICIT_ROOT,
		},
		"a worktree": {
			AgentId: "a", Preset: public, WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE,
		},
		"an unknown mode":  {AgentId: "a", Preset: public, WorkspaceMode: 99},
		"a template":       {AgentId: "a", Preset: public, Template: "x"},
		"a fork":           {AgentId: "a", Preset: public, Context: agentv1.Context_CONTEXT_FORK},
		"a parent":         {AgentId: "a", Preset: public, ParentAgentId: "b"},
		"a relative root":  {AgentId: "a", Preset: public, WorkspaceRoot: "repo"},
		"a climbing root":  {AgentId: "a", Preset: public, WorkspaceRoot: "/srv/../etc"},
		"too long a text":  {AgentId: "a", Preset: public, InitialMessage: strings.Repeat("x", 256<<10+1)},
		"too long a reqid": {AgentId: "a", Preset: public, RequestId: strings.Repeat("x", 129)},
	} {
		require.Error(t, must.Err(r.service.SpawnAgent(r.operator(), req)), name)
	}
	require.Empty(t, r.events())
}

// Kinds, priorities, origins and authority by role (SPEC A5, X15).
func TestA5_WhoMaySendWhat(t *testing.T) {
	type row struct {
		role     string
		kind     agentv1.MessageKind
		priority agentv1.Priority
		want     string // kind/origin/authority, "" refused
	}
	const (
		prompt  = agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT
		channel = agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT
		webhook = agentv1.MessageKind_MESSAGE_KIND_WEBHOOK_EVENT
		back    = agentv1.Priority_PRIORITY_BACKGROUND
		next    = agentv1.Priority_PRIORITY_NEXT
	)
	rows := []row{
		{rpc.RoleOperator, 0, 0, "OPERATOR_PROMPT/OPERATOR/OPERATOR_INSTRUCTION"},
		{rpc.RoleOperator, prompt, interject, "OPERATOR_PROMPT/OPERATOR/OPERATOR_INSTRUCTION"},
		{rpc.RoleOperator, channel, next, "CHANNEL_EVENT/CHANNEL/INTEGRATION_SIGNAL"},
		{rpc.RoleAdmin, webhook, normal, "WEBHOOK_EVENT/WEBHOOK/INTEGRATION_SIGNAL"},
		{rpc.RoleIntegration, 0, 0, "CHANNEL_EVENT/CHANNEL/INTEGRATION_SIGNAL"},
		{rpc.RoleIntegration, webhook, back, "WEBHOOK_EVENT/WEBHOOK/INTEGRATION_SIGNAL"},
		{rpc.RoleIntegration, prompt, 0, ""},
		{rpc.RoleIntegration, channel, next, ""},
		{rpc.RoleIntegration, channel, interject, ""},
	}
	for _, runtime := range []agentv1.MessageKind{
		agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK,
		agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK,
		agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, agentv1.MessageKind_MESSAGE_KIND_DELEGATION,
		agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP,
	} {
		for _, role := range []string{rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleIntegration} {
			rows = append(rows, row{role, runtime, 0, ""})
		}
	}
	r := newRig(t)
	r.spawn("keeper")
	for _, c := range rows {
		resp, err := r.service.EnqueueMessage(planetest.As(t.Context(), c.role), &agentv1.EnqueueMessageRequest{
			AgentId: "keeper", Text: "hello", Kind: c.kind, Priority: c.priority,
		})
		if c.want == "" {
			require.Error(t, err, "%+v", c)
			continue
		}
		require.NoError(t, err, "%+v", c)
		m := resp.GetMessage()
		require.Equal(t, c.want, fmt.Sprintf("%s/%s/%s",
			strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_"), strings.TrimPrefix(m.GetOrigin().String(),
				"ORIGIN_"), strings.TrimPrefix(m.GetAuthority().String(), "AUTHORITY_")))
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, m.GetState())
	}
}

func TestX8_MessageLimitsAtBelowAndAbove(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	const limit = 256 << 10
	for n, ok := range map[int]bool{limit - 1: true, limit: true, limit + 1: false} {
		for _, req := range []*agentv1.EnqueueMessageRequest{
			{AgentId: "keeper", Text: strings.Repeat("x", n)}, {AgentId: "keeper", Data: make([]byte, n)},
		} {
			_, err := r.service.EnqueueMessage(r.operator(), req)
			if ok {
				require.NoError(t, err, n)
				continue
			}
			require.ErrorIs(t, err, fault.LimitExceeded)
			require.Contains(t, err.Error(), fmt.Sprint(limit))
		}
	}
	for name, req := range map[string]*agentv1.EnqueueMessageRequest{
		"nothing":             {AgentId: "keeper"},
		"blanks":              {AgentId: "keeper", Text: " \n\t"},
		"text and data":       {AgentId: "keeper", Text: "x", Data: []byte("y")},
		"a NUL":               {AgentId: "keeper", Text: "a\x00b"},
		"a bad item":          {AgentId: "keeper", Text: "x", WorkItemId: "nonsense"},
		"a long correlation":  {AgentId: "keeper", Text: "x", CorrelationId: strings.Repeat("c", 257)},
		"a long content type": {AgentId: "keeper", Text: "x", ContentType: strings.Repeat("c", 256)},
	} {
		require.Error(t, must.Err(r.service.EnqueueMessage(r.operator(), req)), name)
	}
	_, err := r.service.EnqueueMessage(r.operator(), &agentv1.EnqueueMessageRequest{AgentId: "nobody", Text: "x"})
	require.ErrorIs(t, err, fault.NotFound)
}

func TestX2_ARepeatedMessageIsOneMessage(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	req := &agentv1.EnqueueMessageRequest{AgentId: "keeper", Text: "x", RequestId: "r1"}
	first := must.Value(r.service.EnqueueMessage(r.operator(), req))(t)
	r.restart()
	again := must.Value(r.service.EnqueueMessage(r.operator(), req))(t)
	require.Equal(t, first.GetMessageId(), again.GetMessageId())
	must.Refuse(r.service.EnqueueMessage(r.operator(), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "y", RequestId: "r1",
	}))(t, fault.RequestIDReused)
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
}

// First in, first out within a band; the bands in their order (SPEC A5).
func TestA5_LaneOrder(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for _, m := range []struct {
		text     string
		priority agentv1.Priority
	}{
		{"background 1", agentv1.Priority_PRIORITY_BACKGROUND},
		{"normal 1", 0},
		{"next 1", agentv1.Priority_PRIORITY_NEXT},
		{"background 2", agentv1.Priority_PRIORITY_BACKGROUND},
		{"normal 2", normal},
		{"next 2", agentv1.Priority_PRIORITY_NEXT},
		{"interject 1", interject},
	} {
		r.send("keeper", m.text, m.priority)
	}
	var order []string
	for r.facts("keeper").GetQueued() > 0 {
		a := r.take("keeper")
		order = append(order, a.GetMessage().GetText())
		r.finish(a, done)
	}
	require.Equal(t, []string{
		"interject 1", "next 1", "next 2", "normal 1", "normal 2", "background 1",
		"background 2",
	}, order)
	require.True(t, r.poll("keeper").GetPending())
}

// A message that failed goes back to the front of its band, not to its end.
func TestA5_AFailedMessageKeepsItsPlace(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	first, second := r.send("keeper", "first", normal), r.send("keeper", "second", normal)
	r.finish(r.take("keeper"), retryable)
	require.Equal(t, first, r.take("keeper").GetMessage().GetMessageId())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", second).GetState())
}

func TestX9_ListsOfMessagesAndTurns(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	var sent, turns []string
	for i := range 5 {
		sent = append(sent, r.send("keeper", fmt.Sprint("m", i), normal))
	}
	for range 3 {
		turns = append([]string{r.finish(r.take("keeper"), done).GetTurnId()}, turns...)
	}
	var got []string
	req := &agentv1.ListMessagesRequest{AgentId: "keeper", PageSize: 2}
	for {
		resp := must.Value(r.service.ListMessages(r.operator(), req))(t)
		for _, m := range resp.GetMessages() {
			got = append(got, m.GetMessageId())
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	require.Equal(t, sent, got)
	queued := must.Value(r.service.ListMessages(r.operator(), &agentv1.ListMessagesRequest{
		AgentId: "keeper", State: agentv1.MessageState_MESSAGE_STATE_QUEUED,
	}))(t)
	require.Len(t, queued.GetMessages(), 2)

	got = nil
	treq := &agentv1.ListTurnsRequest{AgentId: "keeper", PageSize: 1}
	for {
		resp := must.Value(r.service.ListTurns(r.operator(), treq))(t)
		for _, tr := range resp.GetTurns() {
			got = append(got, tr.GetTurnId())
		}
		if treq.PageToken = resp.GetNextPageToken(); treq.GetPageToken() == "" {
			break
		}
	}
	require.Equal(t, turns, got, "newest first")

	r.spawn("alpha")
	agents := must.Value(r.service.ListAgents(r.operator(), &agentv1.ListAgentsRequest{PageSize: 1}))(t)
	require.Equal(t, "alpha", agents.GetAgents()[0].GetAgentId())
	agents = must.Value(r.service.ListAgents(r.operator(), &agentv1.ListAgentsRequest{
		PageSize: 1, PageToken: agents.GetNextPageToken(),
	}))(t)
	require.Equal(t, "keeper", agents.GetAgents()[0].GetAgentId())
	require.Empty(t, agents.GetNextPageToken())
}
