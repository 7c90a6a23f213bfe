package patch

import (
	"fmt"
	"slices"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// draft is a board with the operations of a request applied: the steps that the
// operations touch, over those of the board, which it does not change (S2-349).
type draft struct {
	b       *model.Board
	touched map[string]*node // by step id
	order   []*node          // the values of touched, in the order of the first touch
	// dependencies that the operations added: on a step, by the steps that have them
	newEdges    map[string]map[string]bool
	steps       int // how many steps the draft has
	idBytes     int // bytes of their ids
	boardStatus model.BoardStatus
	// effects are the events that follow task_updated, in this order (SPEC B4).
	effects          []effect
	changedWhileHeld []string // steps that were changed while a run held them
}

// node is a step that the operations touch.
type node struct {
	rec          *boardv1.Step
	original     *model.Step // nil: the operations added it
	deleted      bool
	edgesChanged bool // its dependencies were changed
}

// effect is a change of a status by an operation.
type effect struct {
	node  *node // the step that the event is about; nil: the board
	event *journal.Event
}

// newDraft returns a draft without changes.
func newDraft(b *model.Board) *draft {
	return &draft{
		b: b, touched: map[string]*node{}, newEdges: map[string]map[string]bool{}, steps: len(b.Steps),
		idBytes: b.IDBytes, boardStatus: b.Status,
	}
}

// record returns the record of a step in the draft, or nil if it has none.
func (d *draft) record(id string) *boardv1.Step {
	if n := d.touched[id]; n != nil {
		if n.deleted {
			return nil
		}
		return n.rec
	}
	if s := d.b.Steps[id]; s != nil {
		return s.Record
	}
	return nil
}

// touch returns a step of the draft, which the caller may modify; NOT_FOUND if the draft has
// none with the id. i is the number of the operation, for the error.
func (d *draft) touch(i int, id string) (*node, error) {
	if n := d.touched[id]; n != nil && !n.deleted {
		return n, nil
	}
	s := d.b.Steps[id]
	if s == nil || d.touched[id] != nil {
		return nil, fault.NotFound.Newf("operations[%d]: board %q has no step %q; GetBoard shows what it has", i,
			d.b.ID, id).With("step_id", id)
	}
	n := &node{rec: model.CopyStep(s.Record, s.Record.GetUpdatedAt().AsTime()), original: s}
	d.touched[id] = n
	d.order = append(d.order, n)
	return n, nil
}

// dependents returns the steps that depend on a step, in no order.
func (d *draft) dependents(id string) []string {
	var out []string
	depends := func(k string) bool {
		rec := d.record(k)
		return rec != nil && slices.Contains(rec.GetDependsOnStepIds(), id)
	}
	if s := d.b.Steps[id]; s != nil {
		for _, k := range s.Dependents {
			if depends(k.ID()) && !d.newEdges[id][k.ID()] {
				out = append(out, k.ID())
			}
		}
	}
	for k := range d.newEdges[id] {
		if depends(k) {
			out = append(out, k)
		}
	}
	return out
}

// addEdge records that step from depends on step to.
func (d *draft) addEdge(from, to string) {
	if d.newEdges[to] == nil {
		d.newEdges[to] = map[string]bool{}
	}
	d.newEdges[to][from] = true
}

// apply applies operation number i of a request to the draft, or refuses it.
func (d *draft) apply(i int, op *boardv1.Operation) error {
	switch op.GetOp() {
	case model.OpUpdateTask:
		return nil
	case model.OpAddStep:
		return d.addStep(i, op.GetStep())
	case model.OpBlockBoard:
		return d.moveBoard(i, model.BoardBlocked, d.b.NewEvent("", &boardv1.TaskBlocked{Reason: op.GetReason()}))
	case model.OpReopenBoard:
		return d.moveBoard(i, model.BoardPending, d.b.NewEvent("", &boardv1.TaskReopened{Reason: op.GetReason()}))
	default:
		// The others concern one existing step, below.
	}
	n, err := d.touch(i, op.GetStepId())
	if err != nil {
		return err
	}
	switch op.GetOp() {
	case model.OpDeleteStep:
		return d.deleteStep(i, n)
	case model.OpCancelStep:
		return d.moveStep(i, n, model.StepCancelled,
			d.b.NewEvent(op.GetStepId(), &boardv1.TaskStepCancelled{Reason: op.GetReason()}))
	case model.OpReopenStep:
		return d.moveStep(i, n, model.StepPending,
			d.b.NewEvent(op.GetStepId(), &boardv1.TaskStepReopened{Reason: op.GetReason()}))
	default:
		// The others change fields of the step, below.
	}
	return d.changeStep(i, n, op)
}

// addStep adds a new step.
func (d *draft) addStep(i int, in *boardv1.StepInput) error {
	if d.record(in.GetStepId()) != nil {
		return fault.DuplicateStep.Newf(
			"operations[%d]: board %q has a step %q already; give the new one another step_id", i, d.b.ID,
			in.GetStepId()).
			With("step_id", in.GetStepId())
	}
	n := &node{rec: model.NewStep(in, d.b.DefaultPool, time.Time{}), edgesChanged: true}
	d.touched[in.GetStepId()] = n
	d.order = append(d.order, n)
	for _, to := range in.GetDependsOnStepIds() {
		d.addEdge(in.GetStepId(), to)
	}
	d.steps++
	d.idBytes += len(in.GetStepId())
	return nil
}

// deleteStep deletes a step that is pending, ready or cancelled and on which no other depends.
func (d *draft) deleteStep(i int, n *node) error {
	switch n.rec.GetStatus() {
	case model.StepPending, model.StepReady, model.StepCancelled:
	default:
		return stepState(i, n.rec, "be deleted; only pending, ready and cancelled steps are")
	}
	if on := d.dependents(n.rec.GetStepId()); len(on) > 0 {
		slices.Sort(on)
		return fault.StepHasDependents.Newf("operations[%d]: step %q cannot be deleted, since %s on it; remove these "+
			"dependencies first", i, n.rec.GetStepId(), dependText(on)).
			With("step_id", n.rec.GetStepId()).With("dependent_step_ids", model.JoinIDs(on))
	}
	n.deleted = true
	d.steps--
	d.idBytes -= len(n.rec.GetStepId())
	return nil
}

// changeStep applies operation i, which changes the title, summary, pool, field required or dependencies of step n.
// Of a completed or cancelled step, only title and summary can be changed. A completed step may also lose a
// dependency on a step that is not completed, which was added while a run held the step: otherwise the other one
// could never be deleted, and the board could not be completed.
func (d *draft) changeStep(i int, n *node, op *boardv1.Operation) error {
	id, f := n.rec.GetStepId(), op.GetFields()
	textOnly := op.GetOp() == model.OpUpdateStep && f.Required == nil && f.WorkerPoolId == nil &&
		f.GetDependsOnStepIds() == nil
	switch s := n.rec.GetStatus(); {
	case textOnly:
	case s == model.StepCompleted && op.GetOp() == model.OpRemoveDependency && d.isOpen(op.GetDependsOnStepId()):
	case s == model.StepCompleted, s == model.StepCancelled:
		return stepState(i, n.rec, "change but for title and summary; add another step instead")
	}
	switch op.GetOp() {
	case model.OpAddDependency:
		if slices.Contains(n.rec.GetDependsOnStepIds(), op.GetDependsOnStepId()) {
			return fault.InvalidArgument.Newf("operations[%d]: step %q depends on %q already", i, id,
				op.GetDependsOnStepId()).
				WithField(fmt.Sprintf("operations[%d].depends_on_step_id", i), "must be a new dependency")
		}
	case model.OpRemoveDependency:
		if !slices.Contains(n.rec.GetDependsOnStepIds(), op.GetDependsOnStepId()) {
			return fault.UnknownDependency.Newf("operations[%d]: step %q does not depend on %q", i, id,
				op.GetDependsOnStepId()).
				With("step_id", id).With("depends_on_step_id", op.GetDependsOnStepId())
		}
	default:
		// The others change no dependency.
	}
	if model.Held(n.rec.GetStatus()) && !slices.Contains(d.changedWhileHeld, id) {
		d.changedWhileHeld = append(d.changedWhileHeld, id)
	}
	if model.ApplyOperation(n.rec, op) {
		n.edgesChanged = true
		for _, to := range n.rec.GetDependsOnStepIds() {
			d.addEdge(id, to)
		}
	}
	return fault.Entries("depends_on_step_ids of step "+id, len(n.rec.GetDependsOnStepIds()), maxDependencies)
}

// isOpen reports whether a step of the draft is not completed.
func (d *draft) isOpen(id string) bool {
	rec := d.record(id)
	return rec != nil && rec.GetStatus() != model.StepCompleted
}

// moveStep changes the status of a step as its orchestrator, with the event ev.
func (d *draft) moveStep(i int, n *node, to model.StepStatus, ev *journal.Event) error {
	if !model.StepMayMove(model.ByOrchestrator, n.rec.GetStatus(), to) {
		return stepState(i, n.rec, "become "+model.StepStatusName(to))
	}
	n.rec.Status = to
	d.effects = append(d.effects, effect{n, ev})
	return nil
}

// moveBoard changes the status of the board as its orchestrator, with the event ev.
func (d *draft) moveBoard(i int, to model.BoardStatus, ev *journal.Event) error {
	if !model.BoardMayMove(model.ByOrchestrator, d.boardStatus, to) {
		return fault.BoardState.Newf("operations[%d]: board %q is %s and cannot become %s", i, d.b.ID,
			model.BoardStatusName(d.boardStatus), model.BoardStatusName(to)).
			With("board_status", model.BoardStatusName(d.boardStatus))
	}
	d.boardStatus = to
	d.effects = append(d.effects, effect{nil, ev})
	return nil
}

// validate returns an error if the result of the operations, as a whole, is no valid board
// (S2-351).
func (d *draft) validate() error {
	if err := fault.Entries("steps", d.steps, MaxSteps); err != nil {
		return err
	}
	for _, n := range d.order {
		if n.deleted || !n.edgesChanged {
			continue
		}
		for _, to := range n.rec.GetDependsOnStepIds() {
			if d.record(to) == nil {
				return unknownDependency(n.rec.GetStepId(), to)
			}
		}
	}
	return d.acyclic()
}

// acyclic returns DEPENDENCY_CYCLE if the draft has a cycle. There was none before, so a cycle
// has a step whose dependencies changed and on which another step depends.
func (d *draft) acyclic() error {
	w := model.CycleFinder{Deps: func(id string) []string {
		if rec := d.record(id); rec != nil {
			return rec.GetDependsOnStepIds()
		}
		return nil
	}}
	for _, n := range d.order {
		if n.deleted || !n.edgesChanged {
			continue
		}
		id := n.rec.GetStepId()
		if n.original == nil && len(d.newEdges[id]) == 0 {
			continue
		}
		if circle := w.Find(id); circle != nil {
			return cycle(circle)
		}
	}
	return nil
}

// events returns the events of the request: task_updated, the changes of statuses in
// the order of the operations, then task_step_ready for each step that becomes ready, and last
// task_running if the board is pending and a step is ready or held.
func (d *draft) events(ops []*boardv1.Operation) []*journal.Event {
	out := []*journal.Event{
		d.b.NewEvent("", &boardv1.TaskUpdated{Operations: ops, UpdatedAfterDispatchStepIds: d.changedWhileHeld}),
	}
	for _, e := range d.effects {
		if e.node == nil || !e.node.deleted {
			out = append(out, e.event)
		}
	}
	active := d.b.Count[model.StepReady] + d.b.Count[model.StepClaimed] + d.b.Count[model.StepRunning]
	for _, n := range d.order {
		if n.original != nil && isActive(n.original.Record.GetStatus()) {
			active--
		}
		if n.deleted {
			continue
		}
		s := n.rec.GetStatus()
		if s == model.StepPending || s == model.StepReady {
			met := d.dependenciesMet(n.rec)
			if met && s == model.StepPending {
				out = append(out, d.b.NewEvent(n.rec.GetStepId(), &boardv1.TaskStepReady{}))
			}
			if !met {
				continue
			}
			s = model.StepReady
		}
		if isActive(s) {
			active++
		}
	}
	if d.boardStatus == model.BoardPending && active > 0 {
		out = append(out, d.b.NewEvent("", &boardv1.TaskRunning{}))
	}
	return out
}

// dependenciesMet reports whether all dependencies of a step are completed.
func (d *draft) dependenciesMet(rec *boardv1.Step) bool {
	for _, id := range rec.GetDependsOnStepIds() {
		if d.record(id).GetStatus() != model.StepCompleted {
			return false
		}
	}
	return true
}

// isActive reports whether a step with this status is ready or held.
func isActive(s model.StepStatus) bool { return s == model.StepReady || model.Held(s) }

// stepState returns the refusal of operation i because of the status of its step; what says
// what the step cannot do.
func stepState(i int, rec *boardv1.Step, what string) error {
	return fault.StepState.Newf("operations[%d]: step %q is %s and cannot %s", i, rec.GetStepId(),
		model.StepStatusName(rec.GetStatus()), what).
		With("step_id", rec.GetStepId()).With("step_status", model.StepStatusName(rec.GetStatus()))
}

// dependText returns the subject and the verb of a sentence about dependents.
func dependText(on []string) string {
	if len(on) == 1 {
		return "step " + on[0] + " depends"
	}
	return "steps " + model.JoinIDs(on) + " depend"
}

// Decide is the rule of UpdateBoard. The operations are applied in order, each to the result
// of those before it. It returns the events of all of them, or a refusal of the first that is
// not possible.
func Decide(b *model.Board, ops []*boardv1.Operation) ([]*journal.Event, error) {
	d := newDraft(b)
	for i, op := range ops {
		if err := d.apply(i, op); err != nil {
			return nil, err
		}
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	if d.steps > len(b.Steps) {
		if err := CheckSize(b.Key, b.ID, d.steps, d.idBytes); err != nil {
			return nil, err
		}
	}
	return d.events(ops), nil
}
