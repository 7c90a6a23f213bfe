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

// maxLanes is how many edges may run beside each other; with more, a picture is less
// readable than a list of names.
const maxLanes = 24

// graphLine is a node with the drawing to its left.
type graphLine struct {
	node   int    // index into the nodes given
	gutter string // lanes, the edges that end here, and a NUL where the node's mark goes
}

// graph lays out a DAG, one node per line, each below the nodes that it needs. The
// lanes to its left belong to nodes that are still needed further down.
//
//	○ fetch
//	├─○ vet
//	├─│─○ build
//	│ └─┴─○ release
//
// ok is false if more than maxLanes lanes would be needed.
func graph(nodes []node) (lines []graphLine, ok bool) {
	index := make(map[string]int, len(nodes))
	for i, n := range nodes {
		index[n.id] = i
	}
	left := make([]int, len(nodes)) // number of dependents that are not drawn yet
	for _, n := range nodes {
		for _, need := range n.needs {
			if at, known := index[need]; known {
				left[at]++
			}
		}
	}
	lanes := []int{} // the node that each lane belongs to; -1: free
	ok = true
	for _, i := range topologicalOrder(nodes, index) {
		var from []int // lanes of the nodes that this one needs
		for lane, source := range lanes {
			if source >= 0 && slices.Contains(nodes[i].needs, nodes[source].id) {
				from = append(from, lane)
				left[source]--
			}
		}
		at := freeLane(lanes, from)
		lines = append(lines, graphLine{i, gutter(lanes, from, at, left)})
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
		ok = ok && len(lanes) <= maxLanes
	}
	return lines, ok
}

// topologicalOrder returns the indices of nodes, each after those of the nodes that it
// needs and close to them; what this leaves open stays in the given order. Nodes of a
// cycle are left out. index has the index of each node by id.
func topologicalOrder(nodes []node, index map[string]int) []int {
	unmet := make([]int, len(nodes))
	dependents := make([][]int, len(nodes))
	for i, n := range nodes {
		for _, need := range n.needs {
			if at, known := index[need]; known {
				unmet[i]++
				dependents[at] = append(dependents[at], i)
			}
		}
	}
	var free []int // a stack: a node whose last need was just drawn is drawn next
	for i := len(nodes) - 1; i >= 0; i-- {
		if unmet[i] == 0 {
			free = append(free, i)
		}
	}
	order := make([]int, 0, len(nodes))
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		order = append(order, i)
		for _, d := range slices.Backward(dependents[i]) {
			if unmet[d]--; unmet[d] == 0 {
				free = append(free, d)
			}
		}
	}
	return order
}

// freeLane returns the first free lane to the right of the lanes that the node needs.
func freeLane(lanes, from []int) int {
	at := 0
	if len(from) > 0 {
		at = from[len(from)-1] + 1
	}
	for at < len(lanes) && lanes[at] >= 0 {
		at++
	}
	return at
}

// gutter draws the lanes beside a node in lane at, whose edges start in the lanes from.
func gutter(lanes, from []int, at int, left []int) string {
	var b strings.Builder
	first := at
	if len(from) > 0 {
		first = from[0]
	}
	for lane := range max(len(lanes), at+1) {
		if lane > 0 {
			b.WriteRune(pick(lane > first && lane <= at, '─', ' '))
		}
		used := lane < len(lanes) && lanes[lane] >= 0
		switch {
		case lane == at:
			b.WriteByte(0)
		case slices.Contains(from, lane):
			continues := left[lanes[lane]] > 0
			if lane == first {
				b.WriteRune(pick(continues, '├', '└'))
			} else {
				b.WriteRune(pick(continues, '┼', '┴'))
			}
		case used:
			b.WriteRune('│') // also where an edge passes behind it
		default:
			b.WriteRune(pick(lane > first && lane < at, '─', ' '))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// pick returns a if yes is set, otherwise b.
func pick(yes bool, a, b rune) rune {
	if yes {
		return a
	}
	return b
}
