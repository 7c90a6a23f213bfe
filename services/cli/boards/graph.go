package boards

import (
	"slices"
	"strings"
)

// node is one line of a drawn graph.
type node struct {
	id    string
	needs []string // ids of nodes
}

// mostLanes is how many edges may run beside each other before a picture says
// less than names do.
const mostLanes = 24

// drawn is a node with what stands before it.
type drawn struct {
	node   int    // index into the nodes given
	gutter string // lanes, the edges that end here, and the mark's place as a NUL
}

// graph lays a DAG out, one node a line, each below all that it needs: the lanes
// to its left are nodes that are still needed further down.
//
//	○ fetch
//	├─○ vet
//	├─│─○ build
//	│ └─┴─○ release
//
// It answers ok=false where more than mostLanes lanes would be needed.
func graph(nodes []node) (lines []drawn, ok bool) {
	index := make(map[string]int, len(nodes))
	for i, n := range nodes {
		index[n.id] = i
	}
	left := make([]int, len(nodes)) // dependents that are not drawn yet
	for _, n := range nodes {
		for _, need := range n.needs {
			if at, known := index[need]; known {
				left[at]++
			}
		}
	}
	lanes := []int{} // the node that each lane comes from; -1: free
	ok = true
	for _, i := range inOrder(nodes, index) {
		var from []int // lanes that this node hangs on
		for lane, source := range lanes {
			if source >= 0 && slices.Contains(nodes[i].needs, nodes[source].id) {
				from = append(from, lane)
				left[source]--
			}
		}
		at := place(lanes, from)
		lines = append(lines, drawn{i, gutter(lanes, from, at, left)})
		for _, lane := range from {
			if left[lanes[lane]] == 0 {
				lanes[lane] = -1
			}
		}
		for len(lanes) <= at {
			lanes = append(lanes, -1)
		}
		if left[i] > 0 {
			lanes[at] = i
		}
		for len(lanes) > 0 && lanes[len(lanes)-1] < 0 {
			lanes = lanes[:len(lanes)-1]
		}
		ok = ok && len(lanes) <= mostLanes
	}
	return lines, ok
}

// inOrder sorts nodes so that each comes after all that it needs, and otherwise
// as near as possible to what it hangs on, in the order given.
func inOrder(nodes []node, index map[string]int) []int {
	waits := make([]int, len(nodes))
	dependents := make([][]int, len(nodes))
	for i, n := range nodes {
		for _, need := range n.needs {
			if at, known := index[need]; known {
				waits[i]++
				dependents[at] = append(dependents[at], i)
			}
		}
	}
	var free []int // a stack: what was just freed is drawn next
	for i := len(nodes) - 1; i >= 0; i-- {
		if waits[i] == 0 {
			free = append(free, i)
		}
	}
	order := make([]int, 0, len(nodes))
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		order = append(order, i)
		for _, d := range slices.Backward(dependents[i]) {
			if waits[d]--; waits[d] == 0 {
				free = append(free, d)
			}
		}
	}
	return order
}

// place is the first free lane to the right of all that the node hangs on.
func place(lanes, from []int) int {
	at := 0
	if len(from) > 0 {
		at = from[len(from)-1] + 1
	}
	for at < len(lanes) && lanes[at] >= 0 {
		at++
	}
	return at
}

// gutter draws the lanes beside a node whose edges come from the lanes given.
func gutter(lanes, from []int, at int, left []int) string {
	var b strings.Builder
	begins := at
	if len(from) > 0 {
		begins = from[0]
	}
	for lane := range max(len(lanes), at+1) {
		if lane > 0 {
			b.WriteRune(pick(lane > begins && lane <= at, '─', ' '))
		}
		used := lane < len(lanes) && lanes[lane] >= 0
		switch {
		case lane == at:
			b.WriteByte(0)
		case slices.Contains(from, lane):
			goesOn := left[lanes[lane]] > 0
			if lane == begins {
				b.WriteRune(pick(goesOn, '├', '└'))
			} else {
				b.WriteRune(pick(goesOn, '┼', '┴'))
			}
		case used:
			b.WriteRune('│') // also where an edge passes behind it
		default:
			b.WriteRune(pick(lane > begins && lane < at, '─', ' '))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

func pick(yes bool, a, b rune) rune {
	if yes {
		return a
	}
	return b
}
