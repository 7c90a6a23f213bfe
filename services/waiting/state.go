package waiting

import (
	"fmt"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// keptEnded bounds how many ended waits, timers and triggers of an agent stay
// in memory each. Older ones are in the event stream.
const keptEnded = 256

// State is one partition of the waiting plane. Records are replaced, never edited.
type State struct {
	agents map[key]*agentWaits
	tokens map[string]tokenOwner // hash of the secret -> its trigger
}

type key struct{ namespace, id string }

type tokenOwner struct {
	agent     key
	triggerID string
}

// agentWaits is what one agent waits for, and what may come for it.
type agentWaits struct {
	waits    records[*waitingv1.Wait]
	triggers records[*waitingv1.Trigger]
	timers   records[*waitingv1.Timer]
	// ended tasks and completed items as heard. A wait is decided against this
	// memory, in the same loop, so that an end heard a moment before is not
	// missed (ARCHITECTURE R8).
	tasks memory
	items memory
}

// NewState returns the state of an empty log.
func NewState() *State {
	return &State{agents: map[key]*agentWaits{}, tokens: map[string]tokenOwner{}}
}

// Apply folds one event in.
func (s *State) Apply(ev *journal.Event) error {
	k := key{ev.Namespace, ev.AgentID}
	a := s.agents[k]
	if a == nil {
		a = &agentWaits{}
		s.agents[k] = a
	}
	switch p := ev.Payload.(type) {
	case *waitingv1.WaitRegistered:
		a.waits.put(p.GetWait(), active(p.GetWait()))
	case *waitingv1.WaitTriggered:
		a.waits.put(p.GetWait(), true)
	case *waitingv1.WaitConsumed:
		a.waits.put(p.GetWait(), active(p.GetWait()))
	case *waitingv1.WaitResolved:
		a.waits.put(p.GetWait(), false)
	case *waitingv1.WaitCancelled:
		a.waits.put(p.GetWait(), false)
	case *waitingv1.WaitMismatched:
		// Evidence for readers of the stream; the wait stands as it did.
	case *waitingv1.ExternalTriggerCreated:
		a.triggers.put(p.GetTrigger(), true)
		s.tokens[p.GetTrigger().GetTokenHash()] = tokenOwner{k, p.GetTrigger().GetTriggerId()}
	case *waitingv1.ExternalTriggerCancelled:
		// The hash stays known: a revoked address is refused, not unknown.
		a.triggers.put(p.GetTrigger(), true)
	case *waitingv1.TriggerDelivered:
		a.triggers.put(p.GetTrigger(), true)
	case *waitingv1.TimerCreated:
		a.timers.put(p.GetTimer(), true)
	case *waitingv1.TimerFired:
		a.timers.put(p.GetTimer(), p.GetTimer().GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE)
	case *waitingv1.TimerCancelled:
		a.timers.put(p.GetTimer(), false)
	case *waitingv1.TaskNoted:
		if p.GetTerminal() {
			a.tasks.add(p.GetTaskId())
		}
	case *waitingv1.WorkItemNoted:
		a.items.add(p.GetWorkItemId())
	default:
		return fmt.Errorf("waiting: unknown event %T", ev.Payload)
	}
	return nil
}

// records keeps the records of one kind in order of creation: all that live
// and the newest of those that ended.
type records[R record] struct {
	byID  map[string]R
	order []string
	ended []string
}

type record interface {
	proto.Message
	comparable
	GetCreatedAt() *timestamppb.Timestamp
}

func idOf(r proto.Message) string {
	switch r := r.(type) {
	case *waitingv1.Wait:
		return r.GetWaitId()
	case *waitingv1.Trigger:
		return r.GetTriggerId()
	case *waitingv1.Timer:
		return r.GetTimerId()
	}
	return ""
}

func (rs *records[R]) put(r R, lives bool) {
	id := idOf(r)
	if rs.byID == nil {
		rs.byID = map[string]R{}
	}
	if _, known := rs.byID[id]; !known {
		rs.order = append(rs.order, id)
	}
	rs.byID[id] = r
	if lives || slices.Contains(rs.ended, id) {
		return
	}
	rs.ended = append(rs.ended, id)
	if len(rs.ended) > keptEnded {
		gone := rs.ended[0]
		rs.ended = slices.Delete(rs.ended, 0, 1)
		delete(rs.byID, gone)
		if i := slices.Index(rs.order, gone); i >= 0 {
			rs.order = slices.Delete(rs.order, i, i+1)
		}
	}
}

// list gives up to limit records after a position that keep accepts.
func (rs *records[R]) list(after string, limit int, keep func(R) bool) []R {
	var out []R
	start := 0
	if after != "" {
		// Ids grow with creation, so the place is found also when the record
		// that the page before ended with is gone.
		start = len(rs.order)
		if i := slices.IndexFunc(rs.order, func(id string) bool { return id > after }); i >= 0 {
			start = i
		}
	}
	for _, id := range rs.order[start:] {
		if len(out) == limit {
			break
		}
		if r := rs.byID[id]; keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// memory remembers ids, the newest few thousand: what it answers is asked
// within milliseconds, and the caller looked at the record itself just before.
type memory struct {
	ids   map[string]struct{}
	order []string
}

const memorySize = 4096

func (m *memory) add(id string) {
	if m.ids == nil {
		m.ids = map[string]struct{}{}
	}
	if _, known := m.ids[id]; known {
		return
	}
	if len(m.order) == memorySize {
		delete(m.ids, m.order[0])
		m.order = slices.Delete(m.order, 0, 1)
	}
	m.ids[id] = struct{}{}
	m.order = append(m.order, id)
}

func (m *memory) has(id string) bool {
	_, ok := m.ids[id]
	return ok
}

func active(w *waitingv1.Wait) bool {
	return w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
}

// activeWaits are the active waits that keep accepts, in order of creation.
func (a *agentWaits) activeWaits(keep func(*waitingv1.Wait) bool) []*waitingv1.Wait {
	if a == nil {
		return nil
	}
	return a.waits.list("", len(a.waits.order), func(w *waitingv1.Wait) bool { return active(w) && keep(w) })
}

// yielding is the one WaitFor wait of an owner, an item or (with "") the agent.
func (a *agentWaits) yielding(itemID string) *waitingv1.Wait {
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool {
		return w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT && w.GetWorkItemId() == itemID
	}) {
		return w
	}
	return nil
}

func (s *State) wait(namespace, agentID, waitID string) (*waitingv1.Wait, error) {
	if a := s.agents[key{namespace, agentID}]; a != nil {
		if w := a.waits.byID[waitID]; w != nil {
			return w, nil
		}
	}
	// Another agent's wait looks the same as none: waits are not shared.
	return nil, fault.NotFound.Newf("agent %q has no wait %q; ListWaits shows what it has", agentID, waitID).With("wait_id", waitID)
}

// ended is a wait in its last state.
func ended(w *waitingv1.Wait, env journal.Env, status waitingv1.WaitStatus, reason string) *waitingv1.Wait {
	n := nextWait(w)
	n.Status, n.EndReason, n.EndedAt = status, reason, timestamppb.New(env.Now)
	return n
}

func nextWait(w *waitingv1.Wait) *waitingv1.Wait {
	n := proto.CloneOf(w)
	n.Revision++
	n.Triggered = false
	return n
}

// shown is a wait as readers see it.
func shown(w *waitingv1.Wait) *waitingv1.Wait {
	v := proto.CloneOf(w)
	v.Triggered = v.GetTriggerCount() > v.GetConsumedCount()
	return v
}

func waitEvent(namespace string, w *waitingv1.Wait, payload proto.Message) *journal.Event {
	return &journal.Event{Namespace: namespace, AgentID: w.GetAgentId(), WorkItemID: w.GetWorkItemId(), Payload: payload}
}

func cancelled(namespace string, w *waitingv1.Wait, env journal.Env, reason string) *journal.Event {
	n := ended(w, env, waitingv1.WaitStatus_WAIT_STATUS_CANCELLED, reason)
	return waitEvent(namespace, n, &waitingv1.WaitCancelled{Wait: n, Reason: reason})
}

func resolved(namespace string, w *waitingv1.Wait, env journal.Env, cause, causeID string) *journal.Event {
	n := ended(w, env, waitingv1.WaitStatus_WAIT_STATUS_RESOLVED, cause)
	ev := waitEvent(namespace, n, &waitingv1.WaitResolved{Wait: n, Cause: cause, CauseId: causeID})
	if cause == causeTask || cause == causeTaskPresent {
		ev.TaskID = causeID
	}
	return ev
}

// What ends a one-shot wait.
const (
	causeTask        = "task_result"
	causeTaskPresent = "task_result_present" // it was there before the wait was
	causeTimer       = "timer"
	causeOperator    = "operator_input"
)
