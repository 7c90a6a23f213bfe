package children

import (
	"context"
	"time"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// Reconcile takes the next step for one agent, if there is one. It returns true if the
// agent must be reconciled again and no event will enqueue it.
func (s *Service) Reconcile(ctx context.Context, k plane.Key) (again bool, err error) {
	ctx = access.AsPlane(ctx, k.Namespace)
	c, err := s.childStatus(ctx, k)
	if err != nil {
		return false, err
	}
	if c.Record == nil {
		return s.reconcileMissing(ctx, k)
	}
	s.supervisor.forget(k)
	private := c.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
	switch c.Record.GetLifecycle() {
	case agentv1.Lifecycle_LIFECYCLE_ACTIVE:
		if !private {
			return false, nil
		}
		return s.reconcileChild(ctx, k, c)
	case agentv1.Lifecycle_LIFECYCLE_DELETING:
		if private {
			if again, err := s.endDelegation(ctx, k, c.Record.GetSupervisorAgentId(), c.Record.GetDelegationId(),
				c.Deletion, c.Record.GetUpdatedAt().AsTime()); again || err != nil {
				return again, err
			}
		}
		return s.reconcileDeletion(ctx, k, c)
	case agentv1.Lifecycle_LIFECYCLE_DELETED, agentv1.Lifecycle_LIFECYCLE_UNSPECIFIED:
	}
	return false, nil
}

// reconcileMissing makes the child of an open delegation, after its worktree, or
// completes the delegation of a child that cannot be made.
func (s *Service) reconcileMissing(ctx context.Context, k plane.Key) (again bool, err error) {
	of, ok := s.supervisor.delegationOf(k)
	if !ok {
		return false, nil
	}
	parent := plane.Key{Namespace: k.Namespace, ID: of.parentID}
	d, alive, err := s.delegationOf(ctx, parent, of.delegationID)
	never := func(outcome agentv1.DelegationOutcome, why string) (bool, error) {
		return s.endDelegation(ctx, k, of.parentID, of.delegationID, &agentv1.AgentDeleting{
			Outcome: outcome, ResultSummary: state.ClipReport(why),
		}, d.Record.GetCreatedAt().AsTime())
	}
	switch {
	case err != nil:
		return false, err
	case d == nil || !state.IsOpen(d.Record):
		s.supervisor.forget(k)
		return false, nil
	case !alive:
		return never(agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, "its parent was deleted")
	case state.WorktreePending(d.Record) && d.Record.GetStopRequested():
		return never(agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, "its task was stopped")
	case state.WorktreePending(d.Record):
		failed, again, err := s.makeWorktree(ctx, parent, d)
		if failed != "" {
			return never(agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED, failed)
		}
		// The next pass finds the worktree ready.
		return again || err == nil, err
	}
	return false, s.createChild(ctx, k.Namespace, &agentv1.DelegationOpened{
		Delegation: d.Record, Child: d.Child,
		InitialMessage: d.InitialMessage, Inherited: d.InheritedContext, MaxAuthority: d.MaxAuthority,
	})
}

// reconcileChild lets the parent know what its child asks, and begins the end of a child that
// has completed its work or must be ended.
func (s *Service) reconcileChild(ctx context.Context, k plane.Key, c state.ChildStatus) (again bool, err error) {
	parent := plane.Key{Namespace: k.Namespace, ID: c.Record.GetSupervisorAgentId()}
	d, alive, err := s.delegationOf(ctx, parent, c.Record.GetDelegationId())
	switch {
	case err != nil:
		return false, err
	case d == nil || !state.IsOpen(d.Record):
		return false,
			s.endChild(ctx, k, 0, &agentv1.AgentDeleting{
				Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED,
			})
	case !alive:
		return false,
			s.endChild(ctx, k, 0, &agentv1.AgentDeleting{
				Outcome:       agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED,
				ResultSummary: "its parent was deleted",
			})
	case d.Record.GetStopRequested():
		return false,
			s.endChild(ctx, k, 0, &agentv1.AgentDeleting{
				Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, ResultSummary: "its task was stopped",
			})
	case c.Quarantined != "":
		return false,
			s.endChild(ctx, k, 0, &agentv1.AgentDeleting{
				Outcome:       agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED,
				ResultSummary: state.ClipReport(c.Quarantined),
			})
	}
	if c.FirstItem != "" && d.Record.GetChildWorkItemId() == "" {
		if err := s.noteChildItem(ctx, parent, c.Record.GetDelegationId(), c.FirstItem); err != nil {
			return false, err
		}
	}
	if err := s.noteQuestions(ctx, k, parent, d.Record); err != nil {
		return false, err
	}
	if !c.Resting {
		return false, nil // the end of its next turn enqueues it again
	}
	verdict, err := s.completionOf(ctx, k, c)
	if err != nil || verdict.retry || !verdict.done {
		return verdict.retry, err
	}
	// An event in between keeps the child alive; then it is checked once more.
	return true, s.endChild(ctx, k, c.FactsRevision, &agentv1.AgentDeleting{
		Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED, ResultSummary: verdict.result,
	})
}

// delegationOf returns a delegation of a parent, nil if it is not in memory or there is no such parent, and whether the
// parent is active.
func (s *Service) delegationOf(ctx context.Context, parent plane.Key, delegationID string) (*state.Delegation, bool,
	error,
) {
	type found struct {
		d     *state.Delegation
		alive bool
	}
	f, _, err := journal.View(ctx, s.engine.For(parent.Namespace, parent.ID), func(st *state.State) (found, error) {
		a := st.Lookup(parent)
		return found{a.Delegation(delegationID), a != nil && a.IsActive()}, nil
	})
	return f.d, f.alive, err
}

// endChild begins the deletion of a child. If facts is not 0, the deletion begins only if
// the child's facts have not changed since.
func (s *Service) endChild(ctx context.Context, k plane.Key, facts int64, end *agentv1.AgentDeleting) error {
	return s.commit(ctx, k, "EndChild", func(a *state.Agent, env journal.Env) []*journal.Event {
		if !a.IsActive() || facts != 0 && a.FactsRevision != facts {
			return nil
		}
		return a.BeginDeletion(env, "delegation_"+pbjson.EnumText(end.GetOutcome()), end)
	})
}

// endDelegation removes the child's worktree, or keeps it if something was changed in it, and then
// completes the parent's delegation with the outcome of the child and the state of the worktree.
// since is when the end of the child began. again is true while the worktree cannot be cleared
// yet. Repeating it after the delegation has completed changes nothing.
func (s *Service) endDelegation(ctx context.Context, k plane.Key, parentID, delegationID string,
	end *agentv1.AgentDeleting, since time.Time,
) (again bool, err error) {
	parent := plane.Key{Namespace: k.Namespace, ID: parentID}
	d, _, err := s.delegationOf(ctx, parent, delegationID)
	if err != nil {
		return false, err
	}
	wt, again, err := s.clearWorktree(ctx, k, d, since)
	if again || err != nil {
		return again, err
	}
	return false, s.commit(ctx, parent, "CompleteDelegation", func(a *state.Agent, env journal.Env) []*journal.Event {
		return a.CompleteDelegation(env, delegationID, end, wt)
	})
}

func (s *Service) noteChildItem(ctx context.Context, parent plane.Key, delegationID, itemID string) error {
	return s.commit(ctx, parent, "NoteChildItem", func(a *state.Agent, _ journal.Env) []*journal.Event {
		return a.NoteChildItem(delegationID, itemID)
	})
}

// commit writes the events of a rule for one agent; their actor is the plane itself. If the rule returns no
// events, such as when it finds that the agent has changed since the caller read it, commit writes nothing and
// returns nil. So it does for an agent that does not exist, without a call of the rule.
func (s *Service) commit(ctx context.Context, k plane.Key, method string,
	rule func(a *state.Agent, env journal.Env) []*journal.Event,
) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, struct{}]{
		Frees: true, Method: method, AgentID: k.ID, Actor: plane.System(k.Namespace),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			if a := st.Lookup(k); a != nil {
				d.Events = rule(a, env)
			}
			return d, nil
		},
	})
	return err
}
