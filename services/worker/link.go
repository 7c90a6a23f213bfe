package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 5 * time.Second
	// steady is how long a stream must have lasted for the next attempt to
	// come at once.
	steady = 10 * time.Second
)

type stream = grpc.BidiStreamingClient[taskv1.ConnectRequest, taskv1.ConnectResponse]

// link is one stream to the task plane. What was sent on it says nothing about
// what arrived; only acknowledgements count, and a new link repeats the rest.
type link struct {
	w      *Worker
	stream stream

	mu    sync.Mutex
	dirty map[*command]struct{}
	// reports are those about worktrees. They are sent once: who misses one asks again.
	reports []*taskv1.WorktreeReport
	more    chan struct{} // capacity 1

	told map[*command]*told // used by the sender alone
}

// told is what a command's server was told on this link.
type told struct {
	started, ended bool
	input          int64
}

// connect keeps a link open until the worker stops.
func (w *Worker) connect() {
	pause := firstPause
	for w.ctx.Err() == nil {
		began := time.Now()
		err := w.once()
		w.mu.Lock()
		w.link, w.lastErr = nil, err
		w.mu.Unlock()
		if w.ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			pause = firstPause
		}
		if errors.Is(err, fault.AlreadyExists) {
			// A newer process has this worker's id: what runs here was
			// interrupted and must not go on beside it.
			w.cfg.Logger.Error("another process took this worker's id", zap.Error(err))
			w.abandonAll()
			pause = maxPause
		}
		w.cfg.Logger.Info("the task plane cannot be reached, trying again", zap.Duration("pause", pause), zap.Error(err))
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-w.ctx.Done():
		}
		timer.Stop()
		pause = min(pause*2, maxPause)
	}
}

func (w *Worker) abandonAll() {
	for _, id := range w.holding() {
		if c := w.command(id); c != nil {
			c.abandon()
		}
	}
}

// once opens a link and serves it until it breaks.
func (w *Worker) once() error {
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
	l := &link{w: w, stream: s, dirty: make(map[*command]struct{}), more: make(chan struct{}, 1), told: make(map[*command]*told)}
	hello := &taskv1.WorkerHello{
		WorkerId: w.cfg.ID, BootId: w.boot, Capacity: int32(w.cfg.Capacity), //nolint:gosec // a worker runs no two billion commands
		Labels: w.cfg.Labels, Pools: w.cfg.Pools, RunningTaskIds: w.holding(), Worktrees: true,
	}
	if err := s.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: hello}}); err != nil {
		return l.why(err)
	}
	if _, err := s.Header(); err != nil { // comes once the hello is settled
		return l.why(err)
	}
	w.mu.Lock()
	w.link, w.lastErr = l, nil
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
	return fault.From(<-broken) // the receiver knows why; and it ends before the next hello is composed
}

// why prefers the status of a stream over the EOF of a send.
func (l *link) why(err error) error {
	if _, status := l.stream.Recv(); status != nil {
		return fault.From(status)
	}
	return err
}

// mark notes that a command has something to say. It never blocks.
func (l *link) mark(c *command) {
	l.mu.Lock()
	l.dirty[c] = struct{}{}
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// report has a report about a worktree sent. It never blocks.
func (l *link) report(r *taskv1.WorktreeReport) {
	l.mu.Lock()
	l.reports = append(l.reports, r)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// sendAll sends what commands have to say, and heartbeats, until ctx ends or
// the stream breaks.
func (l *link) sendAll(ctx context.Context) {
	beat := time.NewTicker(l.w.cfg.Heartbeat)
	defer beat.Stop()
	for {
		l.mu.Lock()
		dirty := l.dirty
		l.dirty = make(map[*command]struct{})
		reports := l.reports
		l.reports = nil
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
		case <-beat.C:
			ids := l.w.holding()
			if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Heartbeat{Heartbeat: &taskv1.WorkerHeartbeat{RunningTaskIds: ids}}}) {
				return
			}
			l.prune()
		}
	}
}

// prune forgets what was told of commands that are gone.
func (l *link) prune() {
	for c := range l.told {
		if l.w.command(c.task.GetTaskId()) != c {
			delete(l.told, c)
		}
	}
}

func (l *link) send(m *taskv1.ConnectRequest) bool { return l.stream.Send(m) == nil }

// flush sends what a command has to say and was not said on this link: the end
// after all output.
func (l *link) flush(c *command) bool {
	t := l.told[c]
	if t == nil {
		t = &told{}
		l.told[c] = t
	}
	id := c.task.GetTaskId()
	c.mu.Lock()
	started, ended, input := c.started, c.ended, c.wroteSeq
	c.mu.Unlock()
	if started && !t.started {
		t.started = true
		if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Started{Started: &taskv1.CommandStarted{TaskId: id, LeaseGeneration: c.gen}}}) {
			return false
		}
	}
	if input > t.input {
		t.input = input
		if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_InputTaken{InputTaken: &taskv1.CommandInputTaken{TaskId: id, LeaseGeneration: c.gen, InputSeq: input}}}) {
			return false
		}
	}
	for _, chunk := range c.buf.Next() {
		if !l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Output{Output: &taskv1.CommandOutput{TaskId: id, LeaseGeneration: c.gen, Chunk: chunk}}}) {
			return false
		}
	}
	if ended != nil && !t.ended {
		t.ended = true
		return l.send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Ended{Ended: ended}})
	}
	return true
}

// receive acts on what the task plane says, in order.
func (l *link) receive() error {
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

func (l *link) acknowledged(a *taskv1.ReportAck) {
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
