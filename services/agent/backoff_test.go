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
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
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
