package board

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// boardKey names a board among all. The WAL's name is in it because a board_id
// may be used again after a board has ended.
type boardKey struct{ namespace, session, wal string }

// step is a node. Its record is replaced, never edited.
type step struct {
	rec     *boardv1.Step
	ord     int     // its place in the order of creation
	deps    []*step // as rec names them
	kids    []*step // who names it
	waiting int     // deps that are not completed
	// claimed is the record as it was when the run that holds it claimed it.
	claimed *boardv1.Step
}

func (s *step) id() string { return s.rec.GetStepId() }

// board is one DAG. Only apply changes it, so that a board that was replayed
// from its WAL is the same as the live one.
type board struct {
	key     boardKey
	id      string
	title   string
	summary string
	pool    string // the default
	status  taskStatus
	reason  string
	creator struct{ agent, run string }
	created time.Time
	updated time.Time

	steps map[string]*step
	order []*step // by ord; nil: deleted
	roots []string
	count [9]int // of steps by status
	open  int    // required steps that are not completed
	ids   int    // bytes of all step ids
	ready map[string]*bitset

	lines   int64  // wal_seq of the last line
	at      []byte // where the lines are in the journal: distances, as varints
	lastAt  uint64
	damaged error // the board cannot be used (SPEC B2)

	// What is not in the WAL.
	term        time.Duration // of leases
	terminating *boardv1.BoardTerminating
	endedBy     journal.Actor   // who asked for that
	runs        map[string]*run // under way
	dispatches  []*dispatch     // open
	// earliest is a moment before which no lease of this board is over. It is a
	// memory of looks at runs, which are told of heartbeats outside of the log.
	earliest atomic.Int64
}

func newBoard(key boardKey, id string) *board {
	return &board{key: key, id: id, steps: map[string]*step{}, ready: map[string]*bitset{}, runs: map[string]*run{}}
}

// note counts one line of the WAL.
func (b *board) note(ev *journal.Event) {
	b.lines++
	b.at = binary.AppendUvarint(b.at, ev.WalSeq-b.lastAt)
	b.lastAt = ev.WalSeq
	b.updated = ev.CreatedAt
}

// positions are where some lines behind one are in the journal.
func (b *board) positions(after int64, most int) []uint64 {
	var out []uint64
	var at uint64
	rest := b.at
	for n := int64(1); len(rest) > 0 && len(out) < most; n++ {
		d, size := binary.Uvarint(rest)
		rest = rest[size:]
		at += d
		if n > after {
			out = append(out, at)
		}
	}
	return out
}

// apply folds one line in. An error means that the line cannot follow what was
// there; the board is of no use then.
func (b *board) apply(ev *journal.Event) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if terminal(b.status) {
		return fmt.Errorf("%s follows the end of the board", ev.Type)
	}
	switch p := ev.Payload.(type) {
	case *boardv1.TaskCreated:
		return b.applyCreated(ev, p)
	case *boardv1.TaskUpdated:
		return b.applyPatch(p.GetOperations(), ev.CreatedAt)
	case *boardv1.TaskRunning:
		return b.become(taskRunning, "")
	case *boardv1.TaskBlocked:
		return b.become(taskBlocked, p.GetReason())
	case *boardv1.TaskReopened:
		return b.become(taskPending, p.GetReason())
	case *boardv1.TaskCompleted:
		return b.become(taskCompleted, p.GetReason())
	case *boardv1.TaskFailed:
		return b.become(taskFailed, p.GetReason())
	case *boardv1.TaskCancelled:
		return b.become(taskCancelled, p.GetReason())
	}
	return b.applyStep(ev)
}

// become moves the board, if it may.
func (b *board) become(to taskStatus, reason string) error {
	if taskMoves[taskMove{b.status, to}] == 0 {
		return fmt.Errorf("the board is %s and cannot become %s", taskWord(b.status), taskWord(to))
	}
	b.status, b.reason = to, reason
	return nil
}

func (b *board) applyCreated(ev *journal.Event, p *boardv1.TaskCreated) error {
	if b.status != 0 {
		return fmt.Errorf("a second task_created")
	}
	b.title, b.summary, b.pool, b.status = p.GetTitle(), p.GetSummary(), p.GetDefaultWorkerPoolId(), taskPending
	b.creator.agent, b.creator.run = p.GetCreatedByAgentId(), p.GetCreatedByRunId()
	b.created = ev.CreatedAt
	for _, in := range p.GetSteps() {
		if err := b.addStep(in, ev.CreatedAt); err != nil {
			return err
		}
	}
	for _, in := range p.GetSteps() {
		if err := b.link(b.steps[in.GetStepId()]); err != nil {
			return err
		}
	}
	b.findRoots()
	return nil
}

func (b *board) addStep(in *boardv1.StepInput, at time.Time) error {
	if b.steps[in.GetStepId()] != nil {
		return fmt.Errorf("step %s is there already", in.GetStepId())
	}
	s := &step{rec: stepOf(in, b.pool, at), ord: len(b.order)}
	b.steps[s.id()] = s
	b.order = append(b.order, s)
	b.count[s.rec.GetStatus()]++
	b.open += openness(s.rec)
	b.ids += len(s.id())
	return nil
}

// stepOf is a new step as its orchestrator wrote it.
func stepOf(in *boardv1.StepInput, pool string, at time.Time) *boardv1.Step {
	if in.GetWorkerPoolId() != "" {
		pool = in.GetWorkerPoolId()
	}
	now := timestamppb.New(at)
	return &boardv1.Step{
		StepId: in.GetStepId(), Title: in.GetTitle(), Summary: in.GetSummary(), Status: stepPending,
		DependsOnStepIds: slices.Clone(in.GetDependsOnStepIds()), Required: in.Required == nil || in.GetRequired(),
		WorkerPoolId: pool, CreatedAt: now, UpdatedAt: now,
	}
}

// link makes a step's edges what its record says.
func (b *board) link(s *step) error {
	for _, d := range s.deps {
		d.kids = slices.DeleteFunc(d.kids, func(k *step) bool { return k == s })
	}
	s.deps, s.waiting = nil, 0
	for _, id := range s.rec.GetDependsOnStepIds() {
		d := b.steps[id]
		if d == nil {
			return fmt.Errorf("step %s depends on %s, which is not there", s.id(), id)
		}
		s.deps = append(s.deps, d)
		d.kids = append(d.kids, s)
		if d.rec.GetStatus() != stepCompleted {
			s.waiting++
		}
	}
	return nil
}

func (b *board) findRoots() {
	roots := make([]string, 0, len(b.roots))
	for _, s := range b.order {
		if s != nil && len(s.rec.GetDependsOnStepIds()) == 0 {
			roots = append(roots, s.id())
		}
	}
	b.roots = roots
}

// openness is 1 for a step that must still be completed before the board can be.
func openness(s *boardv1.Step) int {
	if s.GetRequired() && s.GetStatus() != stepCompleted {
		return 1
	}
	return 0
}

// set replaces a step's record.
func (b *board) set(s *step, rec *boardv1.Step) {
	old := s.rec
	b.count[old.GetStatus()]--
	b.count[rec.GetStatus()]++
	b.open += openness(rec) - openness(old)
	if old.GetStatus() == stepReady {
		b.readyIn(old.GetWorkerPoolId()).remove(s.ord)
	}
	if rec.GetStatus() == stepReady {
		b.readyIn(rec.GetWorkerPoolId()).add(s.ord)
	}
	s.rec = rec
	if rec.GetStatus() == stepCompleted && old.GetStatus() != stepCompleted {
		for _, k := range s.kids {
			k.waiting--
		}
	}
}

func (b *board) readyIn(pool string) *bitset {
	r := b.ready[pool]
	if r == nil {
		r = &bitset{}
		b.ready[pool] = r
	}
	return r
}

// applyStep is apply for lines about one step.
func (b *board) applyStep(ev *journal.Event) error {
	s := b.steps[ev.StepID]
	if s == nil {
		return fmt.Errorf("%s of step %q, which is not there", ev.Type, ev.StepID)
	}
	from, n := s.rec.GetStatus(), copyStep(s.rec, ev.CreatedAt)
	n.Reason = ""
	switch p := ev.Payload.(type) {
	case *boardv1.TaskStepReady:
		n.Status, n.Reason = stepReady, s.rec.GetReason()
		if s.waiting > 0 {
			return fmt.Errorf("step %s is ready and waits for %d others", s.id(), s.waiting)
		}
	case *boardv1.TaskStepClaimed:
		n.Status, n.LeaseExpiresAt = stepClaimed, p.GetLeaseExpiresAt()
		n.ClaimedByAgentId, n.ClaimedByRunId = p.GetClaimedByAgentId(), p.GetClaimedByRunId()
		s.claimed = s.rec
	case *boardv1.TaskStepStarted:
		n.Status, n.LeaseExpiresAt = stepRunning, p.GetLeaseExpiresAt()
		told(n, p)
	case *boardv1.TaskStepUpdated:
		n.Status, n.LeaseExpiresAt = stepRunning, p.GetLeaseExpiresAt()
		told(n, p)
	case *boardv1.TaskStepBlocked:
		n.Status, n.Reason = stepBlocked, p.GetReason()
		told(n, p)
	case *boardv1.TaskStepCompleted:
		n.Status = stepCompleted
		told(n, p)
	case *boardv1.TaskStepFailed:
		n.Status, n.Reason = stepFailed, p.GetReason()
		told(n, p)
	case *boardv1.TaskStepCancelled:
		n.Status, n.Reason = stepCancelled, p.GetReason()
		told(n, p)
	case *boardv1.TaskStepReopened:
		n.Status, n.Reason = stepPending, p.GetReason()
	case *boardv1.TaskStepLeaseExpired:
		n.Status = stepPending
	default:
		return fmt.Errorf("unknown event %s", ev.Type)
	}
	if !held(n.GetStatus()) {
		n.ClaimedByAgentId, n.ClaimedByRunId, n.LeaseExpiresAt, s.claimed = "", "", nil, nil
	}
	if stepMoves[stepMove{from, n.GetStatus()}] == 0 {
		return fmt.Errorf("%s of step %s, which is %s", ev.Type, s.id(), word(from))
	}
	b.set(s, n)
	return nil
}

// result is what lines say of what came of a step.
type result interface {
	proto.Message
	GetResultSummary() string
	GetArtifactIds() []string
}

// told takes over what was given and leaves the rest as it was.
func told(n *boardv1.Step, p result) {
	if p.GetResultSummary() != "" {
		n.ResultSummary = p.GetResultSummary()
	}
	if len(p.GetArtifactIds()) > 0 {
		n.ArtifactIds = p.GetArtifactIds()
	}
}

// copyStep is a step's record to change. By hand, since this is done for every
// line and proto.Clone costs ten times as much.
func copyStep(o *boardv1.Step, at time.Time) *boardv1.Step {
	return &boardv1.Step{
		StepId: o.GetStepId(), Title: o.GetTitle(), Summary: o.GetSummary(), Status: o.GetStatus(),
		DependsOnStepIds: o.GetDependsOnStepIds(), Required: o.GetRequired(), WorkerPoolId: o.GetWorkerPoolId(),
		ClaimedByAgentId: o.GetClaimedByAgentId(), ClaimedByRunId: o.GetClaimedByRunId(), LeaseExpiresAt: o.GetLeaseExpiresAt(),
		ResultSummary: o.GetResultSummary(), ArtifactIds: o.GetArtifactIds(), Reason: o.GetReason(),
		CreatedAt: o.GetCreatedAt(), UpdatedAt: timestamppb.New(at),
	}
}

// event is a line about the board, or with stepID about one step.
func (b *board) event(stepID string, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace: b.key.namespace, AgentID: b.key.session, SessionID: b.key.session,
		TaskID: b.id, StepID: stepID, Payload: payload,
	}
}
