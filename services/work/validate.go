package work

import (
	"fmt"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// knownPlanStatus refuses a number that names no plan status. Unspecified is allowed.
func knownPlanStatus(v workv1.PlanStatus) error {
	if _, ok := workv1.PlanStatus_name[int32(v)]; !ok {
		return fault.Invalid("plan_status", fmt.Sprint(int32(v)), "must be draft, ready or needs_input")
	}
	return nil
}

// optionalID validates an id that may be left out.
func optionalID(field, value, prefix string) error {
	if value == "" {
		return nil
	}
	return fault.ID(field, value, prefix)
}
