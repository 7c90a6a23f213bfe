package patch

import (
	"fmt"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// CheckGraph returns an error unless the steps have unique ids and their dependencies form a
// directed acyclic graph (S2-306).
func CheckGraph(steps []*boardv1.StepInput) error {
	deps := make(map[string][]string, len(steps))
	for _, in := range steps {
		if _, twice := deps[in.GetStepId()]; twice {
			return fault.DuplicateStep.Newf("step_id %q is given twice; ids are unique on a board", in.GetStepId()).
				With("step_id", in.GetStepId())
		}
		deps[in.GetStepId()] = in.GetDependsOnStepIds()
	}
	w := model.CycleFinder{Deps: func(id string) []string { return deps[id] }}
	for _, in := range steps {
		for _, to := range in.GetDependsOnStepIds() {
			if _, known := deps[to]; !known {
				return unknownDependency(in.GetStepId(), to)
			}
		}
	}
	for _, in := range steps {
		if circle := w.Find(in.GetStepId()); circle != nil {
			return cycle(circle)
		}
	}
	return nil
}

// unknownDependency returns the refusal of a dependency on a step that does not exist.
func unknownDependency(step, on string) error {
	return fault.UnknownDependency.Newf("step %q depends on %q, which is no step of the board; add it, or remove the "+
		"dependency", step, on).
		With("step_id", step).With("depends_on_step_id", on)
}

// cycle returns the refusal of dependencies that form a circle, whose first step is also its
// last.
func cycle(circle []string) error {
	return fault.DependencyCycle.Newf("the dependencies run in a circle: %s; remove one of them", chain(circle)).
		With("step_ids", model.JoinIDs(circle))
}

// chain returns a circle of steps as text with arrows between them, at most the first 20 steps.
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
