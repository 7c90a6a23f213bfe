package workers

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// leaseMessage gives a worker the lease of a command.
func leaseMessage(namespace string, t *taskv1.Task, expires time.Time) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Lease{Lease: &taskv1.CommandLease{
		Task: t, LeaseGeneration: t.GetLeaseGeneration(), ExpiresAt: timestamppb.New(expires),
		OutputOffset: t.GetOutputBytes(),
		Namespace:    namespace,
	}}}
}

// stopMessage tells a worker to stop a command, or with force to kill it.
func stopMessage(taskID string, force bool) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{
		Message: &taskv1.ConnectResponse_Stop{Stop: &taskv1.CommandStop{TaskId: taskID, Force: force}},
	}
}

// inputMessage gives a worker input for a command.
func inputMessage(p *taskv1.TaskInputAccepted) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Input{Input: &taskv1.CommandInput{
		TaskId: p.GetTaskId(), Data: p.GetData(), InputSeq: p.GetInputSeq(), EndOfInput: p.GetEndOfInput(),
	}}}
}

// staleMessage tells a worker to kill a command whose lease is not its own any
// more. Generation 0 means whichever lease it has.
func staleMessage(taskID string, generation int64) *taskv1.ConnectResponse {
	return ackMessage(taskID, generation, 0, true, true)
}

// ackMessage acknowledges a report: output up to the offset bytes, or with ended the end.
// stale says that the lease is not the worker's any more.
func ackMessage(taskID string, generation, bytes int64, ended, stale bool) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Ack{Ack: &taskv1.ReportAck{
		TaskId: taskID, OutputBytes: bytes, Ended: ended, Stale: stale, LeaseGeneration: generation,
	}}}
}
