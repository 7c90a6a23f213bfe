package patch

import (
	"fmt"
	"slices"

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
			return fault.DuplicateStep.Newf("step_id %q is given twice; ids are unique on a board", in.GetStepId()).With("step_id", in.GetStepId())
		}
		deps[in.GetStepId()] = in.GetDependsOnStepIds()
	}
	w := cycleFinder{deps: func(id string) []string { return deps[id] }}
	for _, in := range steps {
		for _, to := range in.GetDependsOnStepIds() {
			if _, known := deps[to]; !known {
				return unknownDependency(in.GetStepId(), to)
			}
		}
	}
	for _, in := range steps {
		if circle := w.find(in.GetStepId()); circle != nil {
			return cycle(circle)
		}
	}
	return nil
}

// unknownDependency returns the refusal of a dependency on a step that does not exist.
func unknownDependency(step, on string) error {
	return fault.UnknownDependency.Newf("step %q depends on %q, which is no step of the board; add it, or remove the dependency", step, on).
		With("step_id", step).With("depends_on_step_id", on)
}

// cycle returns the refusal of dependencies that form a circle, whose first step is also its
// last.
func cycle(circle []string) error {
	return fault.DependencyCycle.Newf("the dependencies run in a circle: %s; remove one of them", chain(circle)).With("step_ids", model.JoinIDs(circle))
}

// chain writes a circle of steps with arrows, at most the first 20.
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

// cycleFinder finds cycles among dependencies. It visits each step once over all
// searches.
type cycleFinder struct {
	deps     func(id string) []string // returns what a step depends on
	finished map[string]bool          // by step; false: it is on the path of the current search
}

// find returns a cycle that can be reached from a step, with its first member at both
// ends, or nil. It is not recursive, since a chain may have 10 000 steps.
func (w *cycleFinder) find(id string) []string {
	if w.finished == nil {
		w.finished = map[string]bool{}
	}
	type frame struct {
		id   string
		next int
	}
	if _, seen := w.finished[id]; seen {
		return nil
	}
	path := []frame{{id: id}}
	w.finished[id] = false
	for len(path) > 0 {
		at := &path[len(path)-1]
		deps := w.deps(at.id)
		if at.next == len(deps) {
			w.finished[at.id] = true
			path = path[:len(path)-1]
			continue
		}
		to := deps[at.next]
		at.next++
		done, seen := w.finished[to]
		switch {
		case !seen:
			w.finished[to] = false
			path = append(path, frame{id: to})
		case !done:
			first := slices.IndexFunc(path, func(f frame) bool { return f.id == to })
			var circle []string
			for _, f := range path[first:] {
				circle = append(circle, f.id)
			}
			return append(circle, to)
		}
	}
	return nil
}
