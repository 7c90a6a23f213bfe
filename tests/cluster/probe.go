//go:build linux

package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/load"
)

// attempt is how long a probe waits for an answer before it asks again, elsewhere.
const attempt = time.Second

// Probe measures for how long callers are not answered: each of its agents, which are in different partitions, updates
// one item again and again, under request ids, and asks again until it is answered.
type Probe struct {
	agents []*probed
	stop   context.CancelFunc
	all    sync.WaitGroup

	mu  sync.Mutex
	err error
}

type probed struct {
	items    []workv1.WorkServiceClient // of each instance
	asked    int                        // the one that is asked
	agent    string
	item     string
	revision int64

	mu      sync.Mutex
	last    time.Time // of the last answer
	longest time.Duration
	updates int
}

// StartProbe makes n agents, and begins. conns lead to one instance each.
func StartProbe(ctx context.Context, n int, conns ...grpc.ClientConnInterface) (*Probe, error) {
	p := &Probe{}
	for i := range n {
		a := &probed{asked: i % len(conns), agent: fmt.Sprint("probe-", i)}
		for _, conn := range conns {
			a.items = append(a.items, workv1.NewWorkServiceClient(conn))
		}
		conn := conns[a.asked]
		if _, err := load.Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
			return agentv1.NewAgentServiceClient(conn).
				SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
					AgentId: a.agent, RequestId: a.agent,
					Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
				})
		}); err != nil {
			return nil, err
		}
		made, err := load.Again(ctx, func(ctx context.Context) (*workv1.CreateWorkItemResponse, error) {
			return a.items[a.asked].CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
				AgentId: a.agent, Objective: "be updated", RequestId: a.agent,
			})
		})
		if err != nil {
			return nil, err
		}
		a.item, a.revision, a.last = made.GetWorkItem().GetWorkItemId(), made.GetWorkItem().GetRevision(), time.Now()
		p.agents = append(p.agents, a)
	}
	ctx, p.stop = context.WithCancel(ctx)
	for _, a := range p.agents {
		p.all.Go(func() {
			if err := a.run(ctx); err != nil && ctx.Err() == nil {
				p.mu.Lock()
				p.err = fmt.Errorf("agent %s: %w", a.agent, err)
				p.mu.Unlock()
			}
		})
	}
	return p, nil
}

func (a *probed) run(ctx context.Context) error {
	for {
		n := a.updates + 1
		req := &workv1.UpdateWorkItemRequest{
			AgentId: a.agent, WorkItemId: a.item, ExpectedRevision: &a.revision,
			RequestId: fmt.Sprintf("%s-%d", a.agent, n),
			Objective: new(fmt.Sprintf("update %d", n)),
		}
		got, err := load.AgainEach(ctx, attempt, func(ctx context.Context) (*workv1.UpdateWorkItemResponse, error) {
			resp, err := a.items[a.asked].UpdateWorkItem(ctx, req)
			if err != nil {
				a.asked = (a.asked + 1) % len(a.items)
			}
			return resp, err
		})
		if err != nil {
			return err
		}
		if want := a.revision + 1; got.GetWorkItem().GetRevision() != want {
			return fmt.Errorf("update %d has revision %d, not %d", n, got.GetWorkItem().GetRevision(), want)
		}
		a.answered(got.GetWorkItem().GetRevision())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (a *probed) answered(revision int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.updates++
	a.revision = revision
	a.longest = max(a.longest, time.Since(a.last))
	a.last = time.Now()
}

// Begin forgets what was measured.
func (p *Probe) Begin() {
	for _, a := range p.agents {
		a.mu.Lock()
		a.longest = 0
		a.mu.Unlock()
	}
}

// Longest waits until each agent was answered once more, and returns the longest time since Begin in which an agent was
// not answered.
func (p *Probe) Longest(ctx context.Context) (time.Duration, error) {
	var longest time.Duration
	for _, a := range p.agents {
		a.mu.Lock()
		before := a.updates
		a.mu.Unlock()
		for {
			a.mu.Lock()
			answered := a.updates > before
			longest = max(longest, a.longest)
			a.mu.Unlock()
			if err := p.failed(); answered || err != nil {
				if err != nil {
					return longest, err
				}
				break
			}
			select {
			case <-ctx.Done():
				return longest, fmt.Errorf("agent %s is not answered: %w", a.agent, ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return longest, nil
}

func (p *Probe) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stop ends the probe and returns how many updates were answered, and what went wrong.
func (p *Probe) Stop() (updates int, err error) {
	p.stop()
	p.all.Wait()
	for _, a := range p.agents {
		updates += a.updates
	}
	return updates, p.err
}
