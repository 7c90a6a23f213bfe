package proctree

// entry is one process of a process table.
type entry struct {
	pid, parent, group int
	// started is when the process started, in a unit of the system. With it, two processes that have
	// the same pid one after the other are distinguished.
	started int64
}

// ancestry has the known processes of one tree on a system without marks, found by their
// parents and process groups. It is not safe for concurrent use.
type ancestry struct {
	members map[int]int64 // pid -> started, of processes that were alive when last seen
}

func newAncestry(leader entry) *ancestry {
	return &ancestry{members: map[int]int64{leader.pid: leader.started}}
}

// observe compares the tree with a process table. It forgets members that have ended,
// since their pids may be reused, adds the processes whose parent is a member or who
// share a group with one, and returns those that it added.
func (a *ancestry) observe(table []entry) (added []entry) {
	alive := make(map[int]int64, len(a.members))
	groups := make(map[int]struct{}, 1)
	for _, e := range table {
		if started, ok := a.members[e.pid]; ok && started == e.started {
			alive[e.pid] = e.started
			groups[e.group] = struct{}{}
		}
	}
	for found := true; found; { // a table is in no particular order, so repeat until nothing is added
		found = false
		for _, e := range table {
			if _, ok := alive[e.pid]; ok {
				continue
			}
			_, child := alive[e.parent]
			_, peer := groups[e.group]
			if !child && !peer {
				continue
			}
			alive[e.pid] = e.started
			groups[e.group] = struct{}{}
			added = append(added, e)
			found = true
		}
	}
	a.members = alive
	return added
}
