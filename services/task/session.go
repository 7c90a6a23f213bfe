package task

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// maxBehind bounds the reports of one command that wait to be stored. A worker
// has a window of a few chunks, so only a broken one gets there.
const maxBehind = 4096

// beat is the lane of heartbeats; no task has an empty id.
const beat = ""

// session is one stream of one worker. Reports of one command are handled in
// order; those of different commands side by side, so that one slow append
// delays nobody else.
type session struct {
	s        *Service
	actor    journal.Actor
	worker   model.WorkerKey
	bootID   string
	capacity int
	pools    []string
	labels   map[string]string
	ready    bool // guarded by floor.mu
	forester bool // it makes worktrees

	ctx context.Context //nolint:containedctx // the session is what ends with it
	end context.CancelCauseFunc

	mu     sync.Mutex
	outbox []*taskv1.ConnectResponse
	more   chan struct{} // capacity 1
	lanes  map[string][]*taskv1.ConnectRequest
	closed bool
	busy   sync.WaitGroup
}

func newSession(ctx context.Context, s *Service, actor journal.Actor, key model.WorkerKey, hello *taskv1.WorkerHello) *session {
	se := &session{
		s: s, actor: actor, worker: key, bootID: hello.GetBootId(), capacity: int(hello.GetCapacity()), forester: hello.GetWorktrees(),
		pools: hello.GetPools(), labels: hello.GetLabels(),
		more: make(chan struct{}, 1), lanes: make(map[string][]*taskv1.ConnectRequest),
	}
	se.ctx, se.end = context.WithCancelCause(ctx)
	return se
}

// close ends the session and waits for the reports that are being stored.
func (se *session) close() {
	se.end(context.Canceled)
	se.mu.Lock()
	se.closed = true
	se.mu.Unlock()
	se.busy.Wait()
}

func errReplaced(by *session) error {
	return fault.Cancelled.New("worker " + by.worker.ID + " connected again; this stream is not used any more")
}

// send queues a message for the worker. It never blocks: what is queued is
// bounded by what the worker holds.
func (se *session) send(m *taskv1.ConnectResponse) {
	se.mu.Lock()
	se.outbox = append(se.outbox, m)
	se.mu.Unlock()
	select {
	case se.more <- struct{}{}:
	default:
	}
}

func (se *session) sendTo(stream grpc.ServerStreamingServer[taskv1.ConnectResponse]) {
	for {
		se.mu.Lock()
		batch := se.outbox
		se.outbox = nil
		se.mu.Unlock()
		for _, m := range batch {
			if err := stream.Send(m); err != nil {
				se.end(err)
				return
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-se.more:
		case <-se.ctx.Done():
			return
		}
	}
}

func (se *session) receiveFrom(stream grpc.BidiStreamingServer[taskv1.ConnectRequest, taskv1.ConnectResponse]) {
	for {
		m, err := stream.Recv()
		if err == nil {
			err = se.take(m)
		}
		if err != nil {
			se.end(err)
			return
		}
	}
}

// take puts a report into the lane of its command.
func (se *session) take(m *taskv1.ConnectRequest) error {
	lane := beat
	switch r := m.GetMessage().(type) {
	case *taskv1.ConnectRequest_Started:
		lane = r.Started.GetTaskId()
	case *taskv1.ConnectRequest_Output:
		lane = r.Output.GetTaskId()
	case *taskv1.ConnectRequest_Ended:
		lane = r.Ended.GetTaskId()
	case *taskv1.ConnectRequest_InputTaken:
		lane = r.InputTaken.GetTaskId()
	case *taskv1.ConnectRequest_Worktree:
		se.s.errands.tell(r.Worktree)
		return nil
	case *taskv1.ConnectRequest_Heartbeat:
		// The terms begin anew here and not in the lane: a heartbeat must not
		// wait for the journal.
		for _, id := range r.Heartbeat.GetRunningTaskIds() {
			if one := se.s.lives.get(id); one != nil && one.worker == se.worker {
				se.s.renew(one)
			}
		}
	default:
		return fault.InvalidArgument.New("a worker says hello once, and then only reports").WithField("message", "must be a report")
	}
	if lane == beat && m.GetHeartbeat() == nil {
		return fault.InvalidArgument.New("a report without task_id").WithField("task_id", "is required")
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	waiting, running := se.lanes[lane]
	switch {
	case se.closed:
		return context.Canceled
	case len(waiting) >= maxBehind:
		return fault.Overloaded.New("too many reports of task " + lane + " wait to be stored; wait for acknowledgements")
	}
	se.lanes[lane] = append(waiting, m)
	if !running {
		se.busy.Go(func() { se.work(lane) })
	}
	return nil
}

// work handles a lane until it is empty. A report that could not be stored
// ends the session: the worker connects again and repeats it.
func (se *session) work(lane string) {
	for {
		se.mu.Lock()
		waiting := se.lanes[lane]
		if len(waiting) == 0 || se.ctx.Err() != nil {
			delete(se.lanes, lane)
			se.mu.Unlock()
			return
		}
		m := waiting[0]
		se.lanes[lane] = waiting[1:]
		se.mu.Unlock()
		if err := se.handle(m); err != nil {
			se.end(err)
		}
	}
}

func (se *session) handle(m *taskv1.ConnectRequest) error {
	switch r := m.GetMessage().(type) {
	case *taskv1.ConnectRequest_Heartbeat:
		return se.s.heartbeat(se, r.Heartbeat.GetRunningTaskIds())
	case *taskv1.ConnectRequest_Started:
		if one := se.lease(r.Started); one != nil {
			se.s.renew(one)
		}
	case *taskv1.ConnectRequest_InputTaken:
		if one := se.lease(r.InputTaken); one != nil {
			se.s.lives.confirm(one, r.InputTaken.GetInputSeq())
		}
	case *taskv1.ConnectRequest_Output:
		return se.output(r.Output)
	case *taskv1.ConnectRequest_Ended:
		return se.ended(r.Ended)
	}
	return nil
}

// report is what every report of a command says.
type report interface {
	GetTaskId() string
	GetLeaseGeneration() int64
}

// lease gives the lease under which a report was made, or nil if it is not
// this worker's any more; the worker is told.
func (se *session) lease(r report) *lease {
	one := se.s.lives.get(r.GetTaskId())
	if one == nil || one.worker != se.worker || one.generation != r.GetLeaseGeneration() {
		se.send(staleMessage(r.GetTaskId(), r.GetLeaseGeneration()))
		return nil
	}
	return one
}

func (se *session) output(r *taskv1.CommandOutput) error {
	chunk := r.GetChunk()
	if n := len(chunk.GetData()); n > output.MaxChunk || chunk.GetOffset() < 0 {
		return fault.LimitExceeded.Newf("output of task %s: %d bytes at offset %d; a chunk has at most %d", r.GetTaskId(), n, chunk.GetOffset(), output.MaxChunk)
	}
	one := se.lease(r)
	if one == nil {
		return nil
	}
	one.write.Lock()
	defer one.write.Unlock()
	if one.ended {
		se.send(staleMessage(one.taskID, one.generation))
		return nil
	}
	end, err := se.s.output.Append(se.ctx, one.namespace, one.taskID, chunk)
	if err != nil {
		return err
	}
	se.s.lives.stored(one, end)
	se.s.renew(one)
	se.s.watches.signal(one.taskID)
	se.send(ackMessage(one.taskID, one.generation, end, false, false))
	return nil
}

func (se *session) ended(r *taskv1.CommandEnded) error {
	one := se.lease(r)
	if one == nil {
		return nil
	}
	reason, message := rules.CheckedReason(r)
	if reason == rules.ReasonWorkerStopped { // it takes nothing any more, least of all this command again
		se.s.floor.shut(se)
	}
	actor := se.actor
	actor.Namespace = one.namespace
	counted, err := se.s.end(se.ctx, one, actor, rules.End{ExitCode: r.ExitCode, Reason: reason, Message: message})
	if err != nil {
		return err
	}
	se.send(ackMessage(one.taskID, one.generation, r.GetOutputBytes(), true, !counted))
	return nil
}
