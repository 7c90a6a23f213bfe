package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
)

// poisoned is a work plane that hangs for one agent and refuses another.
type poisoned struct {
	*others
	hangs, fails string
	began        chan struct{}
}

func (p *poisoned) GetWorkQueue(ctx context.Context, req *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
	*workv1.GetWorkQueueResponse, error,
) {
	switch req.GetAgentId() {
	case p.hangs:
		p.began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	case p.fails:
		return nil, fault.Storage.New("damaged")
	}
	return p.others.GetWorkQueue(ctx, req, opts...)
}

// One runner, twelve agents ready at once, the two oldest of them poisoned: the
// runner serves the other ten, each poisoned one costs it one attempt, and they
// are tried again when their pause is over (SPEC D5).
func TestD5_FailingAgentsDelayNoOther(t *testing.T) {
	r := newRig(t)
	p := &poisoned{others: r.others, hangs: "a-hangs", fails: "b-fails", began: make(chan struct{}, 100)}
	r.service.deps.Work = p
	r.service.prepareTimeout = 2 * time.Second // also for the sound ones, on a busy machine
	r.service.assemble()
	agents := []string{p.hangs, p.fails}
	for i := range 10 {
		agents = append(agents, fmt.Sprint("c-", i))
	}
	for _, agentID := range agents {
		r.spawn(agentID)
		r.send(agentID, "x", normal)
	}
	for i := range 10 {
		a := r.take()
		require.Equal(t, agents[i+2], a.GetTurn().GetAgentId(), "oldest first among the sound")
		r.finish(a, done)
	}
	require.Len(t, p.began, 1, "it held the runner up once")
	require.True(t, r.poll().GetPending())
	require.True(t, r.service.backoff.Contains(plane.Key{Namespace: "acme", ID: p.fails}))
	_, err := r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
		AgentIds: []string{p.fails},
		Wait:     durationpb.New(0),
	})
	require.ErrorIs(t, err, fault.Storage, "who asks for it alone is told")

	// A runner that waits is woken when the pause is over, and the agent is well.
	got := make(chan *agentv1.AcquireTurnResponse, 1)
	go func() {
		resp, _ := r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
			Wait: durationpb.New(50 * time.Second),
		})
		got <- resp
	}()
	r.eventually(func() bool { return r.service.waiters.Count(plane.Key{Namespace: "acme", ID: p.fails}, nil) == 1 })
	p.fails, p.hangs = "", ""
	r.clk.Advance(runners.MinBackoff)
	require.NotNil(t, (<-got).GetTurn())
	r.eventually(func() bool { return !r.service.backoff.Contains(plane.Key{Namespace: "acme", ID: "a-hangs"}) })
	r.take()
	require.True(t, r.poll().GetPending())
	require.Zero(t, r.service.reservations.Len())
	require.Zero(t, r.service.backoff.Len(), "what is well takes no memory")
}

// An attempt that took long is not repeated soon.
func TestD5_ThePauseGrowsWithTheCost(t *testing.T) {
	r := newRig(t)
	k := plane.Key{Namespace: "acme", ID: "keeper"}
	r.service.backoff.Failed(k, 5*time.Second)
	at, ok := r.service.backoff.RetryAt(k)
	require.True(t, ok)
	require.Equal(t, epoch.Add(50*time.Second), at)
	r.service.backoff.Failed(k, 0)
	at, _ = r.service.backoff.RetryAt(k)
	require.Equal(t, epoch.Add(runners.MinBackoff), at)
	r.service.backoff.Succeeded(k)
	require.False(t, r.service.backoff.Contains(k))
}

func TestD7_WeightsAreBounded(t *testing.T) {
	for _, w := range []int{-1, 0, runners.MaxWeight + 1} {
		require.Error(t, must.Err(New(Config{Weights: map[string]int{"acme": w}}, Deps{})))
	}
	r := newRig(t)
	for _, w := range []int{1, runners.MaxWeight} {
		must.Value(New(Config{Weights: map[string]int{"acme": w}}, r.service.deps))(t)
	}
	_, err := New(Config{Weights: map[string]int{"acme": 0}}, r.service.deps)
	require.ErrorContains(t, err, `the weight of namespace "acme" is 0; it must be 1 to 1000`)
}

// A shared runner serves every namespace; the turn is its agent's all the same.
func TestD7_ASharedRunnerServesAll(t *testing.T) {
	r := newRig(t)
	for _, ns := range []string{"acme", "umbrella"} {
		ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: ns, Principal: "olga", Role: rpc.RoleOperator})
		for _, agentID := range []string{"keeper", "other"} {
			must.Value(r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
				AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
			}))(t)
			must.Value(r.service.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: agentID, Text: "x"}))(t)
		}
	}
	shared := rpc.WithActor(t.Context(), rpc.Actor{
		Namespace: "default", Principal: "pool", Role: rpc.RoleInstallationAdmin,
	})
	var got []string
	for i := range 4 {
		req := &agentv1.AcquireTurnRequest{AllNamespaces: true, Wait: durationpb.New(0), RequestId: fmt.Sprint("r", i)}
		resp := must.Value(r.service.AcquireTurn(shared, req))(t)
		got = append(got, resp.GetNamespace()+"/"+resp.GetTurn().GetAgentId())
		require.Equal(t, "token/"+resp.GetNamespace()+"/"+resp.GetTurn().GetAgentId()+"/"+resp.GetTurn().GetRunId(),
			resp.GetRunToken())
		require.Equal(t, "default", resp.GetTurn().GetAcquiredFrom())
		// Asking again answers the same turn (SPEC X2).
		again := must.Value(r.service.AcquireTurn(shared, req))(t)
		require.Equal(t, resp.GetTurn().GetTurnId(), again.GetTurn().GetTurnId())
		require.Equal(t, resp.GetNamespace(), again.GetNamespace())
		req.AllNamespaces = false
		must.Refuse(r.service.AcquireTurn(shared, req))(t, fault.RequestIDReused)
	}
	require.Equal(t, []string{"acme/keeper", "umbrella/keeper", "acme/other", "umbrella/other"}, got)
	resp := must.Value(r.service.AcquireTurn(shared, &agentv1.AcquireTurnRequest{
		AllNamespaces: true,
		Wait:          durationpb.New(0),
	}))(t)
	require.True(t, resp.GetPending())

	for _, role := range []string{rpc.RoleRunner, rpc.RoleAgent} {
		require.Error(t, must.Err(r.service.AcquireTurn(planetest.As(t.Context(), role), &agentv1.AcquireTurnRequest{
			AllNamespaces: true,
		})), role)
	}
	must.Refuse(r.service.AcquireTurn(shared, &agentv1.AcquireTurnRequest{
		AllNamespaces: true,
		AgentIds:      []string{"keeper"},
	}))(t, fault.InvalidArgument)
}
