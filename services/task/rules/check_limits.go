package rules

import (
	"fmt"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/workerstream"
)

// Bounds of the limits of a command (SPEC T4, T7).
const (
	MinMemory    = 1 << 20
	MaxMemory    = 1 << 44 // 16 TiB
	MaxOutput    = 1 << 44
	MaxProcesses = 100_000
)

// checkPlacement validates which workers may run a command.
func checkPlacement(spec *taskv1.CommandSpec) error {
	if pool := spec.GetPool(); pool != "" {
		if err := fault.Name("command.pool", pool); err != nil {
			return err
		}
	}
	if _, known := taskv1.RestartPolicy_name[int32(spec.GetRestartPolicy())]; !known {
		return fault.Invalid("command.restart_policy", spec.GetRestartPolicy().String(),
			"must be never or on_worker_loss")
	}
	return workerstream.CheckLabels("command.worker_labels", spec.GetWorkerLabels())
}

// checkLimits validates the limits of a command.
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

// checkWithin refuses a limit that is out of its bounds. 0 means no limit.
func checkWithin(field string, v, low, high int64) error {
	if v == 0 || v >= low && v <= high {
		return nil
	}
	must := fmt.Sprintf("must be %d to %d, or 0 for none", low, high)
	return fault.LimitExceeded.Newf("%s is %d; it %s", field, v, must).With("field", field).WithField(field, must)
}
