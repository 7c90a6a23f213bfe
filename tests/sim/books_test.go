package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

var registries = map[string]*journal.Registry{
	"agent":   journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
	"work":    journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto),
	"waiting": journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto),
	"task":    journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto),
	"board":   journal.NewRegistry(boardv1.File_quartet_board_v1_board_event_proto),
}

// books read every frame as it is stored, and note what must never be there (SPEC R, X1, X2). The first
// violation is kept.
type books struct {
	mu       sync.Mutex
	pages    map[string]*page
	asked    map[string]int       // how often a service was asked to execute a request
	requests map[string]uint64    // by plane and request: the frame that has it
	records  map[string]string    // the state of records that only move forward
	had      map[string]bool      // the states that records ever had, where that is asked
	needs    map[string][]string  // what steps depend on
	over     map[string]time.Time // when boards ended
	counts   map[string]int64
	changes  map[string]int // events that are not the journal's own, by plane
	types    map[string]int // events, by type
	effects  *consequences
	lanes    *lanes
	derived  *derivations
	items    map[string]*workv1.WorkItemRecord // as they were stored last
	copied   *published
	wrong    error
	stopped  bool
}

// page is what the books know of one journal.
type page struct {
	end        framelog.End
	last       uint64
	generation uint64
	positions  map[string]float64
}

func newBooks() *books {
	b := &books{
		pages: map[string]*page{}, asked: map[string]int{}, requests: map[string]uint64{},
		records: map[string]string{}, had: map[string]bool{}, needs: map[string][]string{},
		over: map[string]time.Time{}, counts: map[string]int64{}, changes: map[string]int{}, types: map[string]int{},
		effects: newConsequences(), lanes: newLanes(), copied: newPublished(),
		derived: &derivations{newest: map[string]*workv1.WorkItem{}}, items: map[string]*workv1.WorkItemRecord{},
	}
	for _, p := range journals {
		b.pages[p] = &page{positions: map[string]float64{}}
	}
	return b
}

func (b *books) violation(format string, args ...any) {
	if b.wrong == nil {
		b.wrong = fmt.Errorf(format, args...)
	}
}

// around checks what leaves a service: what it shows is stored, and what is said to have no effect has none.
func (b *books) around(plane string, args any) func(reply any, err error) {
	id := ""
	if r, ok := args.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" {
		id = plane + " " + r.GetRequestId()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[id]++
	return func(reply any, err error) {
		if err == nil {
			b.shown(reply)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if id == "" || b.asked[id] != 1 || fault.From(err).Metadata()["outcome"] != "none" {
			return // another call of the same request may have its effect now
		}
		if _, stored := b.requests[id]; stored && !b.stopped {
			b.violation("%T %s is refused with outcome none, and it is stored: %w", args, id, err)
		}
	}
}

// repeated notes that services, one of which is the right one, are asked once more to execute a request.
func (b *books) repeated(args any, services ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := args.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" {
		for _, plane := range services {
			b.asked[plane+" "+r.GetRequestId()]++
		}
	}
}

// shown checks that what an answer of the work plane shows is stored when it leaves the plane (SPEC X1).
func (b *books) shown(reply any) {
	var items []*workv1.WorkItem
	switch r := reply.(type) {
	case *workv1.GetWorkItemResponse:
		items = append(items, r.GetWorkItem())
	case *workv1.GetWorkQueueResponse:
		items = slices.Concat(items, r.GetTriggeredBlocked(), r.GetQueuedRunnable(), r.GetWaitingForOperator(),
			r.GetBlocked(), r.GetCompletedRecent())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		if it != nil && it.GetRevision() > b.counts["revision of item "+it.GetWorkItemId()] && !b.stopped {
			b.violation("revision %d of item %s was shown and is not stored", it.GetRevision(), it.GetWorkItemId())
		}
	}
	if err := b.derived.answer(reply); err != nil && !b.stopped {
		b.violation("derived: %w", err)
	}
}

// stop ends reading: what is stored from now on is not compared with what was stored before.
func (b *books) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.copied.stop()
}

// check returns the first violation.
func (b *books) check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wrong
}

// changed returns how many events planes have written, without those of the journals themselves.
func (b *books) changed() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.changes {
		n += k
	}
	return n
}

// consumed is that of the consequences.
func (b *books) consumed(w *waitingv1.Wait) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.effects.consumed(w)
}

// has reports whether a plane has stored a request.
func (b *books) has(plane, requestID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.requests[plane+" "+requestID]
	return ok
}

// stored reads a frame that a log has stored.
func (b *books) stored(plane string, seq uint64, f framelog.Frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	p := b.pages[plane]
	end, intact, err := p.end.Next(framelog.PartitionName(plane, 0), seq, f)
	if err != nil || !intact {
		b.violation("%s: frame %d does not continue the journal: intact %t, %w", plane, seq, intact, err)
		return
	}
	p.end = end
	if f.Generation < p.generation {
		b.violation("%s: frame %d is of generation %d and was stored in generation %d: a writer was not fenced", plane,
			seq, f.Generation, p.generation)
	}
	for _, line := range framelog.SplitLines(f.Body) {
		raw, err := journal.ParseLine(line)
		var ev *journal.Event
		if err == nil {
			ev, err = raw.Decode(registries[plane])
		}
		switch {
		case err != nil:
			b.violation("%s: frame %d: %w", plane, seq, err)
			return
		case ev.WalSeq != p.last+1:
			b.violation("%s: wal_seq %d follows %d", plane, ev.WalSeq, p.last)
		}
		p.last = ev.WalSeq
		b.types[ev.Type]++
		b.line(plane, seq, p, ev)
		if !journal.Internal(ev.Type) {
			b.copied.event(plane, ev)
		}
	}
	b.copied.frame(plane, seq)
}

// line reads one event.
func (b *books) line(plane string, seq uint64, p *page, ev *journal.Event) {
	if ev.RequestHash != "" {
		k := plane + " " + ev.RequestID
		if at, ok := b.requests[k]; ok && at != seq {
			b.violation("%s: request %s was executed in frame %d and again in frame %d (%s)", plane, ev.RequestID, at,
				seq, ev.Type)
		}
		b.requests[k] = seq
	}
	switch ev.Type {
	case journal.TypePartitionOpened:
		g := uint64(number(ev, "generation"))
		if g <= p.generation {
			b.violation("%s: generation %d follows %d", plane, g, p.generation)
		}
		p.generation = g
	case journal.TypeSourceConsumed:
		of := text(ev, "plane")
		at := number(ev, "sequence") * 1e6
		if line := number(ev, "line"); line > 0 {
			at += line - 1e6
		}
		if at < p.positions[of] {
			b.violation("%s: the position in %s went back from %f to %f", plane, of, p.positions[of], at)
		}
		p.positions[of] = at
	case journal.TypeRequestAnswered, event.TypeOwnerErased:
	default:
		b.changes[plane]++
		b.record(plane, ev)
		if ev.AgentID == goneAgent {
			return // nothing must come of it once it is deleted
		}
		if err := b.effects.read(plane, ev.AgentID, ev.WorkItemID, ev.Payload); err != nil {
			b.violation("%s: %s at wal_seq %d: %w", plane, ev.Type, ev.WalSeq, err)
		}
		if err := b.lanes.read(ev.Payload); err != nil {
			b.violation("%s: %s at wal_seq %d: %w", plane, ev.Type, ev.WalSeq, err)
		}
	}
}

// number and text return fields of an event of the journal itself.
func number(ev *journal.Event, field string) float64 { return own(ev)[field].GetNumberValue() }
func text(ev *journal.Event, field string) string    { return own(ev)[field].GetStringValue() }

// move moves a record to a state, which must be allowed after the one that it has.
func (b *books) move(ev *journal.Event, kind, id, to string, from ...string) {
	k := kind + " " + id
	if !slices.Contains(from, b.records[k]) {
		b.violation("%s of %s %s at wal_seq %d, which is %q and must be one of %q", ev.Type, kind, id, ev.WalSeq,
			b.records[k], from)
	}
	b.records[k] = to
}

// rise notes a number that must rise.
func (b *books) rise(ev *journal.Event, kind, id string, n int64) {
	k := kind + " " + id
	if n <= b.counts[k] {
		b.violation("%s: %s of %s is %d after %d", ev.Type, kind, id, n, b.counts[k])
	}
	b.counts[k] = n
}

// record follows the records of the planes.
func (b *books) record(plane string, ev *journal.Event) {
	switch plane {
	case "agent":
		b.agentRecord(ev)
	case "work":
		b.workRecord(ev)
	case "waiting":
		b.waitingRecord(ev)
	case "task":
		b.taskRecord(ev)
	case "board":
		b.boardRecord(ev)
	}
}

func (b *books) agentRecord(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *agentv1.AgentSpawned:
		b.move(ev, "agent", p.GetAgent().GetAgentId(), "there", "")
	case *agentv1.MessageQueued:
		if m := p.GetMessage(); m.GetTick() != nil && b.records["turn of "+m.GetAgentId()] != "" {
			b.violation("tick %s of %s was queued during turn %s (SPEC D2)", m.GetMessageId(), m.GetAgentId(),
				b.records["turn of "+m.GetAgentId()])
		} else if m.GetTimerId() != "" || m.GetTriggerId() != "" {
			b.move(ev, "message because of", m.GetCausationId(), "there", "")
		}
		b.move(ev, "message", p.GetMessage().GetMessageId(), "queued", "")
	case *agentv1.MessageDequeued:
		b.move(ev, "message", p.GetMessage().GetMessageId(), "taken", "queued")
	case *agentv1.MessageInterjected: // it is over if the turn completes, which no event of its own says
		b.move(ev, "message", p.GetMessage().GetMessageId(), "interjected", "queued")
	case *agentv1.MessageRequeued:
		b.move(ev, "message", p.GetMessage().GetMessageId(), "queued", "taken", "interjected")
	case *agentv1.MessageProcessed:
		b.move(ev, "turn", p.GetMessage().GetTurnId(), "open", "open")
		b.records["processed by "+p.GetMessage().GetTurnId()] = ""
		b.move(ev, "message", p.GetMessage().GetMessageId(), "over", "taken")
	case *agentv1.MessageDropped:
		b.move(ev, "message", p.GetMessage().GetMessageId(), "over", "queued")
	case *agentv1.MessageAborted:
		b.move(ev, "message", p.GetMessage().GetMessageId(), "over", "taken", "queued")
	case *agentv1.MessageQuarantined:
		b.move(ev, "message", p.GetMessage().GetMessageId(), "over", "taken", "queued")
	case *agentv1.TurnStarted:
		t := p.GetTurn()
		b.move(ev, "turn of", t.GetAgentId(), t.GetTurnId(), "")
		b.move(ev, "turn", t.GetTurnId(), "open", "")
		b.rise(ev, "lease generation", t.GetAgentId(), t.GetLeaseGeneration())
		// SPEC X2; who is deleted gives its requests free
		if t.GetAcquireRequestId() != "" && t.GetAgentId() != goneAgent {
			b.move(ev, "turn for request", requestOf(t), t.GetTurnId(), "")
		}
	case *agentv1.TurnCompleted:
		b.ended(ev, p.GetTurn())
	case *agentv1.TurnFailed:
		b.ended(ev, p.GetTurn())
	case *agentv1.TurnInterrupted:
		b.ended(ev, p.GetTurn())
		if t := p.GetTurn(); t.GetEndReason() == agentv1.TurnEndReason_TURN_END_REASON_UNDELIVERED &&
			t.GetAcquireRequestId() != "" && t.GetAgentId() != goneAgent {
			b.move(ev, "turn for request", requestOf(t), "", t.GetTurnId()) // no runner has it
		}
	case *agentv1.TurnAborted:
		b.ended(ev, p.GetTurn())
	case *agentv1.RoundSubmitted:
		r := p.GetRound()
		b.move(ev, "turn", r.GetTurnId(), "open", "open")
		b.rise(ev, "round", r.GetTurnId(), int64(r.GetIndex())+1)
	case *agentv1.ToolResultRecorded:
		b.move(ev, "call", fmt.Sprintf("%s/%d/%d", p.GetTurnId(), p.GetRoundIndex(), p.GetCallIndex()), "over", "")
	}
}

// requestOf names the request that a turn was acquired by.
func requestOf(t *agentv1.Turn) string {
	return t.GetAcquiredBy() + " " + t.GetAcquiredByKeyId() + " " + t.GetAcquireRequestId()
}

func (b *books) ended(ev *journal.Event, t *agentv1.Turn) {
	b.move(ev, "turn of", t.GetAgentId(), "", t.GetTurnId())
	if _, processed := b.records["processed by "+t.GetTurnId()]; processed &&
		t.GetState() != agentv1.TurnState_TURN_STATE_COMPLETED {
		b.violation("turn %s of %s ended as %s, and its message counts as processed", t.GetTurnId(), t.GetAgentId(),
			t.GetState())
	}
	b.move(ev, "turn", t.GetTurnId(), "over", "open")
}

func (b *books) workRecord(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemCreated:
		b.move(ev, "item", p.GetWorkItem().GetWorkItemId(), "open", "")
	case *workv1.WorkItemUpdated:
		b.move(ev, "item", p.GetWorkItem().GetWorkItemId(), "open", "open")
		// the items of who is deleted are blocked by that, not by a call
		if ev.AgentID != goneAgent && sameFields(b.items[p.GetWorkItem().GetWorkItemId()], p.GetWorkItem()) {
			b.violation("%s at wal_seq %d changes nothing (SPEC W5.4): %v", ev.Type, ev.WalSeq, p.GetWorkItem())
		}
	case *workv1.WorkItemPicked:
		b.move(ev, "item", p.GetCurrentWorkItemId(), "open", "open")
	case *workv1.WorkItemCompleted:
		b.move(ev, "item", p.GetWorkItem().GetWorkItemId(), "done", "open")
	case *workv1.ReportPromoted:
		b.move(ev, "report of item", ev.WorkItemID, "promoted", "")
	case *workv1.WaitAttached:
		id := p.GetWait().GetWaitId()
		b.move(ev, "wait at work", id, "attached", "", "attached")
		b.move(ev, "item", p.GetWorkItem().GetWorkItemId(), "open", "open")
		b.rise(ev, "revision at work of wait", id, p.GetWait().GetRevision())
	case *workv1.WaitDetached:
		b.move(ev, "wait at work", p.GetWaitId(), "detached", "", "attached")
	}
	if w, ok := ev.Payload.(interface {
		GetWorkItem() *workv1.WorkItemRecord
	}); ok && w.GetWorkItem() != nil {
		b.items[w.GetWorkItem().GetWorkItemId()] = w.GetWorkItem()
		if k, n := "revision of item "+w.GetWorkItem().GetWorkItemId(), w.GetWorkItem().GetRevision(); n >=
			b.counts[k] {
			b.counts[k] = n // a pick does not change it
		} else {
			b.violation("%s: %s is %d after %d", ev.Type, k, n, b.counts[k])
		}
	}
}

// sameFields reports whether two records of an item differ in no field that an update may set.
func sameFields(x, y *workv1.WorkItemRecord) bool {
	fields := func(it *workv1.WorkItemRecord) *workv1.WorkItemRecord {
		it = proto.CloneOf(it)
		if it != nil {
			it.Revision, it.UpdatedAt, it.Resumed = 0, nil, nil
		}
		return it
	}
	return proto.Equal(fields(x), fields(y))
}

func (b *books) waitingRecord(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *waitingv1.WaitRegistered:
		b.move(ev, "wait", p.GetWait().GetWaitId(), "active", "")
	case *waitingv1.WaitTriggered:
		b.move(ev, "wait", p.GetWait().GetWaitId(), "active", "active")
	case *waitingv1.WaitRechecked:
		b.move(ev, "recheck", p.GetWait().GetWaitId(), "given", "")
	case *waitingv1.WaitResolved:
		b.move(ev, "wait", p.GetWait().GetWaitId(), "over", "active")
	case *waitingv1.WaitCancelled:
		b.move(ev, "wait", p.GetWait().GetWaitId(), "over", "active")
	case *waitingv1.TimerCreated:
		b.move(ev, "timer", p.GetTimer().GetTimerId(), "active", "")
	case *waitingv1.TimerFired:
		b.move(ev, "timer", p.GetTimer().GetTimerId(), "active", "active")
		b.rise(ev, "firing", p.GetTimer().GetTimerId(), p.GetTimer().GetFireCount())
		if p.GetDueAt().AsTime().After(ev.CreatedAt) {
			b.violation("timer %s fired at %s, before its time %s", p.GetTimer().GetTimerId(), ev.CreatedAt,
				p.GetDueAt().AsTime())
		}
		b.move(ev, "firing", p.GetTimer().GetTimerId()+p.GetDueAt().AsTime().String(), "fired", "")
	case *waitingv1.TimerCancelled:
		b.move(ev, "timer", p.GetTimer().GetTimerId(), "over", "active")
	case *waitingv1.ExternalTriggerCreated:
		b.move(ev, "trigger", p.GetTrigger().GetTriggerId(), "active", "")
	case *waitingv1.ExternalTriggerCancelled:
		b.move(ev, "trigger", p.GetTrigger().GetTriggerId(), "over", "active")
	case *waitingv1.TriggerExpired:
		b.move(ev, "trigger", p.GetTrigger().GetTriggerId(), "over", "active")
	case *waitingv1.TriggerDelivered:
		b.move(ev, "delivery", p.GetDeliveryId(), "there", "")
		b.counts["deliveries "+p.GetTrigger().GetTriggerId()]++
	case *waitingv1.DeliveriesCounted:
		b.move(ev, "delivery", p.GetDeliveryId(), "there", "")
		b.counts["deliveries "+p.GetTriggerId()] += p.GetCount()
	case *waitingv1.WorkItemNoted:
		b.move(ev, "note of item", p.GetWorkItemId(), "there", "")
	}
	if w, ok := ev.Payload.(interface{ GetWait() *waitingv1.Wait }); ok && w.GetWait() != nil {
		b.rise(ev, "revision of wait", w.GetWait().GetWaitId(), w.GetWait().GetRevision())
	}
}

// atRest checks what must not be there when nothing happens any more: an open turn, a message whose turn ended and
// that was neither processed nor queued again, an event that another plane has passed over.
func (b *books) atRest() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range agents {
		if turn := b.records["turn of "+a]; turn != "" {
			return fmt.Errorf("turn %s of %s is open, and its runner is gone", turn, a)
		}
	}
	for k, state := range b.records {
		if strings.HasPrefix(k, "message ") && state == "taken" {
			return fmt.Errorf("%s was taken by a turn and is in none", k)
		}
	}
	return b.effects.atRest()
}

// replayed reads all journals again from the logs and compares them with what was stored: nothing is lost, added or
// changed (SPEC R6).
func (b *books) replayed(w *world) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, plane := range journals {
		_, seq, err := w.logs[plane].Tail(context.Background())
		if err != nil || seq != b.pages[plane].end.Seq {
			return fmt.Errorf("%s ends at %d, and %d was stored: %w", plane, seq, b.pages[plane].end.Seq, err)
		}
	}
	return nil
}

// own returns the fields of an event of the journal itself.
func own(ev *journal.Event) map[string]*structpb.Value {
	s, _ := ev.Payload.(*structpb.Struct)
	return s.GetFields()
}
