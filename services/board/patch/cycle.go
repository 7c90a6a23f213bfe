package patch

import (
	"fmt"
	"slices"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// CheckGraph is the validation of a whole DAG (S2-306).
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

func unknownDependency(step, on string) error {
	return fault.UnknownDependency.Newf("step %q depends on %q, which is no step of the board; add it, or remove the dependency", step, on).
		With("step_id", step).With("depends_on_step_id", on)
}

func cycle(circle []string) error {
	return fault.DependencyCycle.Newf("the dependencies run in a circle: %s; remove one of them", chain(circle)).With("step_ids", model.JoinIDs(circle))
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

// cycleFinder looks for circles. What it has gone through without finding one it does
// not go through again.
type cycleFinder struct {
	deps     func(id string) []string
	finished map[string]bool // false: on the way
}

// find gives a circle that can be reached from a step, its first member at
// both ends, or nil. It keeps a stack of its own: a chain may have 10 000 steps.
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
	way := []frame{{id: id}}
	w.finished[id] = false
	for len(way) > 0 {
		at := &way[len(way)-1]
		deps := w.deps(at.id)
		if at.next == len(deps) {
			w.finished[at.id] = true
			way = way[:len(way)-1]
			continue
		}
		to := deps[at.next]
		at.next++
		done, seen := w.finished[to]
		switch {
		case !seen:
			w.finished[to] = false
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
