package worker_test

import (
	"testing"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task"
	taskoutput "quartet/services/task/output"
	"quartet/services/worker"
)

// BenchmarkExecOverNATS is a command from its request to its answer: queued,
// leased, run, ended; each durable. Eight callers for each of -cpu.
func BenchmarkExecOverNATS(b *testing.B) {
	nc := natsdtest.Connect(b)
	must.Value(jetlog.Ensure(b.Context(), nc, task.Plane, 1, 1))(b)
	log := must.Value(jetlog.New(nc, task.Plane, 0))(b)
	r := newRigOver(b, log, must.Value(taskoutput.OpenStream(b.Context(), nc, 1, 0, nil))(b))
	r.worker(func(c *worker.Config) { c.Capacity = 64 })
	b.ResetTimer()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		client := r.client()
		for pb.Next() {
			resp, err := client.ExecCommand(r.ctx, &taskv1.ExecCommandRequest{
				AgentId: "keeper", Command: &taskv1.CommandSpec{Argv: []string{"/bin/true"}},
			})
			if err != nil || resp.GetOutcome() != taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED {
				b.Error(err, resp)
				return
			}
		}
	})
}
