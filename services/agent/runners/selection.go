package runners

import (
	"slices"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Selection restricts a runner to agents with certain capabilities (SPEC A6). The zero
// value selects every agent.
type Selection struct {
	preset   agentv1.Preset
	families string // the numbers of the families in order, as a comparable value
}

// SelectionOf returns the selection of a request that ValidateSelection accepted.
func SelectionOf(req *agentv1.AcquireTurnRequest) Selection {
	c := Selection{preset: req.GetPreset()}
	families := slices.Clone(req.GetToolFamilies())
	slices.Sort(families)
	for _, f := range slices.Compact(families) {
		c.families += string(rune(f))
	}
	return c
}

// Matches reports whether an agent has the selected preset, if one is selected, and all selected tool families.
func (c Selection) Matches(a *agentv1.Agent) bool {
	if c.preset != agentv1.Preset_PRESET_UNSPECIFIED && a.GetPreset() != c.preset {
		return false
	}
	for _, f := range c.families {
		if !slices.Contains(a.GetToolFamilies(), agentv1.ToolFamily(f)) {
			return false
		}
	}
	return true
}

// ValidateSelection refuses presets and tool families that do not exist, and a selection by a runner that
// serves all namespaces.
func ValidateSelection(req *agentv1.AcquireTurnRequest) error {
	for _, f := range req.GetToolFamilies() {
		if f == agentv1.ToolFamily_TOOL_FAMILY_UNSPECIFIED {
			return fault.Invalid("tool_families", f.String(), "must be families of tools, such as boards")
		}
	}
	if req.GetAllNamespaces() && SelectionOf(req) != (Selection{}) {
		return fault.Invalid("all_namespaces", "true", "must not come with tool_families or preset: namespaces share "+
			"runners by weight, whatever their agents are")
	}
	return nil
}
