package work

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/btree"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// State is one partition of the work plane. Records are replaced, never edited,
// so that readers may keep what they found.
type State struct {
	items  map[key]item
	agents map[key]*agentWork
	// free is shared by all trees: one of its own would be a quarter of what an
	// idle agent takes.
	free *btree.FreeListG[*workv1.WorkItem]
}

// item is a record and the way back to everything that made it so.
type item struct {
	rec   *workv1.WorkItem
	trail trail
}

// key names an agent or an item within its namespace.
type key struct{ namespace, id string }

// agentWork is all that one agent has to do. Every class has its own order, so
// that reading a queue costs the same with ten items and with a million.
type agentWork struct {
	current  string
	deleted  bool                            // the agent is deleted, or about to be
	all      *btree.BTreeG[*workv1.WorkItem] // by creation
	open     *btree.BTreeG[*workv1.WorkItem] // by creation
	rechecks *btree.BTreeG[*workv1.WorkItem] // open, recheck set and not consumed; by time
	classes  [7]*btree.BTreeG[*workv1.WorkItem]
	// ended holds the waits that ended last, oldest first. The direct call and
	// the event that say the same wait began may come in any order, also after
	// its end; without this memory the late one would stop the item for ever.
	ended []string
	// changed is when something last came about that a turn should see. That a
	// turn has seen a trigger is nothing new.
	changed time.Time
}

// endedMemory is how many ended waits an agent remembers. The two messages are
// milliseconds apart, and an agent makes one wait a turn.
const endedMemory = 32

// A small degree keeps an idle agent with a handful of items under a few KiB.
const treeDegree = 8

// NewState returns the state of an empty log.
func NewState() *State {
	return &State{
		items: map[key]item{}, agents: map[key]*agentWork{},
		free: btree.NewFreeListG[*workv1.WorkItem](btree.DefaultFreeListSize),
	}
}

// Apply folds one event in.
func (s *State) Apply(ev *journal.Event) error {
	if s.telling(ev) {
		s.agent(key{ev.Namespace, ev.AgentID}).changed = ev.CreatedAt
	}
	if err := s.fold(ev); err != nil {
		return err
	}
	s.remember(ev)
	return nil
}

// telling says whether an event is news for the agent's next turn.
func (s *State) telling(ev *journal.Event) bool {
	switch p := ev.Payload.(type) {
	case *workv1.WaitAttachRefused, *workv1.RecheckConsumed, *workv1.FocusReleased, *workv1.ReportPromoted,
		*workv1.HomeFileWritten:
		return false
	case *workv1.WaitAttached:
		known := attached(s.record(ev.Namespace, ev.WorkItemID), p.GetWait().GetWaitId())
		return known == nil || p.GetWait().GetTriggerCount() > known.GetTriggerCount()
	}
	return true
}

func (s *State) fold(ev *journal.Event) error {
	k := key{ev.Namespace, ev.AgentID}
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemCreated:
		s.put(k, p.GetWorkItem())
	case *workv1.WorkItemUpdated:
		s.put(k, p.GetWorkItem())
		s.agent(k).end(p.GetEndedWaitId())
	case *workv1.WorkItemPicked:
		s.agent(k).current = p.GetCurrentWorkItemId()
	case *workv1.FocusReleased:
		if a := s.agent(k); a.current == p.GetWorkItemId() {
			a.current = ""
		}
	case *workv1.WorkItemCompleted:
		s.put(k, p.GetWorkItem())
	case *workv1.ReportPromoted:
		s.put(k, p.GetWorkItem())
	case *workv1.WaitAttached:
		s.put(k, p.GetWorkItem())
		s.agent(k).end(p.GetReplacedWaitIds()...)
	case *workv1.WaitDetached:
		s.put(k, p.GetWorkItem())
		s.agent(k).end(p.GetWaitId())
	case *workv1.RecheckConsumed:
		s.put(k, p.GetWorkItem())
	case *workv1.WaitAttachRefused:
		// For the waiting plane; nothing here changes.
	case *workv1.HomeFileWritten:
		// For those who watch; the file is the truth.
	case *workv1.OwnerDeleted:
		s.agent(k).deleted = true
	default:
		return fmt.Errorf("work: unknown event %T", ev.Payload)
	}
	return nil
}

func (s *State) agent(k key) *agentWork {
	a := s.agents[k]
	if a == nil {
		a = &agentWork{
			all:  s.tree(byCreation),
			open: s.tree(byCreation),
		}
		s.agents[k] = a
	}
	return a
}

func (s *State) tree(less btree.LessFunc[*workv1.WorkItem]) *btree.BTreeG[*workv1.WorkItem] {
	return btree.NewWithFreeListG(treeDegree, less, s.free)
}

// put replaces a record in every index.
func (s *State) put(k key, it *workv1.WorkItem) {
	a := s.agent(k)
	ik := key{k.namespace, it.GetWorkItemId()}
	e := s.items[ik]
	if old := e.rec; old != nil {
		a.all.Delete(old)
		a.open.Delete(old)
		if t := a.classes[classOf(old)]; t != nil {
			t.Delete(old)
		}
		if a.rechecks != nil && recheckPending(old) {
			a.rechecks.Delete(old)
		}
	}
	e.rec = it
	s.items[ik] = e
	a.all.ReplaceOrInsert(it)
	if it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN {
		a.open.ReplaceOrInsert(it)
	}
	c := classOf(it)
	if a.classes[c] == nil {
		a.classes[c] = s.tree(classOrder[c])
	}
	a.classes[c].ReplaceOrInsert(it)
	if recheckPending(it) {
		if a.rechecks == nil {
			a.rechecks = s.tree(byRecheck)
		}
		a.rechecks.ReplaceOrInsert(it)
	}
}

// record is an item as it stands, nil if there is none.
func (s *State) record(namespace, itemID string) *workv1.WorkItem {
	return s.items[key{namespace, itemID}].rec
}

// met says whether this plane knows of an agent.
func (s *State) met(namespace, agentID string) bool {
	_, ok := s.agents[key{namespace, agentID}]
	return ok
}

// owned finds an item of an agent. A foreign item is refused, not hidden: ids
// are unguessable and agents of one namespace may know of each other.
func (s *State) owned(namespace, agentID, itemID string) (*workv1.WorkItem, error) {
	it := s.record(namespace, itemID)
	switch {
	case it == nil:
		return nil, fault.NotFound.Newf("work item %q does not exist; ListWorkItems shows what agent %q has", itemID, agentID).With("work_item_id", itemID)
	case it.GetAgentId() != agentID:
		return nil, fault.PermissionDenied.Newf("work item %q belongs to another agent than %q", itemID, agentID).With("work_item_id", itemID)
	}
	return it, nil
}

// end remembers waits that are over.
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

func (s *State) hasEnded(namespace, agentID, waitID string) bool {
	a := s.agents[key{namespace, agentID}]
	return a != nil && slices.Contains(a.ended, waitID)
}

func (s *State) current(namespace, agentID string) string {
	if a := s.agents[key{namespace, agentID}]; a != nil {
		return a.current
	}
	return ""
}

func recheckPending(it *workv1.WorkItem) bool {
	return it.GetRecheckAt() != nil && it.GetRecheckConsumedAt() == nil &&
		it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN
}

func before(a, b *timestamppb.Timestamp) bool { return compare(a, b) < 0 }

func compare(a, b *timestamppb.Timestamp) int {
	switch {
	case a.GetSeconds() != b.GetSeconds():
		if a.GetSeconds() < b.GetSeconds() {
			return -1
		}
		return 1
	case a.GetNanos() < b.GetNanos():
		return -1
	case a.GetNanos() > b.GetNanos():
		return 1
	}
	return 0
}

func byCreation(a, b *workv1.WorkItem) bool {
	if c := compare(a.GetCreatedAt(), b.GetCreatedAt()); c != 0 {
		return c < 0
	}
	return a.GetWorkItemId() < b.GetWorkItemId()
}

func byRecheck(a, b *workv1.WorkItem) bool {
	if c := compare(a.GetRecheckAt(), b.GetRecheckAt()); c != 0 {
		return c < 0
	}
	return a.GetWorkItemId() < b.GetWorkItemId()
}

// classOrder is S3 "Candidate Ranking", ended by the id so that it is total.
var classOrder = [7]btree.LessFunc[*workv1.WorkItem]{
	workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED:    byTriggerNewest,
	workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE:      byUpdateOldest,
	workv1.CandidateClass_CANDIDATE_CLASS_WAITING_FOR_OPERATOR: byUpdateNewest,
	workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED:              byUpdateNewest,
	workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT:     byUpdateNewest,
}

func byUpdateNewest(a, b *workv1.WorkItem) bool {
	if c := compare(a.GetUpdatedAt(), b.GetUpdatedAt()); c != 0 {
		return c > 0
	}
	return a.GetWorkItemId() < b.GetWorkItemId()
}

func byUpdateOldest(a, b *workv1.WorkItem) bool {
	if c := compare(a.GetUpdatedAt(), b.GetUpdatedAt()); c != 0 {
		return c < 0
	}
	return byCreation(a, b)
}

func byTriggerNewest(a, b *workv1.WorkItem) bool {
	if c := compare(lastTriggered(a), lastTriggered(b)); c != 0 {
		return c > 0
	}
	return byUpdateNewest(a, b)
}

func lastTriggered(it *workv1.WorkItem) *timestamppb.Timestamp {
	var last *timestamppb.Timestamp
	for _, w := range it.GetWaits() {
		if w.GetTriggerCount() > w.GetConsumedCount() && (last == nil || before(last, w.GetLastTriggeredAt())) {
			last = w.GetLastTriggeredAt()
		}
	}
	return last
}
