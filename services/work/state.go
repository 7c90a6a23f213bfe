package work

import (
	"slices"
	"time"

	"github.com/google/btree"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/event"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
	"quartet/services/work/derive"
	"quartet/services/work/past"
)

// State is one partition of the work plane. Records are replaced, never edited,
// so that readers may keep what they found.
type State struct {
	event.Tombstones
	*store // what is held of agents
	// free is shared by all trees: one of its own would be a quarter of what an
	// idle agent takes.
	free *btree.FreeListG[place]
}

// item is a record and the positions of its mutations.
type item struct {
	rec     *workv1.WorkItemRecord
	history past.Seqs
	index   int // among all items of the agent, in the order in which they were added
}

// agentWork holds the items of one agent. Every class has a tree in its own order, so that
// reading a queue costs the same with ten items and with a million.
//
// An evicted agent is read as a copy, made for the read, that has all of this. Its items are not in store.Items.
type agentWork struct {
	plane.Key
	current  string // the id of the item in focus; empty: none
	deleted  bool   // the agent is deleted, or is being deleted
	open     tree   // open items, by creation
	done     tree   // completed items that are not packed, by creation
	rechecks tree   // open items that show a reminder that was not given, by its time
	items    groups.List[item, created]
	packable []int   // the groups whose items are all completed and which are not packed yet, in order
	waiting  int     // the number of open items that have waits or intents
	classes  [7]tree // all items that are not packed by candidate class, each class in its classOrder
	// ended holds the waits that ended last, oldest first. A wait is attached by a call and
	// by an event, in either order, and both may arrive after the event of its end. Without
	// this memory, the late one would block the item permanently.
	ended []string
	// changed is the time of the last event that changed the work, see on; zero: there was none.
	changed time.Time
}

// endedMemory is how many ended waits are remembered for an agent. The call and the event
// of a wait arrive within milliseconds, and an agent registers about one wait in a turn.
const endedMemory = 32

// NewState returns the state of an empty journal.
func NewState() *State {
	s := &State{free: btree.NewFreeListG[place](btree.DefaultFreeListSize)}
	s.store = newStore(s)
	return s
}

// Apply folds one event into the records, into the time of the agent's last change, and into
// the history of the items that it is about. What it does with an event type is in eventRows.
func (s *State) Apply(ev *journal.Event) error {
	row, err := eventRows.Of(ev)
	if err != nil {
		return err
	}
	k := plane.KeyOf(ev.Namespace, ev.AgentID)
	if row.changes(s, ev) {
		s.Owner(k).changed = ev.CreatedAt
	}
	if row.fold != nil {
		row.fold(s, ev)
	}
	for _, id := range row.items(ev) {
		if it := s.edited(ev.Namespace, id); it != nil {
			it.history = it.history.With(ev.WalSeq)
		}
	}
	s.settle(k)
	return nil
}

// put stores a record in place of the one with its id, if any, and moves the item in every
// tree in which its place changes.
func (s *State) put(k plane.Key, rec *workv1.WorkItemRecord) {
	a := s.Owner(k)
	it := s.edited(k.Namespace, rec.GetWorkItemId())
	if it == nil {
		it = &item{rec: rec}
		s.Add(k, a, it) // it reads the id from the record
		it.rec = nil    // for replace, the item is new
	}
	s.replace(a, it, rec)
}

// replace stores a record in an item and moves the item in the trees; see put.
func (s *State) replace(a *agentWork, it *item, rec *workv1.WorkItemRecord) {
	old := it.rec
	a.waiting += openWaits(rec) - openWaits(old)
	moves := old == nil || derive.Completed(old) != derive.Completed(rec) // between open and done, or into one of them

	// The trees compare by the current record, so remove the item from them before replacing its record.
	if old != nil {
		a.unplace(it)
		if moves {
			a.byCompletion(old).remove(byCreation, it)
		}
	}
	it.rec = rec
	if moves {
		a.byCompletion(rec).add(byCreation, it, s.free)
	}
	a.place(it, s.free)

	// The item may be the last one of its group to be completed.
	if n := it.index / groups.Size; derive.Completed(rec) && a.items.Groups[n].Full((*item).completed) {
		a.addPackable(n)
	}
}

// place puts an item into the tree of its class and, if a recheck is pending, into that of rechecks. The trees open and
// done, which it changes only when it is completed, are left to the caller.
func (a *agentWork) place(it *item, free *btree.FreeListG[place]) {
	c := derive.ClassOf(it.rec)
	a.classes[c].add(classOrder[c], it, free)
	if derive.RecheckPending(it.rec) {
		a.rechecks.add(byRecheck, it, free)
	}
}

// unplace takes an item out of the trees into which place puts it.
func (a *agentWork) unplace(it *item) {
	c := derive.ClassOf(it.rec)
	a.classes[c].remove(classOrder[c], it)
	if derive.RecheckPending(it.rec) {
		a.rechecks.remove(byRecheck, it)
	}
}

// byCompletion returns the tree of open or of completed items to which a record belongs.
func (a *agentWork) byCompletion(rec *workv1.WorkItemRecord) *tree {
	if derive.Completed(rec) {
		return &a.done
	}
	return &a.open
}

// openWaits returns 1 if an item is not completed and has waits or intents. It returns 0 if not, and for nil.
func openWaits(rec *workv1.WorkItemRecord) int {
	if rec == nil || derive.Completed(rec) || len(rec.GetWaits()) == 0 {
		return 0
	}
	return 1
}

// item returns an item, nil if there is none. If it is in a packed group or of an evicted agent, it is a copy.
func (s *State) item(namespace, itemID string) *item { return s.Find(plane.KeyOf(namespace, itemID)) }

// record returns the record of an item, nil if there is none.
func (s *State) record(namespace, itemID string) *workv1.WorkItemRecord {
	if it := s.item(namespace, itemID); it != nil {
		return it.rec
	}
	return nil
}

// met reports whether an event of an agent was applied.
func (s *State) met(namespace, agentID string) bool {
	return s.ByOwner.Has(plane.KeyOf(namespace, agentID))
}

// owned returns the item of an agent, completed or not; NOT_FOUND if it does not exist. The
// item of another agent is PERMISSION_DENIED and not NOT_FOUND: ids cannot be guessed, and
// agents of one namespace may know each other.
func (s *State) owned(namespace, agentID, itemID string) (*workv1.WorkItemRecord, error) {
	it := s.record(namespace, itemID)
	switch {
	case it == nil:
		return nil, fault.NotFound.Newf("work item %q does not exist; ListWorkItems shows what agent %q has", itemID,
			agentID).With("work_item_id", itemID)
	case it.GetAgentId() != agentID:
		return nil, Foreign(agentID, itemID)
	}
	return it, nil
}

// ownedOrCurrent is owned, with the item in focus for an empty itemID. It returns
// INVALID_ARGUMENT if itemID is empty and no item is in focus.
func (s *State) ownedOrCurrent(namespace, agentID, itemID string) (*workv1.WorkItemRecord, error) {
	if itemID == "" {
		if itemID = s.current(namespace, agentID); itemID == "" {
			return nil, fault.Invalid("work_item_id", "", "must be given, or PickWorkItem called before: no work "+
				"item is in focus")
		}
	}
	return s.owned(namespace, agentID, itemID)
}

// Foreign returns the refusal of an item that belongs to another agent.
func Foreign(agentID, itemID string) error {
	return fault.PermissionDenied.Newf("work item %q belongs to another agent than %q", itemID, agentID).
		With("work_item_id", itemID)
}

// end remembers waits that have ended, the last endedMemory of the agent. It ignores empty
// ids.
func (a *agentWork) end(waitIDs ...string) {
	for _, w := range waitIDs {
		if w == "" {
			continue
		}
		if len(a.ended) == endedMemory {
			a.ended = slices.Delete(a.ended, 0, 1)
		}
		a.ended = append(a.ended, w)
	}
}

// hasEnded reports whether a wait is among the remembered ended waits of an agent.
func (s *State) hasEnded(namespace, agentID, waitID string) bool {
	a := s.ByOwner.Get(plane.KeyOf(namespace, agentID))
	return a != nil && slices.Contains(a.ended, waitID)
}

// current returns the id of the item in an agent's focus, empty if there is none.
func (s *State) current(namespace, agentID string) string {
	if a := s.ByOwner.Get(plane.KeyOf(namespace, agentID)); a != nil {
		return a.current
	}
	return ""
}
