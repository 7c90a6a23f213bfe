package id

import "strings"

// RunOf names the run of a turn. A turn is executed by one run and never by
// another (a lost one begins a new turn), so both carry one number, and whoever
// reads a run in a journal knows the turn without asking anybody.
func RunOf(turnID string) string { return "run_" + strings.TrimPrefix(turnID, "trn_") }

// TurnOf names the turn of a run; "" of what is no run.
func TurnOf(runID string) string {
	if number, ok := strings.CutPrefix(runID, "run_"); ok {
		return "trn_" + number
	}
	return ""
}
