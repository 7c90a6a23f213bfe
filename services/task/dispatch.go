package task

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// committed hears every event of the plane once it is durable. It runs in a
// partition's loop and never blocks. Whatever it passes on to workers is said
// again at their next heartbeat if it did not arrive.
func (s *Service) committed(partition int, events []*journal.Event) {
	for _, ev := range events {
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		switch p := ev.Payload.(type) {
		case *taskv1.TaskQueued:
			s.floor.poke()
		case *taskv1.TaskStarted:
			if !model.IsChild(p.GetTask()) {
				s.handOver(partition, ev.Namespace, p)
			}
		case *taskv1.OwnerDeleted:
			continue
		case *taskv1.TaskWorktreeChanged: // no worker has a child's handle
		case *taskv1.TaskRestarting:
			s.unarm(p.GetTask(), true)
		case *taskv1.TaskCancelling:
			if one := s.lives.get(ev.TaskID); one != nil {
				s.floor.send(one.worker, stopMessage(ev.TaskID, p.GetForce()))
			}
		case *taskv1.TaskInputAccepted:
			if one := s.lives.get(ev.TaskID); one != nil {
				s.floor.send(one.worker, inputMessage(p))
			}
		default:
			s.settled(model.TaskOf(ev))
		}
		s.watches.signal(ev.TaskID)
	}
}

// handOver sends a lease that is durable to its worker.
func (s *Service) handOver(partition int, ns string, p *taskv1.TaskStarted) {
	worker := model.WorkerKey{Namespace: ns, ID: p.GetTask().GetWorkerId()}
	if p.GetSharedWorker() {
		worker.Namespace = ""
	}
	one := s.lives.arm(ns, worker, p.GetTask(), s.partition(partition).StallTotal())
	s.floor.send(worker, leaseMessage(p.GetTask(), s.lives.expiry(one)))
}

// partition gives a partition by number. Events arrive only after Start has
// opened all of them or, at the latest, while it does.
func (s *Service) partition(n int) *journal.Partition[*model.State] { return s.engine.All()[n] }

// settled forgets the lease of a task that ended, and frees its worker's place.
func (s *Service) settled(t *taskv1.Task) { s.unarm(t, t.GetEndReason() == rules.ReasonWorkerLost) }

// unarm forgets a lease; lost: the worker is not known to have ended the command.
func (s *Service) unarm(t *taskv1.Task, lost bool) {
	if one := s.lives.get(t.GetTaskId()); one != nil && lost {
		// Should the worker live after all, it must end the command.
		s.floor.send(one.worker, staleMessage(t.GetTaskId(), one.generation))
	}
	s.lives.drop(t.GetTaskId())
	s.floor.poke()
}

// dispatch hands queued commands to workers, whenever there may be some.
func (s *Service) dispatch() {
	var again <-chan time.Time
	for {
		select {
		case <-s.quit:
			return
		case <-s.floor.kick:
		case <-again:
		}
		again = nil
		slots := s.floor.slots()
		if len(slots) == 0 {
			continue
		}
		for i, p := range s.engine.All() {
			n, err := s.leaseFrom(p, i, slots)
			if err != nil && s.ctx.Err() == nil {
				s.log().Warn("no command could be leased", zap.Error(err))
				again = s.clk.TimerAt(s.clk.Now().Add(time.Second)).C()
			}
			if n == rules.MaxLeases {
				s.floor.poke()
			}
		}
	}
}

// leaseFrom leases what one partition has queued.
func (s *Service) leaseFrom(p *journal.Partition[*model.State], index int, slots []model.WorkerSlot) (int, error) {
	if len(s.engine.All()) > 1 {
		// The rule for the partition before may still run when its caller has left.
		slots = slices.Clone(slots)
		for i := range slots {
			slots[i].HeldElsewhere = 0
			for j, other := range s.engine.All() {
				if j == index {
					continue
				}
				n, _, err := journal.View(s.ctx, other, func(st *model.State) (int, error) { return len(st.Workers[slots[i].Worker]), nil })
				if err != nil {
					return 0, err
				}
				slots[i].HeldElsewhere += n
			}
		}
	}
	n, _, err := journal.Do(s.ctx, p, journal.Op[*model.State, int]{
		Method: "lease", Actor: *plane.System(""),
		Decide: func(st *model.State, env journal.Env) (journal.Decision[int], error) {
			return rules.DecideLease(st, env, slots)
		},
		Answer: func(events []*journal.Event) (int, error) { return len(events), nil },
	})
	return n, err
}

// lapse ends a command whose worker was silent for its whole term.
func (s *Service) lapse(one *lease) {
	p := s.engine.For(one.namespace, one.agent)
	if !s.lives.over(one, p.Stalled(), p.StallTotal()) {
		return
	}
	_, err := s.end(s.ctx, one, *plane.System(one.namespace), rules.End{
		Reason:  rules.ReasonWorkerLost,
		Message: "worker " + one.worker.ID + " did not report for " + s.cfg.LeaseTerm.String(),
	})
	if err != nil {
		s.lives.again(one)
	}
}

// end writes the end of a command after the last of its output: whatever is
// stored of it is stored before, and nothing after (SPEC T5). It reports
// whether this end was the one that counts.
func (s *Service) end(ctx context.Context, one *lease, actor journal.Actor, end rules.End) (bool, error) {
	one.write.Lock()
	defer one.write.Unlock()
	if one.ended {
		return false, nil
	}
	piece, err := s.output.Read(ctx, one.namespace, one.taskID, output.FromEnd(4*rules.TailChars), 4*rules.TailChars)
	if err != nil {
		return false, err
	}
	trimmed := piece.End-piece.Oldest > output.Kept+output.Kept/4
	if trimmed {
		if err := s.output.Trim(ctx, one.namespace, one.taskID); err != nil {
			return false, err
		}
	}
	end.TaskID, end.Generation = one.taskID, one.generation
	end.Tail = rules.LastChars(output.EndText(piece, 4*rules.TailChars), rules.TailChars)
	end.Bytes, end.Truncated = piece.End, trimmed || piece.Oldest > 0
	counted, _, err := journal.Do(ctx, s.engine.For(one.namespace, one.agent), journal.Op[*model.State, bool]{
		Method: "end", Actor: actor, AgentID: one.agent,
		Decide: func(st *model.State, env journal.Env) (journal.Decision[bool], error) {
			return rules.DecideEnd(st, env, end)
		},
		Answer: func([]*journal.Event) (bool, error) { return true, nil },
	})
	if err != nil {
		return false, err
	}
	one.ended = true
	// The event did this already, unless the journal had to load anew. By now the
	// command may have another lease.
	if s.lives.get(one.taskID) == one {
		s.lives.drop(one.taskID)
	}
	s.watches.signal(one.taskID)
	s.floor.poke()
	return counted, nil
}

func leaseMessage(t *taskv1.Task, expires time.Time) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Lease{Lease: &taskv1.CommandLease{
		Task: t, LeaseGeneration: t.GetLeaseGeneration(), ExpiresAt: timestamppb.New(expires), OutputOffset: t.GetOutputBytes(),
	}}}
}

func stopMessage(taskID string, force bool) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Stop{Stop: &taskv1.CommandStop{TaskId: taskID, Force: force}}}
}

func inputMessage(p *taskv1.TaskInputAccepted) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Input{Input: &taskv1.CommandInput{
		TaskId: p.GetTaskId(), Data: p.GetData(), InputSeq: p.GetInputSeq(), EndOfInput: p.GetEndOfInput(),
	}}}
}

// staleMessage has a worker end a command whose lease is not its own any more;
// generation 0: under whichever lease.
func staleMessage(taskID string, generation int64) *taskv1.ConnectResponse {
	return ackMessage(taskID, generation, 0, true, true)
}

func ackMessage(taskID string, generation, bytes int64, ended, stale bool) *taskv1.ConnectResponse {
	return &taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Ack{Ack: &taskv1.ReportAck{
		TaskId: taskID, OutputBytes: bytes, Ended: ended, Stale: stale, LeaseGeneration: generation,
	}}}
}
