package workers

import (
	"context"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/workerstream"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// maxWaiting bounds the reports of one command that wait to be handled. A worker
// sends a few chunks ahead of their acknowledgements, so that only a broken one
// exceeds it.
const maxWaiting = 4096

// heartbeats is the key under which heartbeats are queued; no task has an empty
// id.
const heartbeats = ""

// Receive queues a report behind the earlier ones of its command, and renews the leases that a
// heartbeat names. An error ends the session. It implements workerstream.Handler.
func (s *session) Receive(m *taskv1.ConnectRequest) error {
	taskID := heartbeats
	switch r := m.GetMessage().(type) {
	case *taskv1.ConnectRequest_Started:
		taskID = r.Started.GetTaskId()
	case *taskv1.ConnectRequest_Output:
		taskID = r.Output.GetTaskId()
	case *taskv1.ConnectRequest_Ended:
		taskID = r.Ended.GetTaskId()
	case *taskv1.ConnectRequest_InputTaken:
		taskID = r.InputTaken.GetTaskId()
	case *taskv1.ConnectRequest_Worktree:
		s.hub.orders.complete(r.Worktree)
		return nil
	case *taskv1.ConnectRequest_Heartbeat:
		// The leases are renewed here, since a heartbeat must not wait for the journal.
		for _, id := range r.Heartbeat.GetRunningTaskIds() {
			if c := s.hub.command(id); c != nil && c.worker == s.worker() {
				s.hub.renew(c)
			}
		}
	default:
		return workerstream.SecondHello()
	}
	if taskID == heartbeats && m.GetHeartbeat() == nil {
		return fault.InvalidArgument.New("a report without task_id").WithField("task_id", "is required")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, handled := s.reports[taskID]
	switch {
	case s.closed:
		return context.Canceled
	case len(waiting) >= maxWaiting:
		return fault.Overloaded.New("too many reports of task " + taskID +
			" wait to be stored; wait for acknowledgements")
	}
	s.reports[taskID] = append(waiting, m)
	if !handled {
		s.handling.Go(func() { s.handleAll(taskID) })
	}
	return nil
}

// handleAll handles the waiting reports of a command in order, until there are no more or the
// session ends, which drops the rest. A report that is invalid or cannot be stored ends the
// session: the worker connects again and repeats what was not acknowledged. One that was made under
// a lease that the worker does not hold any more is ignored, and the worker must kill its command.
func (s *session) handleAll(taskID string) {
	for {
		s.mu.Lock()
		waiting := s.reports[taskID]
		if len(waiting) == 0 || s.Context().Err() != nil {
			delete(s.reports, taskID)
			s.mu.Unlock()
			return
		}
		m := waiting[0]
		s.reports[taskID] = waiting[1:]
		s.mu.Unlock()
		if err := s.handle(m); err != nil {
			s.End(err)
		}
	}
}

// handle handles one report of a command, or a heartbeat. An error ends the session.
func (s *session) handle(m *taskv1.ConnectRequest) error {
	switch r := m.GetMessage().(type) {
	case *taskv1.ConnectRequest_Heartbeat:
		return s.heartbeat(r.Heartbeat.GetRunningTaskIds())
	case *taskv1.ConnectRequest_Started:
		if c := s.leased(r.Started); c != nil {
			s.hub.renew(c)
		}
	case *taskv1.ConnectRequest_InputTaken:
		if c := s.leased(r.InputTaken); c != nil {
			raise(&c.confirmedInput, r.InputTaken.GetInputSeq())
		}
	case *taskv1.ConnectRequest_Output:
		return s.storeOutput(r.Output)
	case *taskv1.ConnectRequest_Ended:
		return s.endCommand(r.Ended)
	}
	return nil
}

// heartbeat sends a worker again what it may not have received; ids are the tasks that it says
// it runs. It writes no journal line (SPEC X12).
func (s *session) heartbeat(ids []string) error {
	held, err := s.held()
	if err != nil {
		return err
	}
	running := make(map[string]bool, len(ids))
	for _, id := range ids {
		running[id] = true
	}
	for _, t := range held {
		c := s.hub.command(t.Task.GetTaskId())
		if c == nil {
			continue
		}
		if !running[t.Task.GetTaskId()] {
			// The lease is sent again but not renewed: it expires unless the worker reports
			// the command. A worker ignores leases that it has seen.
			if expires, ok := s.hub.leases.Expires(c.taskID); ok {
				s.Send(leaseMessage(t.Namespace, t.Task, expires))
			}
		}
		s.resend(c, t)
	}
	s.disown(ids, held)
	return nil
}

// report is what all reports on commands have.
type report interface {
	GetTaskId() string
	GetLeaseGeneration() int64
}

// leased returns the command of a report. If the lease under which the report was made is not the
// worker's any more, it returns nil and instructs the worker to kill the command.
func (s *session) leased(r report) *command {
	c := s.hub.command(r.GetTaskId())
	if c == nil || c.worker != s.worker() || c.generation != r.GetLeaseGeneration() {
		s.Send(staleMessage(r.GetTaskId(), r.GetLeaseGeneration()))
		return nil
	}
	return c
}

// storeOutput stores a chunk of output and acknowledges it.
func (s *session) storeOutput(r *taskv1.CommandOutput) error {
	chunk := r.GetChunk()
	if n := len(chunk.GetData()); n > output.MaxChunk || chunk.GetOffset() < 0 {
		return fault.LimitExceeded.Newf("output of task %s: %d bytes at offset %d; a chunk has at most %d",
			r.GetTaskId(), n, chunk.GetOffset(), output.MaxChunk)
	}
	c := s.leased(r)
	if c == nil {
		return nil
	}
	if err := c.lock(s.Context()); err != nil {
		return err
	}
	defer c.unlock()
	if c.ended {
		s.Send(staleMessage(c.taskID, c.generation))
		return nil
	}
	end, err := s.hub.cfg.Output.Append(s.Context(), c.namespace, c.taskID, chunk)
	if err != nil {
		return err
	}
	raise(&c.outputEnd, end)
	s.hub.renew(c)
	s.hub.cfg.Watches.Notify(c.taskID)
	s.Send(ackMessage(c.taskID, c.generation, end, false, false))
	return nil
}

// endCommand writes the end of a command and acknowledges it. A worker that is stopping gets
// no further commands.
func (s *session) endCommand(r *taskv1.CommandEnded) error {
	c := s.leased(r)
	if c == nil {
		return nil
	}
	reason, message := rules.CheckedReason(r)
	if reason == rules.ReasonWorkerStopped { // do not give it the same command again
		s.hub.registry.Close(s.Session)
	}
	counted, err := s.hub.end(s.Context(), c, s.actor, rules.End{
		ExitCode: r.ExitCode, Reason: reason,
		Message: message,
	})
	if err != nil {
		return err
	}
	s.Send(ackMessage(c.taskID, c.generation, r.GetOutputBytes(), true, !counted))
	return nil
}
