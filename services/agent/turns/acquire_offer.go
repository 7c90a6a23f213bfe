package turns

import (
	"context"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
)

// NextCandidate returns the agent that has been ready longest and reserves it in this
// process. A shared runner serves the namespaces in the order of their shares (SPEC D7).
// The caller ends the reservation with done, and reports whether the turn was taken. If no agent is
// ready, o and done are nil.
func (s *Service) NextCandidate(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (
	o *state.Candidate, done func(taken bool), err error,
) {
	for {
		// Choose the namespace.
		namespace, mark := actor.Namespace, uint64(0) // mark is for MarkEmpty
		if req.GetAllNamespaces() {
			var found bool
			namespace, mark, found = s.deps.Shares.Next()
			if !found {
				return nil, nil, nil
			}
		}

		// Reserve its agent that has been ready longest.
		o, err := s.oldestReady(ctx, namespace, req)
		switch {
		case err != nil:
			return nil, nil, err
		case o == nil && !req.GetAllNamespaces():
			return nil, nil, nil
		case o == nil:
			s.deps.Shares.MarkEmpty(namespace, mark)
			continue
		case !s.deps.Reservations.Take(o.Agent):
			continue // another runner reserved it first
		}

		if req.GetAllNamespaces() {
			s.deps.Shares.Charge(namespace)
		}
		return o, func(taken bool) {
			s.deps.Reservations.Release(o.Agent)
			if req.GetAllNamespaces() && !taken {
				s.deps.Shares.Refund(namespace)
			}
			// While the agent was reserved no other runner could see that it is ready, so
			// its namespace may have been marked as empty.
			s.deps.Shares.MarkReady(namespace)
		}, nil
	}
}

// oldestReady returns, of the agents in all partitions that the request selects, the one that has been ready longest,
// or nil. It leaves out agents that are reserved, and those in the backoff set unless the request names one agent
// alone.
func (s *Service) oldestReady(ctx context.Context, namespace string, req *agentv1.AcquireTurnRequest) (*state.Candidate,
	error,
) {
	agentIDs, wanted := req.GetAgentIds(), runners.SelectionOf(req)
	oneAgent := len(agentIDs) == 1
	var first *state.Candidate
	for _, p := range s.engine.All() {
		// An agent may be ready by a message that is still being written; take waits for the write.
		o, _, err := journal.View(journal.Ahead(ctx, p), p, func(st *state.State) (*state.Candidate, error) {
			return st.FirstReady(namespace, agentIDs, func(k plane.Key) bool {
				return !s.deps.Reservations.Contains(k) && (oneAgent || !s.deps.Backoff.Contains(k)) &&
					wanted.Matches(st.Lookup(k).Record)
			}), nil
		})
		if err != nil {
			return nil, err
		}
		if o != nil && (first == nil || o.ReadySince.Before(first.ReadySince)) {
			first = o
		}
	}
	return first, nil
}

// DropStale drops a candidate's message that is no longer true, a tick or a child's question, and
// records why (SPEC D4, A14.1). It drops nothing if the lane has another head or the agent was woken
// by then. It returns ErrNotTaken, so that the caller looks for another turn.
func (s *Service) DropStale(ctx context.Context, o *state.Candidate, reason string) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, struct{}]{
		Method: "DropMessage", AgentID: o.Agent.ID, Actor: plane.System(o.Agent.Namespace),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			a, err := st.Find(o.Agent.Namespace, o.Agent.ID)
			if err != nil {
				return d, err
			}
			head := a.Lane.Head()
			if head.GetMessageId() != o.Message.GetMessageId() || a.Wake != o.Wake {
				return d, nil // another message, or a wake meanwhile: check again
			}
			m := lane.WithState(head, env, agentv1.MessageState_MESSAGE_STATE_DROPPED, reason)
			d.Events = []*journal.Event{lane.Event(m, &agentv1.MessageDropped{Message: m})}
			return d, nil
		},
	})
	if err != nil {
		return err
	}
	return ErrNotTaken
}

// maxWoken bounds for how many agents of a partition wakeNext wakes runners.
const maxWoken = 8

// wakeNext wakes runners for further ready agents of the namespace, at most maxWoken of each partition.
func (s *Service) wakeNext(ctx context.Context, namespace string) {
	ctx = context.WithoutCancel(ctx)
	for _, p := range s.engine.All() {
		ready, _, err := journal.View(ctx, p, func(st *state.State) (keys []plane.Key, err error) {
			byAge := st.Ready[namespace]
			if byAge == nil {
				return nil, nil
			}
			byAge.Ascend(func(r state.ReadyAgent) bool {
				k := plane.Key{Namespace: namespace, ID: r.ID}
				if !s.deps.Reservations.Contains(k) && !s.deps.Backoff.Contains(k) {
					keys = append(keys, k)
				}
				return len(keys) < maxWoken
			})
			return keys, nil
		})
		if err != nil {
			return // this loses no wake: the next commit or poll wakes again
		}
		for _, k := range ready {
			s.deps.Waiters.Wake(k)
		}
	}
}
