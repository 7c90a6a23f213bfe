package tools

import (
	"slices"
	"strings"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Profile is the tool families that an agent was spawned with. It never changes.
type Profile []agentv1.ToolFamily

// Has reports whether the profile includes a family of tools.
func (p Profile) Has(f agentv1.ToolFamily) bool { return slices.Contains(p, f) }

// Names returns the names of the profile's tools.
func (p Profile) Names() []string {
	var names []string
	for _, t := range Table {
		if p.Has(t.Family) {
			names = append(names, t.Name)
		}
	}
	return names
}

// Find returns a tool by its name, with dots or underscores.
func (p Profile) Find(name string) (Tool, error) {
	plain := strings.ReplaceAll(name, ".", "_")
	i := slices.IndexFunc(Table, func(t Tool) bool { return t.Name == plain })
	if i < 0 || !p.Has(Table[i].Family) {
		return Tool{}, fault.ToolNotAvailable.Newf("tool %q is not available; the tools are %s", name, strings.Join(p.Names(), ", ")).With("tool", name)
	}
	return Table[i], nil
}
