package task

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// maxCapacity bounds what a worker may announce.
const maxCapacity = 10_000

// maxPools bounds how many pools one worker joins.
const maxPools = 100

// Connect holds a worker's one stream (SPEC T4). A worker of a tenant takes
// the commands of its namespace; one with a service's credential those of all.
func (s *Service) Connect(stream grpc.BidiStreamingServer[taskv1.ConnectRequest, taskv1.ConnectResponse]) error {
	ctx := stream.Context()
	if err := rpc.RequireRole(ctx, rpc.RoleWorker, rpc.RoleAdmin, rpc.RoleService); err != nil {
		return err
	}
	actor := journal.Actor(rpc.ActorFrom(ctx))
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := checkHello(hello); err != nil {
		return err
	}
	key := model.WorkerKey{Namespace: actor.Namespace, ID: hello.GetWorkerId()}
	if actor.Role == rpc.RoleService {
		key.Namespace = ""
	}
	se := newSession(ctx, s, actor, key, hello)
	defer se.close()
	if !s.floor.join(se) {
		return fault.AlreadyExists.New("worker "+key.ID+" was taken over by a newer process; this one must end, or take another worker id",
			"worker_id", key.ID, "boot_id", hello.GetBootId())
	}
	defer s.floor.leave(se)
	if err := s.welcome(se, hello); err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil { // tells the worker that its hello is settled
		return err
	}
	go se.sendTo(stream)
	s.floor.open(se)
	go se.receiveFrom(stream)
	select {
	case <-se.ctx.Done():
		if err := context.Cause(se.ctx); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	case <-s.quit:
		return fault.NotReady.New("the task service is stopping; connect again")
	}
}

func checkHello(h *taskv1.WorkerHello) error {
	if h == nil {
		return fault.InvalidArgument.New("the first message of a worker must be hello").WithField("hello", "is required")
	}
	if err := fault.Name("hello.worker_id", h.GetWorkerId()); err != nil {
		return err
	}
	if err := fault.Name("hello.boot_id", h.GetBootId()); err != nil {
		return err
	}
	if c := h.GetCapacity(); c < 0 || c > maxCapacity {
		return fault.LimitExceeded.Newf("hello.capacity is %d; it must be 0 to %d", c, maxCapacity).
			WithField("hello.capacity", "must be 0 to 10000")
	}
	for _, pool := range h.GetPools() {
		if err := fault.Name("hello.pools", pool); err != nil {
			return err
		}
	}
	if err := fault.Entries("hello.pools", len(h.GetPools()), maxPools); err != nil {
		return err
	}
	return rules.CheckLabels("hello.labels", h.GetLabels())
}

// welcome settles what a worker that (re)connects holds: what an earlier life
// of it ran is interrupted at once, what it never heard of is said again.
func (s *Service) welcome(se *session, hello *taskv1.WorkerHello) error {
	held, err := s.heldBy(se)
	if err != nil {
		return err
	}
	for _, h := range held {
		one := s.lives.get(h.Task.GetTaskId())
		if one == nil {
			continue // it ended meanwhile
		}
		knows := slices.Contains(hello.GetRunningTaskIds(), h.Task.GetTaskId())
		var end rules.End
		switch {
		case knows:
			s.remind(se, one, h)
			continue
		case h.Task.GetWorkerBootId() != se.bootID:
			end = rules.End{Reason: rules.ReasonWorkerLost, Message: "worker " + se.worker.ID + " was started anew and the command with its former life is gone"}
		case h.Task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING:
			end = rules.End{Reason: rules.ReasonStopped, Message: "stopped before the worker heard of it"}
		default: // the lease was lost on its way
			s.renew(one)
			se.send(leaseMessage(h.Task, s.lives.expiry(one)))
			s.remind(se, one, h)
			continue
		}
		if _, err := s.end(se.ctx, one, *plane.System(h.Namespace), end); err != nil {
			return err
		}
	}
	s.disown(se, hello.GetRunningTaskIds(), held)
	return nil
}

// heartbeat keeps the leases of what a worker runs, and says again whatever
// did not reach it. It writes no journal line (SPEC X12).
func (s *Service) heartbeat(se *session, ids []string) error {
	held, err := s.heldBy(se)
	if err != nil {
		return err
	}
	for _, h := range held {
		one := s.lives.get(h.Task.GetTaskId())
		if one == nil {
			continue
		}
		if !slices.Contains(ids, h.Task.GetTaskId()) {
			// Not renewed: the lease lapses unless the worker comes to know it.
			// It ignores what it has heard before.
			se.send(leaseMessage(h.Task, s.lives.expiry(one)))
		}
		s.remind(se, one, h)
	}
	s.disown(se, ids, held)
	return nil
}

// heldBy gives what a worker holds as the journal has it, each with a lease.
func (s *Service) heldBy(se *session) ([]model.HeldTask, error) {
	var all []model.HeldTask
	for _, p := range s.engine.All() {
		held, _, err := journal.View(se.ctx, p, func(st *model.State) ([]model.HeldTask, error) { return st.HeldTasks(&se.worker), nil })
		if err != nil {
			return nil, err
		}
		for _, h := range held {
			if s.lives.get(h.Task.GetTaskId()) == nil { // the journal had to load anew
				s.lives.arm(h.Namespace, h.Worker, h.Task, p.StallTotal())
			}
		}
		all = append(all, held...)
	}
	return all, nil
}

// remind repeats input that the worker has not confirmed, and a stop.
func (s *Service) remind(se *session, one *lease, h model.HeldTask) {
	confirmed := s.lives.confirmed(one)
	for _, in := range h.Inputs {
		if in.GetInputSeq() > confirmed {
			se.send(inputMessage(in))
		}
	}
	if h.Task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING {
		se.send(stopMessage(h.Task.GetTaskId(), h.Forced))
	}
}

// disown tells a worker of commands that are not its own any more.
func (s *Service) disown(se *session, ids []string, held []model.HeldTask) {
	for _, id := range ids {
		mine := func(h model.HeldTask) bool { return h.Task.GetTaskId() == id }
		if !slices.ContainsFunc(held, mine) {
			se.send(staleMessage(id, 0))
		}
	}
}

// renew gives a lease a new term.
func (s *Service) renew(one *lease) {
	s.lives.renew(one, s.engine.For(one.namespace, one.agent).StallTotal())
}
