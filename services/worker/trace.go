package worker

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/pbjson"
)

// endSpan ends the span of a command. The span has neither the command line nor
// its output.
func (c *command) endSpan(_ context.Context, span trace.Span) {
	if !span.IsRecording() {
		return
	}
	c.mu.Lock()
	end := c.ended
	c.mu.Unlock()
	span.SetAttributes(attribute.String("quartet.agent_id", c.task.GetAgentId()),
		attribute.String("quartet.task_id", c.task.GetTaskId()),
		attribute.String("quartet.work_item_id", c.task.GetWorkItemId()),
		attribute.String("quartet.worker_id", c.w.cfg.ID),
		attribute.Int64("quartet.lease_generation", c.gen), attribute.String("quartet.end_reason",
			pbjson.EnumText(end.GetReason())), attribute.Int64("quartet.output_bytes", end.GetOutputBytes()))
	if end != nil && end.ExitCode != nil {
		span.SetAttributes(attribute.Int("process.exit.code", int(end.GetExitCode())))
	}
	if end.GetReason() != taskv1.TaskEndReason_TASK_END_REASON_EXITED || end.GetExitCode() != 0 {
		span.SetStatus(codes.Error, pbjson.EnumText(end.GetReason()))
	}
	span.End()
}
