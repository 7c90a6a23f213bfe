package board

import (
	"fmt"
	"slices"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// Limits of a board.
const (
	// MaxSteps is how many steps a board has at most.
	MaxSteps        = 10_000
	maxDependencies = 1000
	maxTitle        = 1000 // characters
	maxOperations   = 10_000
	maxArtifacts    = 200
	maxArtifact     = 256 // characters
	maxAllowed      = 10_000
	// maxLines is what one line about each step may take: the last of their
	// dependencies makes them ready in one frame, and a frame is a message of
	// the broker.
	maxLines = 6_200_000
	// lineSize is what such a line takes without its ids. A test holds it to that.
	lineSize = 540
)

// DefaultPool is the pool of boards that name none.
const DefaultPool = "default"

// checkSteps is what can be said about new steps without a board.
func checkSteps(field string, steps []*boardv1.StepInput) error {
	for i, in := range steps {
		if err := checkStep(fmt.Sprintf("%s[%d]", field, i), in); err != nil {
			return err
		}
	}
	return nil
}

func checkStep(at string, in *boardv1.StepInput) error {
	if in == nil {
		return fault.InvalidArgument.New(at+" is missing").WithField(at, "is required")
	}
	return fault.First(
		fault.Name(at+".step_id", in.GetStepId()),
		fault.Text(at+".title", in.GetTitle(), maxTitle, true),
		fault.NotBlank(at+".title", in.GetTitle()),
		fault.TextBytes(at+".summary", in.GetSummary(), fault.MaxFreeTextBytes, false),
		optionalName(at+".worker_pool_id", in.GetWorkerPoolId()),
		checkDependencies(at+".depends_on_step_ids", in.GetDependsOnStepIds()),
	)
}

func optionalName(field, s string) error {
	if s == "" {
		return nil
	}
	return fault.Name(field, s)
}

func checkDependencies(field string, ids []string) error {
	if err := fault.Entries(field, len(ids), maxDependencies); err != nil {
		return err
	}
	seen := make(map[string]bool, len(ids))
	for i, id := range ids {
		if err := fault.Name(fmt.Sprintf("%s[%d]", field, i), id); err != nil {
			return err
		}
		if seen[id] {
			return fault.Invalid(field, id, "must name each step once")
		}
		seen[id] = true
	}
	return nil
}

// checkGraph is the validation of a whole DAG (S2-306).
func checkGraph(steps []*boardv1.StepInput) error {
	deps := make(map[string][]string, len(steps))
	for _, in := range steps {
		if _, twice := deps[in.GetStepId()]; twice {
			return fault.DuplicateStep.Newf("step_id %q is given twice; ids are unique on a board", in.GetStepId()).With("step_id", in.GetStepId())
		}
		deps[in.GetStepId()] = in.GetDependsOnStepIds()
	}
	w := walk{deps: func(id string) []string { return deps[id] }}
	for _, in := range steps {
		for _, to := range in.GetDependsOnStepIds() {
			if _, known := deps[to]; !known {
				return unknownDependency(in.GetStepId(), to)
			}
		}
	}
	for _, in := range steps {
		if circle := w.from(in.GetStepId()); circle != nil {
			return cycle(circle)
		}
	}
	return nil
}

func unknownDependency(step, on string) error {
	return fault.UnknownDependency.Newf("step %q depends on %q, which is no step of the board; add it, or remove the dependency", step, on).
		With("step_id", step).With("depends_on_step_id", on)
}

func cycle(circle []string) error {
	return fault.DependencyCycle.Newf("the dependencies run in a circle: %s; remove one of them", chain(circle)).With("step_ids", some(circle))
}

func chain(circle []string) string {
	s := circle[0]
	for i, id := range circle[1:] {
		if i == 20 {
			return s + fmt.Sprintf(" → … (%d steps)", len(circle)-1)
		}
		s += " → " + id
	}
	return s
}

// walk looks for circles. What it has gone through without finding one it does
// not go through again.
type walk struct {
	deps func(id string) []string
	done map[string]bool // false: on the way
}

// from gives a circle that can be reached from a step, its first member at
// both ends, or nil. It keeps a stack of its own: a chain may have 10 000 steps.
func (w *walk) from(id string) []string {
	if w.done == nil {
		w.done = map[string]bool{}
	}
	type frame struct {
		id   string
		next int
	}
	if _, seen := w.done[id]; seen {
		return nil
	}
	way := []frame{{id: id}}
	w.done[id] = false
	for len(way) > 0 {
		at := &way[len(way)-1]
		deps := w.deps(at.id)
		if at.next == len(deps) {
			w.done[at.id] = true
			way = way[:len(way)-1]
			continue
		}
		to := deps[at.next]
		at.next++
		done, seen := w.done[to]
		switch {
		case !seen:
			w.done[to] = false
			way = append(way, frame{id: to})
		case !done:
			first := slices.IndexFunc(way, func(f frame) bool { return f.id == to })
			var circle []string
			for _, f := range way[first:] {
				circle = append(circle, f.id)
			}
			return append(circle, to)
		}
	}
	return nil
}

// checkOperations is what can be said about a patch without a board.
func checkOperations(ops []*boardv1.Operation) error {
	if len(ops) == 0 {
		return fault.InvalidArgument.New("operations is empty; give at least one").WithField("operations", "must have an entry")
	}
	if err := fault.Entries("operations", len(ops), maxOperations); err != nil {
		return err
	}
	for i, op := range ops {
		if err := checkOperation(fmt.Sprintf("operations[%d]", i), op); err != nil {
			return err
		}
	}
	return nil
}

func checkOperation(at string, op *boardv1.Operation) error {
	if err := fault.TextBytes(at+".reason", op.GetReason(), fault.MaxFreeTextBytes, false); err != nil {
		return err
	}
	// What does not belong to an operation is refused rather than left out, as
	// an unknown field is: whoever gave it expects something of it.
	kind := op.GetOp()
	for _, extra := range []struct {
		field string
		given bool
		kinds []boardv1.OperationKind
	}{
		{"task", op.GetTask() != nil, []boardv1.OperationKind{opUpdateTask}},
		{"step", op.GetStep() != nil, []boardv1.OperationKind{opAddStep}},
		{"fields", op.GetFields() != nil, []boardv1.OperationKind{opUpdateStep}},
		{"depends_on_step_id", op.GetDependsOnStepId() != "", []boardv1.OperationKind{opAddDependency, opRemoveDependency}},
	} {
		switch takes := slices.Contains(extra.kinds, kind); {
		case takes && !extra.given:
			return fault.InvalidArgument.New(at+"."+extra.field+" is missing").WithField(at+"."+extra.field, "is required")
		case !takes && extra.given:
			return fault.InvalidArgument.New(at+"."+extra.field+" does not belong to this operation").WithField(at+"."+extra.field, "must be left out")
		}
	}
	switch kind {
	case opUpdateTask:
		return fault.First(
			given(op.GetTask().Title, func(s string) error {
				return fault.First(fault.Text(at+".task.title", s, maxTitle, true), fault.NotBlank(at+".task.title", s))
			}),
			fault.TextBytes(at+".task.summary", op.GetTask().GetSummary(), fault.MaxFreeTextBytes, false),
			withoutStep(at, op))
	case opAddStep:
		return fault.First(checkStep(at+".step", op.GetStep()), withoutStep(at, op))
	case opBlockBoard, opReopenBoard:
		return withoutStep(at, op)
	case opUpdateStep:
		f := op.GetFields()
		return fault.First(
			fault.Name(at+".step_id", op.GetStepId()),
			given(f.Title, func(s string) error {
				return fault.First(fault.Text(at+".fields.title", s, maxTitle, true), fault.NotBlank(at+".fields.title", s))
			}),
			fault.TextBytes(at+".fields.summary", f.GetSummary(), fault.MaxFreeTextBytes, false),
			given(f.WorkerPoolId, func(s string) error { return fault.Name(at+".fields.worker_pool_id", s) }),
			checkDependencies(at+".fields.depends_on_step_ids", f.GetDependsOnStepIds().GetStepIds()))
	case opDeleteStep, opCancelStep, opReopenStep:
		return fault.Name(at+".step_id", op.GetStepId())
	case opAddDependency, opRemoveDependency:
		return fault.First(fault.Name(at+".step_id", op.GetStepId()), fault.Name(at+".depends_on_step_id", op.GetDependsOnStepId()))
	}
	return fault.Invalid(at+".op", kind.String(), "must be one of the ten operations of UpdateBoard")
}

func given(s *string, check func(string) error) error {
	if s == nil {
		return nil
	}
	return check(*s)
}

func withoutStep(at string, op *boardv1.Operation) error {
	if op.GetStepId() == "" || op.GetOp() == opAddStep && op.GetStepId() == op.GetStep().GetStepId() {
		return nil
	}
	return fault.InvalidArgument.New(at+".step_id does not belong to this operation").WithField(at+".step_id", "must be left out")
}

func checkResult(summary string, artifacts []string, reason string) error {
	if err := fault.First(
		fault.TextBytes("result_summary", summary, fault.MaxFreeTextBytes, false),
		fault.TextBytes("reason", reason, fault.MaxFreeTextBytes, false),
		fault.Entries("artifact_ids", len(artifacts), maxArtifacts),
	); err != nil {
		return err
	}
	for i, id := range artifacts {
		if err := fault.Text(fmt.Sprintf("artifact_ids[%d]", i), id, maxArtifact, true); err != nil {
			return err
		}
	}
	return nil
}

// checkAllowed is the scope of a run: nothing, or at least one step (S2-371).
// Steps that are named twice count once (S2-372).
func checkAllowed(list *boardv1.StepList, most int) ([]string, error) {
	if list == nil {
		return nil, nil
	}
	if len(list.GetStepIds()) == 0 {
		return nil, fault.InvalidArgument.New("allowed_step_ids is empty, so that nothing could be claimed; leave it out, or name steps").
			WithField("allowed_step_ids", "must be left out or have an entry")
	}
	if err := fault.Entries("allowed_step_ids", len(list.GetStepIds()), most); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var out []string
	for i, id := range list.GetStepIds() {
		if err := fault.Name(fmt.Sprintf("allowed_step_ids[%d]", i), id); err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out, nil
}

// fits refuses a board of which a line about each step would not fit into one
// frame: what makes them all ready, or completes the board, could not be written.
func fits(key boardKey, boardID string, steps, idBytes int) error {
	size := steps*(lineSize+2*len(key.session)+len(key.namespace)+len(boardID)) + idBytes
	if size <= maxLines {
		return nil
	}
	return fault.LimitExceeded.Newf("a board of %d steps with ids as long as these is too large: a line about each would take %d bytes, and %d fit into one write; use fewer steps or shorter ids", steps, size, maxLines).
		WithField("steps", "must be fewer, or have shorter ids")
}
