package waiting

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/event"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
	"quartet/services/waiting/records"
)

// State is one partition of the waiting plane. Records are replaced and never changed.
type State struct {
	event.Tombstones
	agents *resident.Map[plane.Key, agentWaits, summary] // by namespace and agent id
	tokens map[string]address                            // by the hash of the secret
	open   [waitKinds]int                                // active waits, by kind
}

// waitKinds is the number of kinds of waits, with the unspecified one.
const waitKinds = 5

// address is the trigger that a secret belongs to. It is kept after the trigger has ended, so
// that the secret is refused as revoked or expired and not as unknown, also after the trigger was
// dropped from memory.
type address struct {
	agent     plane.Key
	triggerID string
	status    waitingv1.TriggerStatus // how the trigger ended, or active; revoked for a rotated secret
}

// agentWaits holds the waits, triggers and timers of one agent.
type agentWaits struct {
	waits    records.Set[*waitingv1.Wait]
	triggers records.Set[*waitingv1.Trigger]
	timers   records.Set[*waitingv1.Timer]
	// secrets has the keys of the agent's entries in State.tokens, oldest first.
	secrets []string
	// tasks remembers ids of tasks that ended, and items ids of work items that were completed,
	// as events of their planes said. WaitFor is decided against them, in the same loop, so
	// that an end that arrived a moment before is not missed (SPEC R8). An item is remembered
	// for as long as a trigger of it lives, which ignores what it receives.
	tasks records.Memory
	items records.Memory
	// published has an entry for every active wait and intent, by its id.
	published map[string]publishedCount
	// mismatched holds, by the id of an active wait, the inputs that were recorded because
	// they did not satisfy it.
	mismatched map[string]map[arrival]bool
	stopped    bool // the agent is stopped by an operator (SPEC A8)
	deleted    bool // the agent is deleted or being deleted: nothing is created for it
	deletedAt  time.Time
}

// publishedCount is the trigger count of a wait that its last event showed to other planes.
// The ids are those of the last delivery that was only counted since; empty if there was none.
type publishedCount struct {
	count                 int64
	triggerID, deliveryID string
}

// NewState returns the state of an empty journal.
func NewState() *State {
	s := &State{tokens: map[string]address{}}
	s.agents = resident.New(resident.Codec[plane.Key, agentWaits, summary]{
		Page:  s.evictedPage,
		New:   func() proto.Message { return &waitingv1.AgentWaitsPage{} },
		Value: agentFrom,
	})
	return s
}

// Apply folds one event into the state. What it does with an event type is in eventRows.
func (s *State) Apply(ev *journal.Event) error {
	row, err := eventRows.Of(ev)
	if err != nil {
		return err
	}
	k := plane.KeyOf(ev.Namespace, ev.AgentID)
	a := s.agents.Edit(k)
	if a == nil {
		a = newAgent()
		s.agents.Put(k, a)
	}
	row.fold(s, a, ev)
	return nil
}

// newAgent returns an agent of which there is nothing.
func newAgent() *agentWaits {
	return &agentWaits{published: map[string]publishedCount{}, mismatched: map[string]map[arrival]bool{}}
}

// mismatch records an input that did not satisfy a wait.
func (a *agentWaits) mismatch(waitID string, in arrival) {
	if a.mismatched[waitID] == nil {
		a.mismatched[waitID] = map[arrival]bool{}
	}
	a.mismatched[waitID][in] = true
}

// bind records what a secret of an agent leads to.
func (s *State) bind(a *agentWaits, hash string, to address) {
	if _, known := s.tokens[hash]; !known {
		a.secrets = append(a.secrets, hash)
	}
	s.tokens[hash] = to
}

// putWait stores a wait whose new state is in an event. The event shows followers of this plane the
// wait's trigger count, so that count is recorded as published.
func (s *State) putWait(a *agentWaits, w *waitingv1.Wait) {
	if wasActive := active(a.waits.Get(w.GetWaitId())); wasActive && !active(w) {
		s.countOpen(w, -1)
	} else if !wasActive && active(w) {
		s.countOpen(w, 1)
	}
	a.waits.Put(w, active(w))
	if active(w) {
		a.published[w.GetWaitId()] = publishedCount{count: w.GetTriggerCount()}
		return
	}
	delete(a.published, w.GetWaitId())
	delete(a.mismatched, w.GetWaitId())
}

// countOpen adds n to the number of active waits of the kind of w.
func (s *State) countOpen(w *waitingv1.Wait, n int) {
	if k := w.GetKind(); k >= 0 && k < waitKinds {
		s.open[k] += n
	}
}

// counted adds deliveries to a trigger and to the waits that they reached. The published
// count of a wait stays, because no event of the wait shows them yet; the ids of the last
// delivery are kept for the event that will (see publishCount).
func (a *agentWaits) counted(p *waitingv1.DeliveriesCounted) {
	if t := a.triggers.Get(p.GetTriggerId()); t != nil {
		a.triggers.Put(delivered(t, p.GetOutcome(), p.GetCount(), p.GetDeliveredAt()), lives(t))
	}
	for _, waitID := range p.GetWaitIds() {
		w := a.waits.Get(waitID)
		if w == nil {
			continue
		}
		a.waits.Put(triggeredBy(w, p.GetCount(), p.GetDeliveredAt()), active(w))
		known := a.published[waitID]
		known.triggerID, known.deliveryID = p.GetTriggerId(), p.GetDeliveryId()
		a.published[waitID] = known
	}
}

// lives reports whether a trigger has not ended; false for nil. One that is past its expiry
// lives until trigger_expired; see expired.
func lives(t *waitingv1.Trigger) bool {
	return t.GetStatus() == waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE
}

// active reports whether a wait has not ended; false for nil.
func active(w *waitingv1.Wait) bool {
	return w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
}

// blocks reports whether a wait has the mode wait, which blocks its owner; an intent does not.
func blocks(w *waitingv1.Wait) bool { return w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT }

// unpublished reports whether deliveries were counted that no event of the wait shows yet.
func (a *agentWaits) unpublished(w *waitingv1.Wait) bool {
	return active(w) && w.GetTriggerCount() > a.published[w.GetWaitId()].count
}

// unseen reports whether a wait has deliveries that no completed turn has shown.
func unseen(w *waitingv1.Wait) bool { return w.GetTriggerCount() > w.GetConsumedCount() }

// activeWaits returns the active waits that keep accepts, in order of creation.
func (a *agentWaits) activeWaits(keep func(*waitingv1.Wait) bool) []*waitingv1.Wait {
	if a == nil {
		return nil
	}
	return slices.DeleteFunc(a.waits.Living(), func(w *waitingv1.Wait) bool { return !keep(w) })
}

// blockingWait returns the active wait of mode wait of an owner, which is an item or, for "",
// the agent; nil if it has none. An owner has at most one.
func (a *agentWaits) blockingWait(itemID string) *waitingv1.Wait {
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool { return blocks(w) && w.GetWorkItemId() == itemID }) {
		return w
	}
	return nil
}

// wait returns a wait or intent of an agent, resident or evicted; NOT_FOUND if there is none among the live ones and
// the newest records.KeptEnded that have ended.
func (s *State) wait(namespace, agentID, waitID string) (*waitingv1.Wait, error) {
	if a := s.agents.Get(plane.KeyOf(namespace, agentID)); a != nil {
		if w := a.waits.Get(waitID); w != nil {
			return w, nil
		}
	}
	// Another agent's wait looks the same as none: waits are not shared.
	return nil, fault.NotFound.Newf("agent %q has no wait %q; ListWaits shows what it has", agentID, waitID).
		With("wait_id", waitID)
}

// trigger returns a trigger of an agent as wait does a wait.
func (s *State) trigger(namespace, agentID, triggerID string) (*waitingv1.Trigger, error) {
	if a := s.agents.Get(plane.KeyOf(namespace, agentID)); a != nil {
		if t := a.triggers.Get(triggerID); t != nil {
			return t, nil
		}
	}
	return nil, fault.NotFound.Newf("agent %q has no trigger %q; ListExternalTriggers shows what it has", agentID,
		triggerID).With("trigger_id", triggerID)
}

// timer returns a timer of an agent as wait does a wait.
func (s *State) timer(namespace, agentID, timerID string) (*waitingv1.Timer, error) {
	if a := s.agents.Get(plane.KeyOf(namespace, agentID)); a != nil {
		if t := a.timers.Get(timerID); t != nil {
			return t, nil
		}
	}
	return nil, fault.NotFound.Newf("agent %q has no timer %q; ListTimers shows what it has", agentID, timerID).
		With("timer_id", timerID)
}

// alive returns AGENT_DELETED for an agent that is deleted or being deleted, nil for any
// other.
func (s *State) alive(namespace, agentID string) error {
	if a := s.agents.Get(plane.KeyOf(namespace, agentID)); a != nil && a.deleted || s.WasErased(namespace, agentID) {
		return fault.AgentDeleted.Newf("agent %q is deleted; nothing can be created for it", agentID).
			With("agent_id", agentID)
	}
	return nil
}

// ended returns the next revision of a wait, with a status and reason, ended at the time of env. w stays as it is.
func ended(w *waitingv1.Wait, env journal.Env, status waitingv1.WaitStatus,
	reason waitingv1.WaitEndReason,
) *waitingv1.Wait {
	n := nextWait(w)
	n.Status, n.EndReason, n.EndedAt = status, reason, timestamppb.New(env.Now)
	return n
}

// nextWait returns a copy of a wait with the next revision, which the caller may change.
func nextWait(w *waitingv1.Wait) *waitingv1.Wait {
	n := proto.CloneOf(w)
	n.Revision++
	n.Triggered, n.WeakReason = false, notWeak
	return n
}

// triggeredBy returns a copy of a wait after count further deliveries, the last of them at
// deliveredAt.
func triggeredBy(w *waitingv1.Wait, count int64, deliveredAt *timestamppb.Timestamp) *waitingv1.Wait {
	n := nextWait(w)
	n.TriggerCount += count
	n.LastTriggeredAt = deliveredAt
	return n
}

// waitEvent returns the event of a payload about a wait.
func waitEvent(namespace string, w *waitingv1.Wait, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace: namespace, AgentID: w.GetAgentId(), WorkItemID: w.GetWorkItemId(),
		Payload: payload,
	}
}

// cancelled returns the event that a wait was cancelled for a reason.
func cancelled(namespace string, w *waitingv1.Wait, env journal.Env, reason waitingv1.WaitEndReason) *journal.Event {
	n := ended(w, env, waitingv1.WaitStatus_WAIT_STATUS_CANCELLED, reason)
	return waitEvent(namespace, n, &waitingv1.WaitCancelled{Wait: n, Reason: reason})
}

// resolved returns the event that a wait was resolved by an input of the cause with the id
// causeID.
func resolved(namespace string, w *waitingv1.Wait, env journal.Env, cause waitingv1.WaitCause,
	causeID string,
) *journal.Event {
	n := ended(w, env, waitingv1.WaitStatus_WAIT_STATUS_RESOLVED, endReasonOf(cause))
	n.EndedBy = causeID
	ev := waitEvent(namespace, n, &waitingv1.WaitResolved{Wait: n, Cause: cause, CauseId: causeID})
	if cause == causeTask || cause == causeTaskPresent {
		ev.TaskID = causeID
	}
	return ev
}
