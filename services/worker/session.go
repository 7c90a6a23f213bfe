package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/retry"
)

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 5 * time.Second
	// steady is how long a stream must have lasted for the pauses between attempts to
	// begin with the shortest one again.
	steady = 10 * time.Second
)

type stream = grpc.BidiStreamingClient[taskv1.ConnectRequest, taskv1.ConnectResponse]

// session is one stream to the task plane. If the stream breaks, reports that were sent may be lost: only
// those that were acknowledged have certainly arrived, and the next session repeats the others.
type session struct {
	w      *Worker
	stream stream

	mu    sync.Mutex
	dirty map[*command]struct{} // commands with something to report
	// worktreeReports are sent once. A caller that misses one repeats its order.
	worktreeReports []*taskv1.WorktreeReport
	more            chan struct{} // capacity 1: there is something to send

	sent map[*command]*sentReports // only the goroutine of sendAll uses it
}

// sentReports is what was reported of a command in a session.
type sentReports struct {
	started, ended bool
	input          int64 // the last input that was confirmed
}

// connect keeps a session open until the worker stops. Its pauses are on the machine's clock, because
// they pace network connections.
func (w *Worker) connect() {
	pauses := retry.New(firstPause, maxPause)
	for w.ctx.Err() == nil {
		began := time.Now()
		err := w.serveSession()
		w.mu.Lock()
		w.session, w.lastErr = nil, err
		w.mu.Unlock()
		if w.ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			pauses.Reset()
		}
		w.cfg.Logger.Info("the stream to the task plane ended; connecting again", zap.Error(err))
		if errors.Is(err, fault.AlreadyExists) {
			// A newer process has this worker's id. The plane considers what runs here as
			// interrupted, so it must not continue.
			w.cfg.Logger.Error("another process took this worker's id", zap.Error(err))
			w.abandonAll()
			pauses = retry.New(maxPause, maxPause)
		}
		if pauses.Wait(w.ctx) != nil {
			return
		}
	}
}

// abandonAll kills all commands without reporting their ends.
func (w *Worker) abandonAll() {
	for _, id := range w.holding() {
		if c := w.command(id); c != nil {
			c.abandon()
		}
	}
}

// serveSession opens a session and serves it until the stream breaks.
func (w *Worker) serveSession() error {
	conn, err := w.cfg.Dial()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	s, err := taskv1.NewWorkerServiceClient(conn).Connect(ctx)
	if err != nil {
		return fault.From(err)
	}
	l := &session{
		w: w, stream: s, dirty: make(map[*command]struct{}), more: make(chan struct{}, 1),
		sent: make(map[*command]*sentReports),
	}
	hello := &taskv1.WorkerHello{
		WorkerId: w.cfg.ID, BootId: w.boot, Capacity: int32(w.cfg.Capacity),
		Labels: w.cfg.Labels, Pools: w.cfg.Pools, RunningTaskIds: w.holding(), Worktrees: true,
	}
	if err := s.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: hello}}); err != nil {
		return l.streamError(err)
	}
	// The header arrives once the plane has reconciled what this worker holds.
	if _, err := s.Header(); err != nil {
		return l.streamError(err)
	}
	w.mu.Lock()
	w.session, w.lastErr = l, nil
	for _, c := range w.commands {
		c.buf.Rewind()
		l.dirty[c] = struct{}{}
	}
	w.mu.Unlock()

	broken := make(chan error, 1)
	go func() {
		err := l.receive()
		cancel()
		broken <- err
	}()
	l.sendAll(ctx)
	cancel()
	// The receiver has the stream's status. Waiting for it also keeps it from acting on
	// messages of this session while the next hello is composed.
	return fault.From(<-broken)
}

// streamError returns the status with which the stream has ended, or err if there is none. A failed send
// does not return the status. The stream must have ended: otherwise streamError blocks until it ends.
func (l *session) streamError(err error) error {
	if _, status := l.stream.Recv(); status != nil {
		return fault.From(status)
	}
	return err
}

// mark records that a command has something to report. It never blocks.
func (l *session) mark(c *command) {
	l.mu.Lock()
	l.dirty[c] = struct{}{}
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// reportWorktree queues a report about a worktree. It never blocks.
func (l *session) reportWorktree(r *taskv1.WorktreeReport) {
	l.mu.Lock()
	l.worktreeReports = append(l.worktreeReports, r)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// sendAll sends reports and heartbeats until ctx ends or the stream breaks. Its
// heartbeats follow the machine's clock, as the leases that they renew do.
func (l *session) sendAll(ctx context.Context) {
	heartbeat := time.NewTicker(l.w.cfg.Heartbeat)
	defer heartbeat.Stop()
	for {
		l.mu.Lock()
		dirty := l.dirty
		l.dirty = make(map[*command]struct{})
		reports := l.worktreeReports
		l.worktreeReports = nil
		l.mu.Unlock()
		for _, r := range reports {
			if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Worktree{Worktree: r}}) {
				return
			}
		}
		for c := range dirty {
			if !l.flush(c) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-l.more:
		case <-heartbeat.C:
			ids := l.w.holding()
			if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Heartbeat{
				Heartbeat: &taskv1.WorkerHeartbeat{RunningTaskIds: ids},
			}}) {
				return
			}
			l.prune()
		}
	}
}

// prune forgets what was reported of commands that the worker has forgotten.
func (l *session) prune() {
	for c := range l.sent {
		if l.w.command(c.task.GetTaskId()) != c {
			delete(l.sent, c)
		}
	}
}

// send sends a message, and reports false if the stream broke. Only one goroutine may call it.
func (l *session) send(m *taskv1.ConnectRequest) bool { return l.stream.Send(m) == nil }

// flush sends the reports of a command that were not sent in this session: its start, which input was
// written, output, and, after all output, its end. It returns false if the stream broke.
func (l *session) flush(c *command) bool {
	t := l.sent[c]
	if t == nil {
		t = &sentReports{}
		l.sent[c] = t
	}
	id := c.task.GetTaskId()
	c.mu.Lock()
	started, ended, input := c.started, c.ended, c.wroteSeq
	c.mu.Unlock()
	if started && !t.started {
		t.started = true
		if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Started{
			Started: &taskv1.CommandStarted{TaskId: id, LeaseGeneration: c.gen},
		}}) {
			return false
		}
	}
	if input > t.input {
		t.input = input
		if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_InputTaken{
			InputTaken: &taskv1.CommandInputTaken{TaskId: id, LeaseGeneration: c.gen, InputSeq: input},
		}}) {
			return false
		}
	}
	for _, chunk := range c.buf.Next() {
		if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Output{
			Output: &taskv1.CommandOutput{TaskId: id, LeaseGeneration: c.gen, Chunk: chunk},
		}}) {
			return false
		}
	}
	if ended != nil && !t.ended {
		t.ended = true
		return l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Ended{Ended: ended}})
	}
	return true
}

// receive handles the messages of the task plane, in order, until the stream ends.
func (l *session) receive() error {
	for {
		m, err := l.stream.Recv()
		if err != nil {
			return err
		}
		switch r := m.GetMessage().(type) {
		case *taskv1.ConnectResponse_Lease:
			l.w.accept(r.Lease)
		case *taskv1.ConnectResponse_Stop:
			if c := l.w.command(r.Stop.GetTaskId()); c != nil {
				c.stop(causeStopped, r.Stop.GetForce())
			}
		case *taskv1.ConnectResponse_Input:
			if c := l.w.command(r.Input.GetTaskId()); c != nil {
				c.input(r.Input)
			}
		case *taskv1.ConnectResponse_Worktree:
			l.w.order(r.Worktree)
		case *taskv1.ConnectResponse_Ack:
			l.acknowledged(r.Ack)
		}
	}
}

// acknowledged handles an acknowledgement: of output, of an end, or that the lease
// of a command is not this worker's any more.
func (l *session) acknowledged(a *taskv1.ReportAck) {
	c := l.w.command(a.GetTaskId())
	switch {
	case c == nil, a.GetLeaseGeneration() != 0 && a.GetLeaseGeneration() != c.gen:
	case a.GetStale():
		c.abandon()
	case a.GetEnded():
		l.w.forget(c)
	default:
		c.buf.Acknowledge(a.GetOutputBytes())
	}
}
