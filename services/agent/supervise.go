package agent

import (
	"context"
	"quartet/services/agent/ref"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	"quartet/pkg/keylock"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

const (
	// tendPause is how soon an agent is looked at again that waits for other
	// planes to hear something; it doubles up to tendMost.
	tendPause = 10 * time.Millisecond
	tendMost  = 2 * time.Second
	// tenders bounds how many agents are looked at at once.
	tenders = 16
)

// supervision sees to it that every delegation has its child, every child its
// end, and every deletion too (SPEC A3, A8, A12). It remembers nothing that is
// not in the journal: each look asks how things stand and takes the next step,
// each step is one commit that may be tried again. So it begins anew after a
// crash at any line.
//
//	delegation_opened --> agent_spawned --> turns --> agent_deleting --> delegation_completed --> (the task ends) --> agent_deleted
//	 parent's partition    child's                     child's            parent's                 task plane          child's
//
// A worktree is made before the child is spawned (delegation_updated) and cleared
// away before the delegation is completed, by the worker that holds it.
type supervision struct {
	due  *clock.Due
	clk  clock.Clock
	tend func(ctx context.Context, k key) (again bool, err error)
	fail func(k key, err error)

	ctx     context.Context //nolint:containedctx // ends the looks that run when the service stops
	cancel  context.CancelFunc
	running sync.WaitGroup
	places  chan struct{}
	one     keylock.Locks[key]

	mu      sync.Mutex
	looks   int             // that were begun
	waits   map[key]int     // looks in a row that found nothing to do yet
	parents map[key]madeFor // of children that may not exist yet
}

// madeFor says which delegation a child belongs to.
type madeFor struct{ parentID, delegationID string }

func newSupervision(clk clock.Clock, tend func(context.Context, key) (bool, error), fail func(key, error)) *supervision {
	v := &supervision{clk: clk, tend: tend, fail: fail, places: make(chan struct{}, tenders), waits: map[key]int{}, parents: map[key]madeFor{}}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.due = clock.NewDue(clk, v.fire)
	return v
}

func (v *supervision) start() { v.due.Start() }

func (v *supervision) stop() {
	v.due.Stop()
	v.cancel()
	v.running.Wait()
}

// settle waits until no look is due or under way.
func (v *supervision) settle() {
	for before := -1; ; {
		v.due.Settle()
		v.running.Wait()
		v.mu.Lock()
		looks := v.looks
		v.mu.Unlock()
		if looks == before {
			return // nothing began since the last time that all was done
		}
		before = looks
	}
}

// mark has an agent looked at soon. It never blocks.
func (v *supervision) mark(k key) {
	v.mu.Lock()
	delete(v.waits, k)
	v.mu.Unlock()
	v.due.Set(k.Namespace+"\x00"+k.ID, v.clk.Now())
}

// expect has a child looked at that may have to be made first.
func (v *supervision) expect(namespace string, d *agentv1.Delegation) {
	k := ref.Agent{Namespace: namespace, ID: d.GetChildAgentId()}
	v.mu.Lock()
	v.parents[k] = madeFor{d.GetParentAgentId(), d.GetDelegationId()}
	v.mu.Unlock()
	v.mark(k)
}

func (v *supervision) expected(k key) (madeFor, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d, ok := v.parents[k]
	return d, ok
}

func (v *supervision) forget(k key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.parents, k)
}

func (v *supervision) fire(keys []string) {
	v.mu.Lock()
	v.looks += len(keys)
	v.mu.Unlock()
	for _, dk := range keys {
		namespace, agentID, _ := strings.Cut(dk, "\x00")
		v.running.Go(func() { v.look(ref.Agent{Namespace: namespace, ID: agentID}) })
	}
}

// look tends one agent. Two looks at one agent follow each other.
func (v *supervision) look(k key) {
	select {
	case v.places <- struct{}{}:
		defer func() { <-v.places }()
	case <-v.ctx.Done():
		return
	}
	unlock := v.one.Lock(k)
	defer unlock()
	again, err := v.tend(v.ctx, k)
	if err != nil && v.ctx.Err() == nil {
		v.fail(k, err)
	}
	if again || err != nil {
		v.mu.Lock()
		n := v.waits[k]
		v.waits[k]++
		v.mu.Unlock()
		dk := k.Namespace + "\x00" + k.ID
		if _, marked := v.due.At(dk); !marked {
			v.due.Set(dk, v.clk.Now().Add(min(tendPause<<min(n, 10), tendMost)))
		}
		return
	}
	v.mu.Lock()
	delete(v.waits, k)
	v.mu.Unlock()
}

// childPrefix begins the ids of private children. An operator may have named an
// agent so too; a look tells.
const childPrefix = "agt_"

// spared has a child looked at that lost what kept it alive. The event is on disk
// in its plane's journal, so the look finds what it says.
func (v *supervision) spared(k key) {
	if strings.HasPrefix(k.ID, childPrefix) {
		v.mark(k)
	}
}

// heed marks the agents that an event gives cause to look at.
func (v *supervision) heed(ev *journal.Event) {
	own := ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}
	switch p := ev.Payload.(type) {
	case *agentv1.DelegationOpened:
		v.expect(ev.Namespace, p.GetDelegation())
	case *agentv1.DelegationUpdated:
		v.mark(ref.Agent{Namespace: ev.Namespace, ID: p.GetDelegation().GetChildAgentId()})
	case *agentv1.DelegationCompleted:
		v.mark(ref.Agent{Namespace: ev.Namespace, ID: p.GetDelegation().GetChildAgentId()})
		v.mark(own) // it may be deleting, and this one its last child
	case *agentv1.AgentDeleting:
		v.mark(own)
	case *agentv1.AgentDeleted:
		if s := p.GetAgent().GetSupervisorAgentId(); s != "" {
			v.mark(ref.Agent{Namespace: ev.Namespace, ID: s})
		}
	case *agentv1.AgentSpawned, *agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted, *agentv1.TurnAborted,
		*agentv1.FirstItemNoted, *agentv1.MessageDropped:
		v.spared(own)
	}
}

// recall marks what a state that was just loaded leaves to be done.
func (v *supervision) recall(st *State) {
	for k, a := range st.agents {
		for _, d := range a.openDelegations() {
			v.expect(k.Namespace, d.rec)
		}
		switch a.rec.GetLifecycle() {
		case agentv1.Lifecycle_LIFECYCLE_DELETING:
			v.mark(k)
		case agentv1.Lifecycle_LIFECYCLE_ACTIVE:
			if a.rec.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE {
				v.mark(k)
			}
		case agentv1.Lifecycle_LIFECYCLE_DELETED, agentv1.Lifecycle_LIFECYCLE_UNSPECIFIED:
		}
	}
}

// tend takes the next step for one agent, if there is one. again: look soon,
// nothing will say so.
func (s *Service) tend(ctx context.Context, k key) (again bool, err error) {
	ctx = s.asPlane(ctx, k.Namespace)
	c, err := s.child(ctx, k)
	if err != nil {
		return false, err
	}
	if c.rec == nil {
		return s.tendUnborn(ctx, k)
	}
	s.supervision.forget(k)
	private := c.rec.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
	switch c.rec.GetLifecycle() {
	case agentv1.Lifecycle_LIFECYCLE_ACTIVE:
		if !private {
			return false, nil
		}
		return s.tendChild(ctx, k, c)
	case agentv1.Lifecycle_LIFECYCLE_DELETING:
		if private {
			if again, err := s.endDelegation(ctx, k, c.rec.GetSupervisorAgentId(), c.rec.GetDelegationId(), c.end, c.rec.GetUpdatedAt().AsTime()); again || err != nil {
				return again, err
			}
		}
		return s.tendDeleting(ctx, k, c)
	case agentv1.Lifecycle_LIFECYCLE_DELETED, agentv1.Lifecycle_LIFECYCLE_UNSPECIFIED:
	}
	return false, nil
}

// tendUnborn makes a child whose delegation stands, after its worktree, or ends
// the delegation of one that will never be.
func (s *Service) tendUnborn(ctx context.Context, k key) (again bool, err error) {
	of, ok := s.supervision.expected(k)
	if !ok {
		return false, nil
	}
	parent := ref.Agent{Namespace: k.Namespace, ID: of.parentID}
	d, alive, err := s.delegationOf(ctx, parent, of.delegationID)
	never := func(outcome, why string) (bool, error) {
		return s.endDelegation(ctx, k, of.parentID, of.delegationID, &agentv1.AgentDeleting{Outcome: outcome, ResultSummary: clipped(why)}, d.rec.GetCreatedAt().AsTime())
	}
	switch {
	case err != nil:
		return false, err
	case d == nil || !isOpen(d.rec):
		s.supervision.forget(k)
		return false, nil
	case !alive:
		return never(outcomeCancelled, "its parent was deleted")
	case unmade(d.rec) && d.rec.GetStopRequested():
		return never(outcomeCancelled, "its task was stopped")
	case unmade(d.rec):
		failed, again, err := s.makeWorktree(ctx, parent, d)
		if failed != "" {
			return never(outcomeFailed, failed)
		}
		// The next look finds the worktree ready.
		return again || err == nil, err
	}
	return false, s.raise(ctx, k.Namespace, &agentv1.DelegationOpened{Delegation: d.rec, Child: d.child, InitialMessage: d.message, Inherited: d.inherited})
}

// tendChild ends a child whose time has come.
func (s *Service) tendChild(ctx context.Context, k key, c childState) (again bool, err error) {
	parent := ref.Agent{Namespace: k.Namespace, ID: c.rec.GetSupervisorAgentId()}
	d, alive, err := s.delegationOf(ctx, parent, c.rec.GetDelegationId())
	switch {
	case err != nil:
		return false, err
	case d == nil || !isOpen(d.rec):
		return false, s.endChild(ctx, k, 0, &agentv1.AgentDeleting{Outcome: outcomeCancelled})
	case !alive:
		return false, s.endChild(ctx, k, 0, &agentv1.AgentDeleting{Outcome: outcomeCancelled, ResultSummary: "its parent was deleted"})
	case d.rec.GetStopRequested():
		return false, s.endChild(ctx, k, 0, &agentv1.AgentDeleting{Outcome: outcomeCancelled, ResultSummary: "its task was stopped"})
	case c.quarantined != "":
		return false, s.endChild(ctx, k, 0, &agentv1.AgentDeleting{Outcome: outcomeFailed, ResultSummary: clipped(c.quarantined)})
	}
	if c.firstItem != "" && d.rec.GetChildWorkItemId() == "" {
		if err := s.noteChildItem(ctx, parent, c.rec.GetDelegationId(), c.firstItem); err != nil {
			return false, err
		}
	}
	if !c.resting {
		return false, nil // the end of its next turn says so
	}
	verdict, err := s.verdictOn(ctx, k, c)
	if err != nil || verdict.again || !verdict.done {
		return verdict.again, err
	}
	// What came meanwhile keeps it alive; then it is looked at once more.
	return true, s.endChild(ctx, k, c.facts, &agentv1.AgentDeleting{Outcome: outcomeCompleted, ResultSummary: verdict.result})
}

// delegationOf reads a parent's delegation, and whether the parent lives.
func (s *Service) delegationOf(ctx context.Context, parent key, delegationID string) (*delegation, bool, error) {
	type found struct {
		d     *delegation
		alive bool
	}
	f, _, err := journal.View(ctx, s.engine.For(parent.Namespace, parent.ID), func(st *State) (found, error) {
		a := st.lookup(parent)
		return found{a.delegation(delegationID), a != nil && a.lives()}, nil
	})
	return f.d, f.alive, err
}

// endChild begins a child's end. facts other than 0 fence it: the child is as
// it was when its end was decided.
func (s *Service) endChild(ctx context.Context, k key, facts int64, end *agentv1.AgentDeleting) error {
	return s.step(ctx, k, "EndChild", func(a *agentState, env journal.Env) []*journal.Event {
		if !a.lives() || facts != 0 && a.facts != facts {
			return nil
		}
		return a.takeDown(env, "delegation_"+end.GetOutcome(), end)
	})
}

// endDelegation clears the child's worktree away and tells the parent what came
// of both. since is when the end began.
func (s *Service) endDelegation(ctx context.Context, k key, parentID, delegationID string, end *agentv1.AgentDeleting, since time.Time) (again bool, err error) {
	parent := ref.Agent{Namespace: k.Namespace, ID: parentID}
	d, _, err := s.delegationOf(ctx, parent, delegationID)
	if err != nil {
		return false, err
	}
	wt, again, err := s.clearWorktree(ctx, k, d, since)
	if again || err != nil {
		return again, err
	}
	return false, s.step(ctx, parent, "CompleteDelegation", func(a *agentState, env journal.Env) []*journal.Event {
		return a.complete(env, delegationID, end, wt)
	})
}

func (s *Service) noteChildItem(ctx context.Context, parent key, delegationID, itemID string) error {
	return s.step(ctx, parent, "NoteChildItem", func(a *agentState, _ journal.Env) []*journal.Event {
		return a.childItem(delegationID, itemID)
	})
}

// step is one commit of the plane by itself. No events: it was done before.
func (s *Service) step(ctx context.Context, k key, method string, rule func(a *agentState, env journal.Env) []*journal.Event) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, struct{}]{
		Method: method, AgentID: k.ID, Actor: plane.System(k.Namespace),
		Decide: func(st *State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			if a := st.lookup(k); a != nil {
				d.Events = rule(a, env)
			}
			return d, nil
		},
	})
	return err
}

func (s *Service) untended(k key, err error) {
	s.deps.Logger.Warn("an agent could not be supervised; trying again", zap.String("namespace", k.Namespace), zap.String("agent_id", k.ID), zap.Error(err))
}
