package model

import (
	"slices"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// tell has the work plane hear how a wait stands.
func (m *model) tell(w *wait) {
	w.told = w.count // when to tell of what is counted from now on stays as it is
	if w.item == "" {
		return
	}
	now := *w
	m.say("waiting>work", func() { m.attach(now) })
}

// end ends a wait that stands.
func (m *model) end(w *wait, how waitingv1.WaitStatus) {
	if w == nil || w.status != active {
		return
	}
	w.status, w.tell = how, time.Time{}
	w.rev++
	if i := m.items[w.item]; i != nil {
		at := m.now
		m.say("waiting>work", func() {
			m.drop(i, w.id)
			if how == resolved && !w.intent && !i.done { // it can go on, and is first in its class
				i.resumed = at
			}
		})
	}
}

// blocks finds the one wait that an owner, an item or the agent, made by WaitFor.
func (a *agent) blocks(itemID string) *wait {
	for _, w := range a.waits {
		if w.status == active && !w.intent && w.item == itemID {
			return w
		}
	}
	return nil
}

// register makes a wait; one made by WaitFor takes the place of another, with
// what came for that and was not looked at (SPEC P1).
func (m *model) register(w *wait) {
	if !w.intent {
		if old := w.owner.blocks(w.item); old != nil {
			if old.count > old.seen {
				w.count, w.seen, w.last, w.replaces = old.count, old.seen, old.last, old.id
			}
			m.end(old, cancelled)
		}
	}
	w.rev, w.status, w.made = 1, active, m.now
	m.waits[w.id], w.owner.waits = w, append(w.owner.waits, w)
	m.tell(w)
}

// reached returns the waits that a trigger's delivery counts for (SPEC P2). A wait of
// the agent itself that names none takes any of the agent's triggers, one of an
// item those of its item and those that were made for no item.
func (m *model) reached(t *trigger) (all []*wait) {
	for _, w := range t.owner.waits {
		if w.status == active && w.kind == external && (w.resource == t.id || w.resource == "" &&
			(w.item == t.item || w.item == "" || t.item == "")) {
			all = append(all, w)
		}
	}
	return all
}

// deliver counts a delivery to those it reaches and says what it came to.
func (m *model) deliver(t *trigger, all []*wait, alive bool) (outcome waitingv1.DeliveryOutcome, contentful bool) {
	t.count++
	if len(all) == 0 && alive { // its content goes to the agent, whoever waits
		return waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED, true
	}
	if len(all) == 0 {
		t.idle++
		return waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED, false
	}
	news := false
	for _, w := range all {
		// A wait that names no mode takes what its trigger brings.
		content := w.contentful || !w.hint && t.contentful
		news, contentful = news || w.count == w.seen || content, contentful || content
	}
	for _, w := range all {
		w.count++
		w.rev++
		w.last = m.now
		switch {
		case !news:
			if w.tell.IsZero() {
				w.tell = m.now.Add(tellTerm)
			}
		case w.item == "" && !contentful: // else the message wakes
			m.tell(w)
			m.say("waiting>agent", func() { m.wake(w.owner, w.id) })
		default:
			m.tell(w)
		}
	}
	if !news {
		t.joined++
		return waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED, false
	}
	return waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED, contentful
}

// endTrigger kills an address, and the interests that deliveries to it made.
func (m *model) endTrigger(t *trigger, how waitingv1.TriggerStatus) {
	if t.status != waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE {
		return
	}
	t.status = how
	for _, w := range t.owner.waits {
		if w.auto && w.resource == t.id {
			m.end(w, cancelled)
		}
	}
}

// resolve ends a one-shot wait because what it waits for came. An agent that
// waits by itself is woken by a message, or where there is none by a wake.
func (m *model) resolve(w *wait, silent bool, by string) {
	if w.status != active {
		return
	}
	w.endedBy = by
	m.end(w, resolved)
	if w.item == "" && silent {
		m.say("waiting>agent", func() { m.wake(w.owner, "") })
	}
}

// operatorSaid resolves the named item's operator wait, else the only one (SPEC P2).
func (m *model) operatorSaid(a *agent, messageID, itemID string) {
	var all []*wait
	for _, w := range a.waits {
		if w.status == active && w.kind == operator {
			if w.item == itemID && itemID != "" {
				m.resolve(w, false, messageID)
				return
			}
			all = append(all, w)
		}
	}
	if len(all) == 1 && itemID == "" {
		m.resolve(all[0], false, messageID)
	}
}

func (m *model) taskEnded(t *task) {
	for _, w := range slices.Clone(t.owner.waits) {
		if w.kind == onTask && w.resource == t.id {
			m.resolve(w, false, t.id)
		}
	}
}

// consumed notes what a completed turn was shown, also of waits that others took
// the place of meanwhile (SPEC P1, P2).
func (m *model) consumed(a *agent, shown map[string]int64) {
	for _, w := range a.waits {
		if w.status != active {
			continue
		}
		most := int64(0)
		for id := w.id; id != ""; id = m.waits[id].replaces {
			most = max(most, shown[id])
		}
		if most = min(most, w.count); most > w.seen {
			w.seen = most
			w.rev++
			m.rouse(w)
			m.tell(w)
		}
	}
}

// rouse wakes an agent for deliveries to its own wait that it was not told of, and
// that no turn was shown meanwhile.
func (m *model) rouse(w *wait) {
	if w.item == "" && w.told < w.count && w.seen < w.count {
		m.say("waiting>agent", func() { m.wake(w.owner, w.id) })
	}
}

// due lets happen in the waiting plane what the clock has reached.
func (m *model) due() {
	past := func(t time.Time) bool { return !t.IsZero() && !t.After(m.now) }
	for _, a := range m.agents {
		for _, w := range slices.Clone(a.waits) {
			if w.status != active {
				continue
			}
			if past(w.tell) {
				w.tell = time.Time{}
				if w.told < w.count {
					w.rev++
					m.rouse(w)
					m.tell(w)
				}
			}
			if w.item == "" && past(w.recheck) && !w.rechecked && !past(w.due) {
				w.rechecked = true
				w.rev++
				m.say("waiting>agent", func() { m.wake(a, "") })
			}
			if past(w.due) {
				m.resolve(w, true, w.id)
			}
		}
	}
	for _, t := range m.trigs {
		if past(t.expires) {
			m.endTrigger(t, waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED)
		}
	}
	for _, t := range m.timers {
		if t.status != waitingv1.TimerStatus_TIMER_STATUS_ACTIVE || t.next.After(m.now) {
			continue
		}
		t.fires++
		if t.every == 0 || t.fires == t.count {
			t.status = waitingv1.TimerStatus_TIMER_STATUS_COMPLETED
		}
		if t.every > 0 && t.fires != t.count { // due at start + n*every, however late it fired
			slots := int64(m.now.Sub(t.next)/t.every) + 1
			t.skipped += slots - 1
			t.next = t.next.Add(time.Duration(slots) * t.every)
		}
		m.say("waiting>agent", func() {
			// A tick of this timer that is queued stands for this one too (SPEC P7).
			if !slices.ContainsFunc(t.owner.lane, func(q *message) bool { return q.cause == t.id }) {
				m.hear(t.owner, &message{kind: agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK, cause: t.id})
			}
		})
	}
}
