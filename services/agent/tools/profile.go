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

// Find is Named for the tools of the profile. It returns TOOL_NOT_AVAILABLE for all other names.
func (p Profile) Find(name string) (Tool, error) {
	t, ok := Named(name)
	if !ok || !p.Has(t.Family) {
		return Tool{}, fault.ToolNotAvailable.Newf("tool %q is not available; the tools are %s", name,
			strings.Join(p.Names(), ", ")).With("tool", name)
	}
	return t, nil
}

// Named returns the tool with a name or former name, whether or not a profile has its family, and false if there is
// none. Dots in name count as underscores.
func Named(name string) (Tool, bool) {
	plain := strings.ReplaceAll(name, ".", "_")
	for _, t := range Table {
		if t.Name == plain || t.former != "" && t.former == plain {
			return t, true
		}
	}
	return Tool{}, false
}
