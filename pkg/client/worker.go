package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/id"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	defaultCapacity = 4
	// defaultHeartbeat is a third of a command's lease.
	defaultHeartbeat = 10 * time.Second
	// reportTerm bounds how long a worker that stops waits until its ends are stored.
	reportTerm = 10 * time.Second
	// formerMax bounds how many commands are remembered after their end is stored, so that
	// a lease that arrives again starts nothing.
	formerMax = 10_000
)

// WorkerOptions configure a worker.
type WorkerOptions struct {
	// ID is the permanent name of the worker. Two running processes must not share one.
	ID string
	// Capacity is how many commands run at once. Default 4.
	Capacity int
	// Labels are shown with the worker, and commands can require them.
	Labels map[string]string
	// Heartbeat is the period in which leases are renewed. Default 10 s.
	Heartbeat time.Duration
	// Troubled is called with the error of each lost or failed connection, after which the worker
	// connects again. Optional.
	Troubled func(error)
}

// CommandHandler runs a command. Its ctx ends with ErrStopped when the task is stopped or its
// lease was lost, with ErrTimeout at the command's timeout, which is one hour if it has none,
// and with ErrStopping when the worker stops. The command ends with exit code 0 if the handler returns
// nil, with that of an *ExitError, and for any other error with 1 and the error, cut to 1000 bytes, as
// message. If the handler returns an error after ctx has ended, the command has no exit code: it is
// reported as stopped, timed out or interrupted, by the cause of ctx.
type CommandHandler func(ctx context.Context, c *Command) error

// RunWorker leases commands and calls handle with each, until ctx ends (SPEC T4). Output and
// ends are kept until the task plane has stored them, and sent again after a lost connection;
// writes of a handler that is faster than that block. When ctx ends, handlers are cancelled
// and their commands reported as interrupted; RunWorker waits at most 10 s until that is stored,
// and for the handlers to return. It returns an error if the server refuses the worker, and nil
// after the end of ctx.
func (c *Client) RunWorker(ctx context.Context, opts WorkerOptions, handle CommandHandler) error {
	if opts.Capacity <= 0 {
		opts.Capacity = defaultCapacity
	}
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = defaultHeartbeat
	}
	if opts.Troubled == nil {
		opts.Troubled = func(error) {}
	}
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &workerLoop{
		client: c, opts: opts, handle: handle, life: life, boot: id.New().New("boot_"),
		commands: map[string]*Command{}, seen: map[string]int64{}, more: make(chan struct{}, 1),
		idle: make(chan struct{}, 1),
	}
	ended := make(chan error, 1)
	go func() { ended <- linked(life, w.once, opts.Troubled) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		w.drain()
	}
	w.stopAll(ErrStopping)
	end(ErrStopping)
	if err == nil {
		err = <-ended
	}
	w.abandonAll()
	w.running.Wait()
	return err
}

// workerLoop is one call of RunWorker.
type workerLoop struct {
	client *Client
	opts   WorkerOptions
	handle CommandHandler
	life   context.Context //nolint:containedctx // of the commands, which outlive streams
	boot   string

	mu       sync.Mutex
	commands map[string]*Command // by task id, until the end is stored
	seen     map[string]int64    // newest lease generation by task id; a repeated lease starts nothing
	former   []string            // tasks in seen whose commands were removed, oldest first
	stopping bool
	running  sync.WaitGroup // grows under mu, and not once stopping

	more chan struct{} // capacity 1: a command has something to send
	idle chan struct{} // capacity 1: a command was removed
}

type workerStream = grpc.BidiStreamingClient[taskv1.ConnectRequest, taskv1.ConnectResponse]

// once opens a stream and serves it until it fails. What the server has not confirmed on earlier streams is sent
// again. Commands go on when the stream fails, and are cancelled when ctx ends, which must be w.life.
func (w *workerLoop) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := w.client.Workers.Connect(ctx)
	if err != nil {
		return err
	}
	hello := &taskv1.WorkerHello{
		WorkerId: w.opts.ID, BootId: w.boot, Capacity: int32(min(w.opts.Capacity, 1<<30)),
		Labels: w.opts.Labels, RunningTaskIds: w.holding(),
	}
	if err := s.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: hello}}); err != nil {
		return why(s, err)
	}
	if _, err := s.Header(); err != nil { // sent by the server when it has accepted the hello
		return why(s, err)
	}
	for _, c := range w.all() {
		c.rewind()
	}
	broken := make(chan error, 1)
	go func() {
		err := w.receive(s)
		cancel()
		broken <- err
	}()
	w.sendAll(ctx, s)
	cancel()
	return <-broken // the receiver returns the error, and ends before the next hello
}

// why returns the status with which a stream has ended, or err if there is none. A failed send returns
// only io.EOF.
func why(s workerStream, err error) error {
	if _, status := s.Recv(); status != nil {
		return status
	}
	return err
}

// sendAll sends what commands report, which is their start, the input they took, their output and their
// end, and heartbeats. It returns when ctx ends or a message cannot be sent.
func (w *workerLoop) sendAll(ctx context.Context, s workerStream) {
	tick := time.NewTicker(w.opts.Heartbeat)
	defer tick.Stop()
	for {
		for _, c := range w.all() {
			for _, m := range c.unsent() {
				if s.Send(m) != nil {
					return
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-w.more:
		case <-tick.C:
			m := &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Heartbeat{
				Heartbeat: &taskv1.WorkerHeartbeat{RunningTaskIds: w.holding()},
			}}
			if s.Send(m) != nil {
				return
			}
		}
	}
}

func (w *workerLoop) receive(s workerStream) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		switch r := m.GetMessage().(type) {
		case *taskv1.ConnectResponse_Lease:
			w.accept(r.Lease)
		case *taskv1.ConnectResponse_Stop:
			if c := w.find(r.Stop.GetTaskId()); c != nil {
				c.cancel(ErrStopped)
			}
		case *taskv1.ConnectResponse_Input:
			if c := w.find(r.Input.GetTaskId()); c != nil {
				c.input.take(r.Input)
				w.wake()
			}
		case *taskv1.ConnectResponse_Ack:
			w.acknowledged(r.Ack)
		}
	}
}

// accept starts a leased command, unless it was started under this lease or a newer one, or the
// worker is stopping. If the command runs under an older lease, that lease was lost, and accept abandons
// the run.
func (w *workerLoop) accept(lease *taskv1.CommandLease) {
	taskID := lease.GetTask().GetTaskId()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping || w.seen[taskID] >= lease.GetLeaseGeneration() {
		return
	}
	if before := w.commands[taskID]; before != nil { // under a lease that was lost
		before.abandon()
	}
	c := newCommand(w.life, lease, w.wake)
	w.seen[taskID], w.commands[taskID] = lease.GetLeaseGeneration(), c
	w.running.Go(func() { c.run(w.handle) })
}

func (w *workerLoop) acknowledged(a *taskv1.ReportAck) {
	c := w.find(a.GetTaskId())
	switch {
	case c == nil, a.GetLeaseGeneration() != 0 && a.GetLeaseGeneration() != c.gen:
	case a.GetStale():
		c.abandon()
		w.forget(a.GetTaskId())
	case a.GetEnded():
		w.forget(a.GetTaskId())
	default:
		c.acknowledge(a.GetOutputBytes())
	}
}

func (w *workerLoop) forget(taskID string) {
	w.mu.Lock()
	delete(w.commands, taskID)
	if w.former = append(w.former, taskID); len(w.former) > formerMax {
		delete(w.seen, w.former[0])
		w.former = w.former[1:]
	}
	w.mu.Unlock()
	signal(w.idle)
}

// drain cancels the commands with ErrStopping, and waits until the server has confirmed the ends of all, but for
// at most reportTerm.
func (w *workerLoop) drain() {
	w.stopAll(ErrStopping)
	drained(func() int { return len(w.all()) }, w.idle)
}

func (w *workerLoop) stopAll(cause error) {
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	for _, c := range w.all() {
		c.cancel(cause)
	}
}

func (w *workerLoop) abandonAll() {
	for _, c := range w.all() {
		c.abandon()
	}
}

func (w *workerLoop) wake() { signal(w.more) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *workerLoop) find(taskID string) *Command {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commands[taskID]
}

func (w *workerLoop) all() []*Command {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*Command, 0, len(w.commands))
	for _, c := range w.commands {
		out = append(out, c)
	}
	return out
}

func (w *workerLoop) holding() []string {
	var ids []string
	for _, c := range w.all() {
		ids = append(ids, c.Task.GetTaskId())
	}
	return ids
}
