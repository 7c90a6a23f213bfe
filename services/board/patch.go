package board

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// What an operation does, in short.
const (
	opUpdateTask       = boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK
	opAddStep          = boardv1.OperationKind_OPERATION_KIND_ADD_STEP
	opUpdateStep       = boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP
	opDeleteStep       = boardv1.OperationKind_OPERATION_KIND_DELETE_STEP
	opAddDependency    = boardv1.OperationKind_OPERATION_KIND_ADD_DEPENDENCY
	opRemoveDependency = boardv1.OperationKind_OPERATION_KIND_REMOVE_DEPENDENCY
	opCancelStep       = boardv1.OperationKind_OPERATION_KIND_CANCEL_STEP
	opReopenStep       = boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP
	opBlockBoard       = boardv1.OperationKind_OPERATION_KIND_BLOCK_BOARD
	opReopenBoard      = boardv1.OperationKind_OPERATION_KIND_REOPEN_BOARD
)

// applyPatch is task_updated: contents and edges. What a patch does to the
// status of steps and board stands in the lines that follow it, but for a
// ready step that waits again.
func (b *board) applyPatch(ops []*boardv1.Operation, at time.Time) error {
	var moved []*step // whose edges changed, in order
	seen := map[*step]bool{}
	relink := func(s *step) {
		if !seen[s] {
			seen[s], moved = true, append(moved, s)
		}
	}
	dropped := false
	for _, op := range ops {
		s := b.steps[op.GetStepId()]
		switch op.GetOp() {
		case opUpdateTask:
			if op.GetTask().Title != nil {
				b.title = op.GetTask().GetTitle()
			}
			if op.GetTask().Summary != nil {
				b.summary = op.GetTask().GetSummary()
			}
		case opAddStep:
			if err := b.addStep(op.GetStep(), at); err != nil {
				return err
			}
			relink(b.steps[op.GetStep().GetStepId()])
		case opUpdateStep, opAddDependency, opRemoveDependency:
			if s == nil {
				return fmt.Errorf("%s of step %q, which is not there", op.GetOp(), op.GetStepId())
			}
			n := copyStep(s.rec, at)
			if edit(n, op) {
				relink(s)
			}
			b.set(s, n)
		case opDeleteStep:
			if s == nil {
				return fmt.Errorf("delete_step of step %q, which is not there", op.GetStepId())
			}
			b.drop(s)
			dropped = true
		}
	}
	for _, s := range moved {
		if b.steps[s.id()] != s {
			continue // deleted by a later operation
		}
		if err := b.link(s); err != nil {
			return err
		}
	}
	for _, s := range moved {
		if s.rec.GetStatus() == stepReady && s.waiting > 0 {
			n := copyStep(s.rec, at)
			n.Status = stepPending
			b.set(s, n)
		}
	}
	if dropped || len(moved) > 0 {
		b.findRoots()
	}
	return nil
}

// drop takes a step off the board.
func (b *board) drop(s *step) {
	for _, d := range s.deps {
		d.kids = slices.DeleteFunc(d.kids, func(k *step) bool { return k == s })
	}
	b.count[s.rec.GetStatus()]--
	b.open -= openness(s.rec)
	b.ids -= len(s.id())
	if s.rec.GetStatus() == stepReady {
		b.readyIn(s.rec.GetWorkerPoolId()).remove(s.ord)
	}
	b.order[s.ord] = nil
	delete(b.steps, s.id())
}

// edit changes a copy of a step's record as an operation says, and tells
// whether its edges are others now.
func edit(n *boardv1.Step, op *boardv1.Operation) bool {
	switch op.GetOp() {
	case opAddDependency:
		n.DependsOnStepIds = append(slices.Clone(n.GetDependsOnStepIds()), op.GetDependsOnStepId())
		return true
	case opRemoveDependency:
		n.DependsOnStepIds = slices.DeleteFunc(slices.Clone(n.GetDependsOnStepIds()), func(id string) bool { return id == op.GetDependsOnStepId() })
		return true
	}
	f := op.GetFields()
	if f.Title != nil {
		n.Title = f.GetTitle()
	}
	if f.Summary != nil {
		n.Summary = f.GetSummary()
	}
	if f.Required != nil {
		n.Required = f.GetRequired()
	}
	if f.WorkerPoolId != nil {
		n.WorkerPoolId = f.GetWorkerPoolId()
	}
	if f.GetDependsOnStepIds() != nil {
		n.DependsOnStepIds = slices.Clone(f.GetDependsOnStepIds().GetStepIds())
		return true
	}
	return false
}

// draft is a board with a patch on it: the steps that the patch touches, over
// those of the board, which it leaves alone (S2-349).
type draft struct {
	b     *board
	nodes map[string]*node
	order []*node                    // as they were touched first
	new   map[string]map[string]bool // edges that the patch made: dependency -> steps
	steps int                        // how many there are
	ids   int                        // bytes of their ids
	task  taskStatus
	// effects follow task_updated, in this order (SPEC B4).
	effects []effect
	after   []string // changed while a worker held them
}

// node is a step of a draft.
type node struct {
	rec   *boardv1.Step
	was   *step // nil: new
	gone  bool
	edges bool // they were changed
}

type effect struct {
	node    *node // nil: the board
	payload *journal.Event
}

func newDraft(b *board) *draft {
	return &draft{b: b, nodes: map[string]*node{}, new: map[string]map[string]bool{}, steps: len(b.steps), ids: b.ids, task: b.status}
}

// look is a step's record on the draft, nil if it is not there.
func (d *draft) look(id string) *boardv1.Step {
	if n := d.nodes[id]; n != nil {
		if n.gone {
			return nil
		}
		return n.rec
	}
	if s := d.b.steps[id]; s != nil {
		return s.rec
	}
	return nil
}

// touch is a step of the draft to change.
func (d *draft) touch(i int, id string) (*node, error) {
	if n := d.nodes[id]; n != nil && !n.gone {
		return n, nil
	}
	s := d.b.steps[id]
	if s == nil || d.nodes[id] != nil {
		return nil, fault.NotFound.Newf("operations[%d]: board %q has no step %q; GetBoard shows what it has", i, d.b.id, id).With("step_id", id)
	}
	n := &node{rec: copyStep(s.rec, s.rec.GetUpdatedAt().AsTime()), was: s}
	d.nodes[id] = n
	d.order = append(d.order, n)
	return n, nil
}

// dependents are the steps that depend on one, in no order.
func (d *draft) dependents(id string) []string {
	var out []string
	depends := func(k string) bool {
		rec := d.look(k)
		return rec != nil && slices.Contains(rec.GetDependsOnStepIds(), id)
	}
	if s := d.b.steps[id]; s != nil {
		for _, k := range s.kids {
			if depends(k.id()) && !d.new[id][k.id()] {
				out = append(out, k.id())
			}
		}
	}
	for k := range d.new[id] {
		if depends(k) {
			out = append(out, k)
		}
	}
	return out
}

func (d *draft) edge(from, to string) {
	if d.new[to] == nil {
		d.new[to] = map[string]bool{}
	}
	d.new[to][from] = true
}

// run applies one operation.
func (d *draft) run(i int, op *boardv1.Operation) error {
	switch op.GetOp() {
	case opUpdateTask:
		return nil
	case opAddStep:
		return d.add(i, op.GetStep())
	case opBlockBoard:
		return d.moveTask(i, taskBlocked, d.b.event("", &boardv1.TaskBlocked{Reason: op.GetReason()}))
	case opReopenBoard:
		return d.moveTask(i, taskPending, d.b.event("", &boardv1.TaskReopened{Reason: op.GetReason()}))
	}
	n, err := d.touch(i, op.GetStepId())
	if err != nil {
		return err
	}
	switch op.GetOp() {
	case opDeleteStep:
		return d.remove(i, n)
	case opCancelStep:
		return d.moveStep(i, n, stepCancelled, d.b.event(op.GetStepId(), &boardv1.TaskStepCancelled{Reason: op.GetReason()}))
	case opReopenStep:
		return d.moveStep(i, n, stepPending, d.b.event(op.GetStepId(), &boardv1.TaskStepReopened{Reason: op.GetReason()}))
	}
	return d.change(i, n, op)
}

func (d *draft) add(i int, in *boardv1.StepInput) error {
	if d.look(in.GetStepId()) != nil {
		return fault.DuplicateStep.Newf("operations[%d]: board %q has a step %q already; give the new one another step_id", i, d.b.id, in.GetStepId()).
			With("step_id", in.GetStepId())
	}
	n := &node{rec: stepOf(in, d.b.pool, time.Time{}), edges: true}
	d.nodes[in.GetStepId()] = n
	d.order = append(d.order, n)
	for _, to := range in.GetDependsOnStepIds() {
		d.edge(in.GetStepId(), to)
	}
	d.steps++
	d.ids += len(in.GetStepId())
	return nil
}

func (d *draft) remove(i int, n *node) error {
	switch n.rec.GetStatus() {
	case stepPending, stepReady, stepCancelled:
	default:
		return stepState(i, n.rec, "be deleted; only pending, ready and cancelled steps are")
	}
	if on := d.dependents(n.rec.GetStepId()); len(on) > 0 {
		slices.Sort(on)
		return fault.StepHasDependents.Newf("operations[%d]: step %q cannot be deleted, since %s on it; remove these dependencies first", i, n.rec.GetStepId(), depend(on)).
			With("step_id", n.rec.GetStepId()).With("dependent_step_ids", some(on))
	}
	n.gone = true
	d.steps--
	d.ids -= len(n.rec.GetStepId())
	return nil
}

func (d *draft) change(i int, n *node, op *boardv1.Operation) error {
	id, f := n.rec.GetStepId(), op.GetFields()
	textOnly := op.GetOp() == opUpdateStep && f.Required == nil && f.WorkerPoolId == nil && f.GetDependsOnStepIds() == nil
	switch s := n.rec.GetStatus(); {
	case textOnly:
	case s == stepCompleted, s == stepCancelled:
		return stepState(i, n.rec, "change but for title and summary; add another step instead")
	}
	switch op.GetOp() {
	case opAddDependency:
		if slices.Contains(n.rec.GetDependsOnStepIds(), op.GetDependsOnStepId()) {
			return fault.InvalidArgument.Newf("operations[%d]: step %q depends on %q already", i, id, op.GetDependsOnStepId()).
				WithField(fmt.Sprintf("operations[%d].depends_on_step_id", i), "must be a new dependency")
		}
	case opRemoveDependency:
		if !slices.Contains(n.rec.GetDependsOnStepIds(), op.GetDependsOnStepId()) {
			return fault.UnknownDependency.Newf("operations[%d]: step %q does not depend on %q", i, id, op.GetDependsOnStepId()).
				With("step_id", id).With("depends_on_step_id", op.GetDependsOnStepId())
		}
	}
	if held(n.rec.GetStatus()) && !slices.Contains(d.after, id) {
		d.after = append(d.after, id)
	}
	if edit(n.rec, op) {
		n.edges = true
		for _, to := range n.rec.GetDependsOnStepIds() {
			d.edge(id, to)
		}
	}
	return fault.Entries("depends_on_step_ids of step "+id, len(n.rec.GetDependsOnStepIds()), maxDependencies)
}

func (d *draft) moveStep(i int, n *node, to status, ev *journal.Event) error {
	if !mayStep(orchestrator, n.rec.GetStatus(), to) {
		return stepState(i, n.rec, "become "+word(to))
	}
	n.rec.Status = to
	d.effects = append(d.effects, effect{n, ev})
	return nil
}

func (d *draft) moveTask(i int, to taskStatus, ev *journal.Event) error {
	if !mayTask(orchestrator, d.task, to) {
		return fault.BoardState.Newf("operations[%d]: board %q is %s and cannot become %s", i, d.b.id, taskWord(d.task), taskWord(to)).
			With("board_status", taskWord(d.task))
	}
	d.task = to
	d.effects = append(d.effects, effect{nil, ev})
	return nil
}

// check is the validation of what the operations lead to as a whole (S2-351).
func (d *draft) check() error {
	if err := fault.Entries("steps", d.steps, MaxSteps); err != nil {
		return err
	}
	for _, n := range d.order {
		if n.gone || !n.edges {
			continue
		}
		for _, to := range n.rec.GetDependsOnStepIds() {
			if d.look(to) == nil {
				return unknownDependency(n.rec.GetStepId(), to)
			}
		}
	}
	return d.acyclic()
}

// acyclic looks for a circle. There was none before, so one goes through a
// step whose edges changed; and not through one that nobody depends on.
func (d *draft) acyclic() error {
	w := walk{deps: func(id string) []string {
		if rec := d.look(id); rec != nil {
			return rec.GetDependsOnStepIds()
		}
		return nil
	}}
	for _, n := range d.order {
		if n.gone || !n.edges {
			continue
		}
		id := n.rec.GetStepId()
		if n.was == nil && len(d.new[id]) == 0 {
			continue
		}
		if circle := w.from(id); circle != nil {
			return cycle(circle)
		}
	}
	return nil
}

// events are the lines of the patch: task_updated, what became of steps and
// board in the order of the operations, then what is ready now.
func (d *draft) events(ops []*boardv1.Operation) []*journal.Event {
	out := []*journal.Event{d.b.event("", &boardv1.TaskUpdated{Operations: ops, UpdatedAfterDispatchStepIds: d.after})}
	for _, e := range d.effects {
		if e.node == nil || !e.node.gone {
			out = append(out, e.payload)
		}
	}
	active := d.b.count[stepReady] + d.b.count[stepClaimed] + d.b.count[stepRunning]
	for _, n := range d.order {
		if n.was != nil && isActive(n.was.rec.GetStatus()) {
			active--
		}
		if n.gone {
			continue
		}
		s := n.rec.GetStatus()
		if s == stepPending || s == stepReady {
			met := d.met(n.rec)
			if met && s == stepPending {
				out = append(out, d.b.event(n.rec.GetStepId(), &boardv1.TaskStepReady{}))
			}
			if !met {
				continue
			}
			s = stepReady
		}
		if isActive(s) {
			active++
		}
	}
	if d.task == taskPending && active > 0 {
		out = append(out, d.b.event("", &boardv1.TaskRunning{}))
	}
	return out
}

func (d *draft) met(rec *boardv1.Step) bool {
	for _, id := range rec.GetDependsOnStepIds() {
		if d.look(id).GetStatus() != stepCompleted {
			return false
		}
	}
	return true
}

func isActive(s status) bool { return s == stepReady || held(s) }

func stepState(i int, rec *boardv1.Step, what string) error {
	return fault.StepState.Newf("operations[%d]: step %q is %s and cannot %s", i, rec.GetStepId(), word(rec.GetStatus()), what).
		With("step_id", rec.GetStepId()).With("step_status", word(rec.GetStatus()))
}

func depend(on []string) string {
	if len(on) == 1 {
		return "step " + on[0] + " depends"
	}
	return "steps " + some(on) + " depend"
}

// some bounds a list of ids in a message.
func some(ids []string) string {
	const most = 20
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
}
