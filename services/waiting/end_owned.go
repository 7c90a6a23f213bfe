package waiting

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

// endBytes bounds the records that one command ends because their owner ended. An agent or an
// item may have any number of them, and a command's lines, which are some times as large as
// small records, have a limit.
const endBytes = 256 << 10

// endOwned returns the events that end what a completed item has, which is waits, intents and
// timers, or for "" what a deleted agent has, which is triggers too. It stops at endBytes; what is
// left is ended by further commands (dueRest). The receiver may be nil.
func (a *agentWaits) endOwned(env journal.Env, k plane.Key, itemID string) (events []*journal.Event) {
	if a == nil {
		return nil
	}
	reason := waitingv1.WaitEndReason_WAIT_END_REASON_WORK_ITEM_COMPLETED
	if itemID == "" {
		reason = waitingv1.WaitEndReason_WAIT_END_REASON_AGENT_DELETED
	}
	size := 0
	add := func(more ...*journal.Event) {
		events = append(events, more...)
		for _, ev := range more {
			size += proto.Size(ev.Payload)
		}
	}
	// ends reports whether a record of the item ownerItem, "" for one of the agent itself, is ended by this command.
	ends := func(ownerItem string) bool { return size < endBytes && (itemID == "" || ownerItem == itemID) }
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool { return itemID != "" || !ownInterest(w) }) {
		if ends(w.GetWorkItemId()) {
			add(cancelled(k.Namespace, w, env, reason))
		}
	}
	for _, t := range a.triggers.Living() {
		// endTrigger also cancels the intent that register made for it. No wait is named as weakened: all end.
		if itemID == "" && ends("") {
			add(a.endTrigger(k, t, env, waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED, nil)...)
		}
	}
	for _, t := range a.timers.Living() {
		if ends(t.GetWorkItemId()) {
			add(cancelledTimer(k.Namespace, t))
		}
	}
	return events
}

// lives reports whether an agent has a wait, a trigger or a timer that has not ended.
func (a *agentWaits) lives() bool {
	return len(a.waits.Living()) > 0 || len(a.triggers.Living()) > 0 || len(a.timers.Living()) > 0
}

// leftToEnd returns the arguments itemID with which endOwned still ends something: "" if the agent is deleted, and
// otherwise the completed items that still have waits or timers.
func (a *agentWaits) leftToEnd() []string {
	if a.deleted && a.lives() {
		return []string{""}
	}
	open := map[string]bool{}
	addItems(open, a.waits.Living())
	addItems(open, a.timers.Living())
	return slices.DeleteFunc(a.items.IDs(), func(id string) bool { return !open[id] })
}

// itemsOfLiving returns the items of what has not ended.
func (a *agentWaits) itemsOfLiving() map[string]bool {
	open := map[string]bool{}
	addItems(open, a.waits.Living())
	addItems(open, a.timers.Living())
	addItems(open, a.triggers.Living())
	return open
}

// addItems adds the items of records to a set.
func addItems[R interface{ GetWorkItemId() string }](to map[string]bool, owned []R) {
	for _, r := range owned {
		to[r.GetWorkItemId()] = true
	}
}
