package waiting

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

var _ journal.Paged = (*State)(nil)

// Owners implements journal.Paged. Each agent has a page, and an event changes that of its own
// agent only.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	touch(snapshot.Owner{Namespace: ev.Namespace, ID: ev.AgentID})
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for k := range s.agents.Keys() {
		fn(snapshot.Owner(k))
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &waitingv1.AgentWaitsPage{} }

// Page implements journal.Paged.
func (s *State) Page(o snapshot.Owner) proto.Message {
	a := s.agents.Peek(plane.Key(o))
	if a == nil {
		return nil
	}
	return s.pageOf(a)
}

// pageOf returns the page of an agent.
func (s *State) pageOf(a *agentWaits) *waitingv1.AgentWaitsPage {
	p := &waitingv1.AgentWaitsPage{
		Secrets:      s.secretsPage(a),
		EndedTaskIds: a.tasks.IDs(), CompletedWorkItemIds: a.items.IDs(),
		Published: a.publishedPage(), Mismatches: a.mismatchedPage(),
		Stopped: a.stopped, Deleted: a.deleted,
	}
	if !a.deletedAt.IsZero() {
		p.DeletedAt = timestamppb.New(a.deletedAt)
	}
	p.Waits, p.EndedWaits = a.waits.Page()
	p.Triggers, p.EndedTriggers = a.triggers.Page()
	p.Timers, p.EndedTimers = a.timers.Page()
	return p
}

// secretsPage returns what the secrets of an agent lead to, as its page has it.
func (s *State) secretsPage(a *agentWaits) []*waitingv1.TriggerSecret {
	all := make([]waitingv1.TriggerSecret, len(a.secrets)) // at once, since they are never forgotten and may be many
	out := make([]*waitingv1.TriggerSecret, len(a.secrets))
	for i, hash := range a.secrets {
		to := s.tokens[hash]
		out[i] = &all[i]
		out[i].Hash, out[i].TriggerId, out[i].Status = hash, to.triggerID, to.status
	}
	return out
}

// publishedPage returns the published counts as the page has them.
func (a *agentWaits) publishedPage() []*waitingv1.PublishedCount {
	out := make([]*waitingv1.PublishedCount, 0, len(a.published))
	for _, id := range slices.Sorted(maps.Keys(a.published)) {
		p := a.published[id]
		out = append(out, &waitingv1.PublishedCount{
			WaitId: id, Count: p.count, TriggerId: p.triggerID,
			DeliveryId: p.deliveryID,
		})
	}
	return out
}

// mismatchedPage returns the recorded mismatches as the page has them.
func (a *agentWaits) mismatchedPage() []*waitingv1.RecordedMismatch {
	var out []*waitingv1.RecordedMismatch
	for id, inputs := range a.mismatched {
		for in := range inputs {
			out = append(out, &waitingv1.RecordedMismatch{WaitId: id, Cause: in.cause, CauseId: in.id})
		}
	}
	slices.SortFunc(out, func(x, y *waitingv1.RecordedMismatch) int {
		return cmp.Or(cmp.Compare(x.GetWaitId(), y.GetWaitId()), cmp.Compare(x.GetCause(), y.GetCause()),
			cmp.Compare(x.GetCauseId(), y.GetCauseId()))
	})
	return out
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, ok := page.(*waitingv1.AgentWaitsPage)
	if !ok {
		return fmt.Errorf("waiting: a page of type %T", page)
	}
	if s.agents.Has(plane.Key(o)) {
		return fmt.Errorf("waiting: a second page of agent %s/%s", o.Namespace, o.ID)
	}
	if err := s.addAgent(plane.Key(o), p); err != nil {
		return fmt.Errorf("waiting: agent %s/%s: %w", o.Namespace, o.ID, err)
	}
	return nil
}

// addAgent adds an agent as its page has it.
func (s *State) addAgent(k plane.Key, p *waitingv1.AgentWaitsPage) error {
	a, err := agentFrom(k, p)
	if err != nil {
		return err
	}
	for _, w := range p.GetWaits() {
		if active(w) {
			s.countOpen(w, 1)
		}
	}
	a.secrets = nil // bind adds them again
	for _, t := range p.GetSecrets() {
		if _, known := s.tokens[t.GetHash()]; known || t.GetTriggerId() == "" {
			return fmt.Errorf("a secret of trigger %q is there twice, or leads nowhere", t.GetTriggerId())
		}
		s.bind(a, t.GetHash(), address{k, t.GetTriggerId(), t.GetStatus()})
	}
	s.agents.Put(k, a)
	return nil
}

// agentFrom returns the agent that a page has.
func agentFrom(_ plane.Key, page proto.Message) (*agentWaits, error) {
	p, _ := page.(*waitingv1.AgentWaitsPage)
	a := newAgent()
	if err := a.waits.Restore(p.GetWaits(), p.GetEndedWaits(), p.GetEndedWaitIds()); err != nil {
		return nil, fmt.Errorf("waits: %w", err)
	}
	if err := a.triggers.Restore(p.GetTriggers(), p.GetEndedTriggers(), p.GetEndedTriggerIds()); err != nil {
		return nil, fmt.Errorf("triggers: %w", err)
	}
	if err := a.timers.Restore(p.GetTimers(), p.GetEndedTimers(), p.GetEndedTimerIds()); err != nil {
		return nil, fmt.Errorf("timers: %w", err)
	}
	for _, t := range p.GetSecrets() {
		a.secrets = append(a.secrets, t.GetHash())
	}
	a.tasks.Restore(p.GetEndedTaskIds())
	a.items.Restore(p.GetCompletedWorkItemIds())
	for _, c := range p.GetPublished() {
		a.published[c.GetWaitId()] = publishedCount{c.GetCount(), c.GetTriggerId(), c.GetDeliveryId()}
	}
	for _, m := range p.GetMismatches() {
		a.mismatch(m.GetWaitId(), arrival{m.GetCause(), m.GetCauseId()})
	}
	a.stopped, a.deleted = p.GetStopped(), p.GetDeleted()
	if p.GetDeletedAt() != nil {
		a.deletedAt = p.GetDeletedAt().AsTime()
	}
	return a, nil
}
