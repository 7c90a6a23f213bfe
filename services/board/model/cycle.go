package model

import "slices"

// CycleFinder finds cycles among dependencies. All its searches together visit each step
// once. After a search that found a cycle it must not be used any more.
type CycleFinder struct {
	Deps     func(id string) []string // returns what a step depends on
	finished map[string]bool          // by step; false: it is on the path of the current search
}

// Find returns a cycle that can be reached from a step, with its first member at both
// ends, or nil. It is not recursive, since a chain may have 10 000 steps.
func (w *CycleFinder) Find(id string) []string {
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
		deps := w.Deps(at.id)
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
