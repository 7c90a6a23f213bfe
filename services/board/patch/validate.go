package patch

import (
	"fmt"
	"slices"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// Limits of a board.
const (
	// MaxSteps bounds the steps of a board.
	MaxSteps        = 10_000
	maxDependencies = 1000
	MaxTitle        = 1000 // characters
	maxOperations   = 10_000
	// maxLines bounds the bytes of as many events as a board has steps. All steps can
	// become ready at once, the events of that are one frame of the journal, and a frame
	// is one message of the broker.
	maxLines = 6_200_000
	// lineSize is the size of such an event without its ids. A test checks it.
	lineSize = 540
)

// CheckSteps refuses new steps that are not valid by themselves, on any board. field is
// the path of the list, for refusals.
func CheckSteps(field string, steps []*boardv1.StepInput) error {
	for i, in := range steps {
		if err := checkStep(fmt.Sprintf("%s[%d]", field, i), in); err != nil {
			return err
		}
	}
	return nil
}

// checkStep refuses a new step that is not valid by itself. at is its path, for refusals.
func checkStep(at string, in *boardv1.StepInput) error {
	if in == nil {
		return fault.InvalidArgument.New(at+" is missing").WithField(at, "is required")
	}
	return fault.First(
		fault.Name(at+".step_id", in.GetStepId()),
		fault.Text(at+".title", in.GetTitle(), MaxTitle, true),
		fault.NotBlank(at+".title", in.GetTitle()),
		fault.TextBytes(at+".summary", in.GetSummary(), fault.MaxFreeTextBytes, false),
		OptionalName(at+".worker_pool_id", in.GetWorkerPoolId()),
		checkDependencies(at+".depends_on_step_ids", in.GetDependsOnStepIds()),
	)
}

// OptionalName validates a name that may be empty.
func OptionalName(field, s string) error {
	if s == "" {
		return nil
	}
	return fault.Name(field, s)
}

// checkDependencies checks the number and form of the ids that a step depends on, and that
// each is named once.
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

// CheckOperations refuses operations that are not valid by themselves, on any board.
func CheckOperations(ops []*boardv1.Operation) error {
	if len(ops) == 0 {
		return fault.InvalidArgument.New("operations is empty; give at least one").
			WithField("operations", "must have an entry")
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

// checkOperation refuses an operation that is not valid by itself. at is its path, for
// refusals.
func checkOperation(at string, op *boardv1.Operation) error {
	if err := fault.TextBytes(at+".reason", op.GetReason(), fault.MaxFreeTextBytes, false); err != nil {
		return err
	}
	// Fields that the operation does not take are refused like unknown fields, since
	// the caller expects an effect of them.
	kind := op.GetOp()
	for _, extra := range []struct {
		field string
		given bool
		kinds []boardv1.OperationKind
	}{
		{"task", op.GetTask() != nil, []boardv1.OperationKind{model.OpUpdateTask}},
		{"step", op.GetStep() != nil, []boardv1.OperationKind{model.OpAddStep}},
		{"fields", op.GetFields() != nil, []boardv1.OperationKind{model.OpUpdateStep}},
		{"depends_on_step_id", op.GetDependsOnStepId() != "", []boardv1.OperationKind{
			model.OpAddDependency,
			model.OpRemoveDependency,
		}},
	} {
		switch takes := slices.Contains(extra.kinds, kind); {
		case takes && !extra.given:
			return fault.InvalidArgument.New(at+"."+extra.field+" is missing").WithField(at+"."+extra.field,
				"is required")
		case !takes && extra.given:
			return fault.InvalidArgument.New(at+"."+extra.field+" does not belong to this operation").
				WithField(at+"."+extra.field, "must be left out")
		}
	}
	switch kind {
	case model.OpUpdateTask:
		return fault.First(
			ifSet(op.GetTask().Title, func(s string) error {
				return fault.First(fault.Text(at+".task.title", s, MaxTitle, true), fault.NotBlank(at+".task.title", s))
			}),
			fault.TextBytes(at+".task.summary", op.GetTask().GetSummary(), fault.MaxFreeTextBytes, false),
			checkNoStepID(at, op))
	case model.OpAddStep:
		return fault.First(checkStep(at+".step", op.GetStep()), checkNoStepID(at, op))
	case model.OpBlockBoard, model.OpReopenBoard:
		return checkNoStepID(at, op)
	case model.OpUpdateStep:
		f := op.GetFields()
		return fault.First(
			fault.Name(at+".step_id", op.GetStepId()),
			ifSet(f.Title, func(s string) error {
				return fault.First(fault.Text(at+".fields.title", s, MaxTitle, true),
					fault.NotBlank(at+".fields.title", s))
			}),
			fault.TextBytes(at+".fields.summary", f.GetSummary(), fault.MaxFreeTextBytes, false),
			ifSet(f.WorkerPoolId, func(s string) error { return fault.Name(at+".fields.worker_pool_id", s) }),
			checkDependencies(at+".fields.depends_on_step_ids", f.GetDependsOnStepIds().GetStepIds()))
	case model.OpDeleteStep, model.OpCancelStep, model.OpReopenStep:
		return fault.Name(at+".step_id", op.GetStepId())
	case model.OpAddDependency, model.OpRemoveDependency:
		return fault.First(fault.Name(at+".step_id", op.GetStepId()),
			fault.Name(at+".depends_on_step_id", op.GetDependsOnStepId()))
	default:
		// Refused below.
	}
	return fault.Invalid(at+".op", kind.String(), "must be one of the ten operations of UpdateBoard")
}

// ifSet calls check if s is not nil.
func ifSet(s *string, check func(string) error) error {
	if s == nil {
		return nil
	}
	return check(*s)
}

// checkNoStepID refuses step_id for an operation that does not take it.
func checkNoStepID(at string, op *boardv1.Operation) error {
	if op.GetStepId() == "" || op.GetOp() == model.OpAddStep && op.GetStepId() == op.GetStep().GetStepId() {
		return nil
	}
	return fault.InvalidArgument.New(at+".step_id does not belong to this operation").WithField(at+".step_id",
		"must be left out")
}

// CheckSize returns LIMIT_EXCEEDED for a board for which one event for each step would not fit
// into one frame: making all of them ready, or completing the board, could not be written.
// idBytes are the bytes of all step ids.
func CheckSize(key model.BoardKey, boardID string, steps, idBytes int) error {
	size := steps*(lineSize+2*len(key.Session)+len(key.Namespace)+len(boardID)) + idBytes
	if size <= maxLines {
		return nil
	}
	return fault.LimitExceeded.Newf("a board of %d steps with ids as long as these is too large: a line about each "+
		"would take %d bytes, and %d fit into one write; use fewer steps or shorter ids", steps, size, maxLines).
		WithField("steps", "must be fewer, or have shorter ids")
}
