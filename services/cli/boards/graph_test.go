package boards

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func picture(nodes []node) string {
	lines, _ := graph(nodes)
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.ReplaceAll(l.gutter, "\x00", "o") + " " + nodes[l.node].id + "\n")
	}
	return b.String()
}

func TestGraph(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []node
		want  string
	}{
		"nothing": {nil, ""},
		"apart":   {[]node{{id: "a"}, {id: "b"}}, "o a\no b\n"},
		"a chain": {[]node{{id: "a"}, {"b", []string{"a"}}, {"c", []string{"b"}}}, `
o a
└─o b
  └─o c
`},
		"a diamond": {[]node{
			{"release", []string{"vet", "build"}},
			{id: "fetch"},
			{"vet", []string{"fetch"}},
			{"build", []string{"fetch"}},
		}, `
o fetch
├─o vet
└─│─o build
  └─┴─o release
`},
		"an edge behind a lane": {[]node{
			{id: "a"},
			{id: "b"},
			{"c", []string{"a"}},
			{"d", []string{"b"}},
			{"e", []string{"c", "a"}},
		}, `
o a
├─o c
└─┴─o e
o b
└─o d
`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, strings.TrimPrefix(c.want, "\n"), picture(c.nodes))
		})
	}
}

// In any graph every node is drawn once, below the nodes that it needs, and has one edge
// for each of them.
func TestRandomGraphs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 30).Draw(t, "n")
		nodes := make([]node, n)
		perm := rapid.Permutation(indices(n)).Draw(t, "order")
		for at, i := range perm {
			nodes[i].id = string(rune('A' + i))
			for _, j := range perm[:at] {
				if rapid.IntRange(0, 4).Draw(t, "edge") == 0 {
					nodes[i].needs = append(nodes[i].needs, nodes[j].id)
				}
			}
		}
		lines, _ := graph(nodes)
		require.Len(t, lines, n)
		above := map[string]bool{}
		for _, l := range lines {
			n := nodes[l.node]
			for _, need := range n.needs {
				require.True(t, above[need], "%s is above %s", n.id, need)
			}
			require.False(t, above[n.id])
			above[n.id] = true
			require.Equal(t, 1, strings.Count(l.gutter, "\x00"))
			require.Equal(t, len(n.needs), strings.Count(l.gutter, "├")+strings.Count(l.gutter, "└")+
				strings.Count(l.gutter, "┼")+strings.Count(l.gutter, "┴"))
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
