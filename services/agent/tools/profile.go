package tools

import (
	"slices"
	"strings"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// profile is what an agent was spawned with; it never changes.
type Profile []agentv1.ToolFamily

func (p Profile) Has(f agentv1.ToolFamily) bool { return slices.Contains(p, f) }

// names of the tools, for messages and for runners.
func (p Profile) Names() []string {
	var names []string
	for _, t := range Table {
		if p.Has(t.Family) {
			names = append(names, t.Name)
		}
	}
	return names
}

// find looks a tool up, by the seeds' name for it, with S2's dots or without.
func (p Profile) Find(name string) (Tool, error) {
	plain := strings.ReplaceAll(name, ".", "_")
	i := slices.IndexFunc(Table, func(t Tool) bool { return t.Name == plain })
	if i < 0 || !p.Has(Table[i].Family) {
		return Tool{}, fault.ToolNotAvailable.Newf("tool %q is not available; the tools are %s", name, strings.Join(p.Names(), ", ")).With("tool", name)
	}
	return Table[i], nil
}
