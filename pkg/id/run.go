package id

import "strings"

// RunOf returns the id of the run of a turn. A turn has only one run, since a lost run is followed by a
// new turn. So both ids have the same characters after the prefix.
func RunOf(turnID string) string { return "run_" + strings.TrimPrefix(turnID, "trn_") }

// TurnOf returns the id of the turn of a run, or "" if runID is not a run's id.
func TurnOf(runID string) string {
	if number, ok := strings.CutPrefix(runID, "run_"); ok {
		return "trn_" + number
	}
	return ""
}
