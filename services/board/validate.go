package board

import (
	"fmt"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// maxAllowed bounds the steps that a standing dispatch allows.
const maxAllowed = 10_000

// checkAllowed validates the steps that a run or dispatch is limited to, at most most, and
// returns their ids: nil for a list that is not set, and else at least one (S2-371).
// Repeated ids count once (S2-372).
func checkAllowed(list *boardv1.StepList, most int) ([]string, error) {
	if list == nil {
		return nil, nil
	}
	if len(list.GetStepIds()) == 0 {
		return nil, fault.InvalidArgument.New("allowed_step_ids is empty, so that nothing could be claimed; leave it "+
			"out, or name steps").
			WithField("allowed_step_ids", "must be left out or have an entry")
	}
	if err := fault.Entries("allowed_step_ids", len(list.GetStepIds()), most); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var out []string
	for i, id := range list.GetStepIds() {
		if err := fault.Name(fmt.Sprintf("allowed_step_ids[%d]", i), id); err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out, nil
}
