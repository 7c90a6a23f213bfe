package rules

import (
	"fmt"
	"maps"
	"slices"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Bounds of what a command may ask for (SPEC T4, T7).
const (
	MinMemory    = 1 << 20
	MaxMemory    = 1 << 44 // 16 TiB
	MaxOutput    = 1 << 44
	MaxProcesses = 100_000

	maxLabels     = 64
	maxLabelValue = 128
)

// checkPlacement validates which workers a command asks for.
func checkPlacement(spec *taskv1.CommandSpec) error {
	if pool := spec.GetPool(); pool != "" {
		if err := fault.Name("command.pool", pool); err != nil {
			return err
		}
	}
	if _, known := taskv1.RestartPolicy_name[int32(spec.GetRestartPolicy())]; !known {
		return fault.Invalid("command.restart_policy", spec.GetRestartPolicy().String(), "must be never or on_worker_loss")
	}
	return CheckLabels("command.worker_labels", spec.GetWorkerLabels())
}

// CheckLabels validates labels of a worker, or those that a command asks for.
func CheckLabels(field string, labels map[string]string) error {
	if err := fault.Entries(field, len(labels), maxLabels); err != nil {
		return err
	}
	// In order, so that the same request always gets the same refusal.
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if err := fault.Name(field, name); err != nil {
			return err
		}
		if err := fault.TextBytes(field+"."+name, labels[name], maxLabelValue, false); err != nil {
			return err
		}
	}
	return nil
}

// checkLimits validates what a command may use at most.
func checkLimits(spec *taskv1.CommandSpec) error {
	l := spec.GetLimits()
	if err := checkWithin("command.limits.memory_bytes", l.GetMemoryBytes(), MinMemory, MaxMemory); err != nil {
		return err
	}
	if err := checkWithin("command.limits.output_bytes", l.GetOutputBytes(), 1, MaxOutput); err != nil {
		return err
	}
	return checkWithin("command.limits.processes", int64(l.GetProcesses()), 1, MaxProcesses)
}

// checkWithin refuses a limit that is out of its bounds; 0 is no limit.
func checkWithin(field string, v, low, high int64) error {
	if v == 0 || v >= low && v <= high {
		return nil
	}
	must := fmt.Sprintf("must be %d to %d, or 0 for none", low, high)
	return fault.LimitExceeded.Newf("%s is %d; it %s", field, v, must).With("field", field).WithField(field, must)
}
