package children

import (
	"context"
	"strings"
	"sync"
	"time"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
)

const (
	// minRetry is the first pause before a reconciliation is repeated that failed or that waits
	// for another plane. It doubles with every repetition up to MaxRetry.
	minRetry = 10 * time.Millisecond
	// MaxRetry bounds the pause before a reconciliation is repeated.
	MaxRetry = 2 * time.Second
	// maxConcurrent bounds how many agents are reconciled at a time.
	maxConcurrent = 16
)

// Supervisor makes sure that every delegation gets its child, that every child and every
// deletion completes (SPEC A3, A8, A12). It holds nothing that is not in the journal too: each
// pass reads the current state and takes the next step, and each step is one commit that may be
// repeated. So a crash at any point needs no recovery other than Load.
//
//	delegation_opened --> agent_spawned --> turns --> agent_deleting --> delegation_completed --> (the task ends) --> agent_deleted
//	 parent's partition    child's                     child's            parent's                 task plane          child's
//
// A worktree is made before the child is spawned (delegation_updated) and cleared
// away before the delegation is completed, by the worker that holds it.
type Supervisor struct {
	due       *clock.Due
	clk       clock.Clock
	reconcile func(ctx context.Context, k plane.Key) (again bool, err error)
	onError   func(k plane.Key, err error)

	ctx      context.Context //nolint:containedctx // ends the passes that run when the service stops
	cancel   context.CancelFunc
	running  sync.WaitGroup
	slots    chan struct{}
	perAgent plane.KeyLocks[plane.Key]

	mu         sync.Mutex
	passes     int                         // how many passes were started
	active     int                         // how many of them have not ended
	ended      *sync.Cond                  // on mu; broadcast when a pass has ended
	attempts   map[plane.Key]int           // passes in a row that have to be repeated
	expectedBy map[plane.Key]expectedChild // children that may not exist yet
}

// expectedChild is the delegation that a child belongs to.
type expectedChild struct{ parentID, delegationID string }

// NewSupervisor returns a Supervisor that has not started. tend takes the next step for one
// agent and reports whether it must be called again; fail is called with the error of a step
// that will be repeated.
func NewSupervisor(clk clock.Clock, tend func(context.Context, plane.Key) (bool, error),
	fail func(plane.Key, error),
) *Supervisor {
	v := &Supervisor{
		clk: clk, reconcile: tend, onError: fail, slots: make(chan struct{}, maxConcurrent),
		attempts: map[plane.Key]int{}, expectedBy: map[plane.Key]expectedChild{},
	}
	v.ended = sync.NewCond(&v.mu)
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.due = clock.NewDue(clk, v.runDue)
	return v
}

// Start begins to reconcile agents that are due.
func (v *Supervisor) Start() { v.due.Start() }

// Stop ends all passes and waits for those that run.
func (v *Supervisor) Stop() {
	v.due.Stop()
	v.cancel()
	v.running.Wait()
}

// Wait returns when no pass is due or running.
func (v *Supervisor) Wait() {
	for before := -1; ; {
		v.due.Settle()
		v.mu.Lock()
		for v.active > 0 { // not running.Wait: a pass may begin while that returns
			v.ended.Wait()
		}
		started := v.passes
		v.mu.Unlock()
		if started == before {
			return // no pass has started since the last time that all were finished
		}
		before = started
	}
}

// Enqueue makes the reconciliation of an agent due now, also if it waits to be repeated, and makes the pause
// before a repetition minRetry again. It never blocks.
func (v *Supervisor) Enqueue(k plane.Key) {
	v.mu.Lock()
	delete(v.attempts, k)
	v.mu.Unlock()
	v.due.Set(k.Namespace+"\x00"+k.ID, v.clk.Now())
}

// Expect enqueues the child of a delegation. If the child does not exist, its pass finds the
// delegation by what Expect recorded.
func (v *Supervisor) Expect(namespace string, d *agentv1.Delegation) {
	k := plane.Key{Namespace: namespace, ID: d.GetChildAgentId()}
	v.mu.Lock()
	v.expectedBy[k] = expectedChild{d.GetParentAgentId(), d.GetDelegationId()}
	v.mu.Unlock()
	v.Enqueue(k)
}

func (v *Supervisor) delegationOf(k plane.Key) (expectedChild, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d, ok := v.expectedBy[k]
	return d, ok
}

func (v *Supervisor) forget(k plane.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.expectedBy, k)
}

func (v *Supervisor) runDue(keys []string) {
	v.mu.Lock()
	v.passes += len(keys)
	v.active += len(keys)
	v.mu.Unlock()
	for _, dk := range keys {
		namespace, agentID, _ := strings.Cut(dk, "\x00")
		v.running.Go(func() {
			v.pass(plane.Key{Namespace: namespace, ID: agentID})
			v.mu.Lock()
			defer v.mu.Unlock()
			v.active--
			v.ended.Broadcast()
		})
	}
}

// pass reconciles one agent. Two passes for one agent never run at the same time.
func (v *Supervisor) pass(k plane.Key) {
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-v.ctx.Done():
		return
	}
	unlock := v.perAgent.Lock(k)
	defer unlock()
	again, err := v.reconcile(v.ctx, k)
	if err != nil && v.ctx.Err() == nil {
		v.onError(k, err)
	}
	if again || err != nil {
		v.mu.Lock()
		n := v.attempts[k]
		v.attempts[k]++
		v.mu.Unlock()
		dk := k.Namespace + "\x00" + k.ID
		if _, marked := v.due.At(dk); !marked {
			v.due.Set(dk, v.clk.Now().Add(min(minRetry<<min(n, 10), MaxRetry)))
		}
		return
	}
	v.mu.Lock()
	delete(v.attempts, k)
	v.mu.Unlock()
}

// ChildPrefix begins the ids of private children. An operator may have named a public
// agent so too; reconciling it does nothing.
const ChildPrefix = "agt_"

// EnqueueChild enqueues an agent if its id is that of a private child. It is called with the events
// after which a child may have nothing left to do. Such an event is durable in the journal of its
// plane, so the pass reads a state that contains it.
func (v *Supervisor) EnqueueChild(k plane.Key) {
	if strings.HasPrefix(k.ID, ChildPrefix) {
		v.Enqueue(k)
	}
}

// Observe enqueues the agents for which an event may require a step.
func (v *Supervisor) Observe(ev *journal.Event) {
	own := plane.Key{Namespace: ev.Namespace, ID: ev.AgentID}
	switch p := ev.Payload.(type) {
	case *agentv1.DelegationOpened:
		v.Expect(ev.Namespace, p.GetDelegation())
	case *agentv1.DelegationUpdated:
		v.Enqueue(plane.Key{Namespace: ev.Namespace, ID: p.GetDelegation().GetChildAgentId()})
	case *agentv1.DelegationCompleted:
		v.Enqueue(plane.Key{Namespace: ev.Namespace, ID: p.GetDelegation().GetChildAgentId()})
		v.Enqueue(own) // the parent may be deleting, and this its last child
	case *agentv1.AgentDeleting:
		v.Enqueue(own)
	case *agentv1.AgentDeleted:
		if s := p.GetAgent().GetSupervisorAgentId(); s != "" {
			v.Enqueue(plane.Key{Namespace: ev.Namespace, ID: s})
		}
	case *agentv1.AgentSpawned, *agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted,
		*agentv1.TurnAborted,
		*agentv1.FirstItemNoted, *agentv1.MessageDropped:
		v.EnqueueChild(own)
	}
}

// Load enqueues the agents for which a state that was just loaded may require a step.
func (v *Supervisor) Load(st *state.State) {
	for k, a := range st.Resident() { // one that is not in memory needs no step
		for _, d := range a.OpenDelegations() {
			v.Expect(k.Namespace, d.Record)
		}
		switch a.Record.GetLifecycle() {
		case agentv1.Lifecycle_LIFECYCLE_DELETING:
			v.Enqueue(k)
		case agentv1.Lifecycle_LIFECYCLE_ACTIVE:
			if a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE {
				v.Enqueue(k)
			}
		case agentv1.Lifecycle_LIFECYCLE_DELETED, agentv1.Lifecycle_LIFECYCLE_UNSPECIFIED:
		}
	}
}
