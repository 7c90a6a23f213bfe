package worker

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/spool"
	"quartet/pkg/tracing"
	"quartet/pkg/utf8cut"
)

// Reasons for which the worker ends a command.
const (
	causeMemory        = taskv1.TaskEndReason_TASK_END_REASON_MEMORY_LIMIT_EXCEEDED
	causeProcesses     = taskv1.TaskEndReason_TASK_END_REASON_PROCESS_LIMIT_EXCEEDED
	causeOutput        = taskv1.TaskEndReason_TASK_END_REASON_OUTPUT_LIMIT_EXCEEDED
	causeStopped       = taskv1.TaskEndReason_TASK_END_REASON_STOPPED
	causeTimeout       = taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT
	causeWorkerStopped = taskv1.TaskEndReason_TASK_END_REASON_WORKER_STOPPED
)

// outputDelay is how long output waits for more output before it is sent.
const outputDelay = 50 * time.Millisecond

// command is one leased command, from its lease until its end is acknowledged. Its
// timers follow the machine's clock, as the processes that they end do.
type command struct {
	w      *Worker
	task   *taskv1.Task
	gen    int64 // generation of the lease
	buf    *spool.Buffer
	limits limits
	// namespace is the namespace of the task. With the task's agent it identifies the sandbox.
	namespace string
	sandbox   *confine.Sandbox // nil if commands are not confined
	leave     func()           // leaves the sandbox; nil if the command is in none

	prev *command      // the same task's command under an earlier lease; run first waits for its end
	done chan struct{} // closed when run returned: no process of the command is left

	mu        sync.Mutex
	proc      *process             // nil before it was spawned and after it was reaped
	exited    bool                 // the process has ended, or will not be spawned: stop has no effect any more
	cause     taskv1.TaskEndReason // why the worker ended it, if it did; the first reason counts
	written   int64                // bytes of output, for the limit
	detail    string               // which limit was exceeded and by how much
	killer    *time.Timer
	flusher   *time.Timer
	inputs    []*taskv1.CommandInput // accepted and not yet written
	lastSeq   int64                  // sequence number of the last input accepted
	wroteSeq  int64                  // sequence number of the last input written
	moreInput chan struct{}          // capacity 1: inputs is not empty
	started   bool                   // the process was spawned
	ended     *taskv1.CommandEnded   // its end, as it is reported; nil before
}

// newCommand returns the command of a lease, which run executes. prev is the same task's command under an earlier
// lease, for whose end run waits; nil: there is none.
func newCommand(w *Worker, l *taskv1.CommandLease, prev *command) *command {
	return &command{
		w: w, namespace: l.GetNamespace(), task: l.GetTask(), gen: l.GetLeaseGeneration(), prev: prev,
		limits: w.limitsOf(l.GetTask()),
		buf:    spool.NewAt(l.GetOutputOffset()), done: make(chan struct{}), moreInput: make(chan struct{}, 1),
	}
}

// run runs the command and reports its end. When it returns, no process of the
// command is left, in whatever way the command ended.
func (c *command) run() {
	defer close(c.done)
	defer func() {
		if c.leave != nil {
			c.leave()
		}
	}()
	defer c.endSpan(c.w.cfg.Tracer.Under(context.Background(), c.task.GetTraceparent(), "command",
		trace.WithSpanKind(trace.SpanKindConsumer)))
	if c.prev != nil {
		<-c.prev.done
		c.prev = nil
	}
	p, err := c.spawn()
	if err != nil {
		c.finish(&taskv1.CommandEnded{Reason: taskv1.TaskEndReason_TASK_END_REASON_SPAWN_FAILED, Message: err.Error()})
		return
	}
	if p == nil { // stopped before it was started
		c.finish(c.result(0, false))
		return
	}
	c.w.markDirty(c)
	limit := time.AfterFunc(c.task.GetCommand().GetTimeout().AsDuration(), func() { c.stop(causeTimeout, false) })
	var reading sync.WaitGroup
	for _, out := range p.outputs {
		reading.Go(func() { c.read(p, out) })
	}
	var writing sync.WaitGroup
	if p.stdin != nil {
		writing.Go(func() { c.write(p) })
	}

	unmonitor := c.w.monitor.add(c, p.mark)
	p.awaitExit()
	unmonitor()
	limit.Stop()
	c.mu.Lock()
	c.exited = true
	c.mu.Unlock()
	// A grandchild may hold the pipe open. Its output is read for a moment more, then
	// the process group is killed, so that nothing of the command runs on.
	p.beginDrain(c.w.cfg.Drain)
	drained := make(chan struct{})
	go func() {
		reading.Wait()
		close(drained)
	}()
	drainTimer := time.NewTimer(c.w.cfg.Drain)
	select {
	case <-drained:
	case <-drainTimer.C:
	}
	drainTimer.Stop()
	p.signal(unix.SIGKILL)
	// Kill processes that have left the group as well (SPEC T6).
	if err := p.endTree(context.Background(), c.w.host); err != nil {
		c.w.cfg.Logger.With(tracing.FieldsOf(c.task.GetTraceparent())...).
			Warn("processes of an ended command could not be killed", zap.String("task_id", c.task.GetTaskId()),
				zap.Error(err))
	}
	<-drained
	c.mu.Lock()
	c.proc = nil // once it is reaped, its process group number may be reused
	if c.killer != nil {
		c.killer.Stop()
	}
	c.mu.Unlock()
	status := p.reap()
	writing.Wait()
	c.finish(c.result(status, true))
}

// spawn starts the process. If the command was stopped before, it starts none and returns nil and a nil error.
func (c *command) spawn() (*process, error) {
	space, err := c.w.workspaceOf(c.namespace, c.task.GetAgentId())
	if err != nil {
		return nil, err
	}
	dir, err := c.w.workdir(space, c.task.GetCommand().GetWorkdir())
	if err != nil {
		return nil, err
	}
	c.sandbox, c.leave, err = c.w.sandboxes.Enter(c.namespace+"/"+c.task.GetAgentId(), space)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != 0 {
		c.exited = true
		return nil, nil
	}
	p, err := c.w.start(c.sandbox, c.task.GetCommand(), dir, c.w.environ(space, c.task, c.sandbox))
	if err != nil {
		c.exited = true
		return nil, fmt.Errorf("command_spawn_failed: %w", err)
	}
	c.proc, c.started = p, true
	return p, nil
}

// stop ends the process group (SPEC T3): with TERM and, after the grace period,
// KILL; with force, with KILL at once. The first cause counts, and a further stop has an
// effect only with force. A command that is not spawned yet will not be spawned. A command whose
// process has ended is not affected. stop does not wait for the end.
func (c *command) stop(cause taskv1.TaskEndReason, force bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopLocked(cause, force)
}

// stopLocked is stop for callers that hold mu.
func (c *command) stopLocked(cause taskv1.TaskEndReason, force bool) {
	if c.exited {
		return
	}
	first := c.cause == 0
	if first {
		c.cause = cause
	}
	if c.proc == nil {
		return
	}
	switch {
	case force:
		c.proc.signal(unix.SIGKILL)
	case first:
		c.proc.signal(unix.SIGTERM)
		// A group that was suspended, as by SIGSTOP, can handle TERM only after it is resumed.
		c.proc.signal(unix.SIGCONT)
		c.killer = time.AfterFunc(c.w.cfg.Grace, c.kill)
	}
}

// kill sends KILL to what is left of the process group.
func (c *command) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil {
		c.proc.signal(unix.SIGKILL)
	}
}

// abandon kills and forgets a command whose lease this worker has lost. It does not wait for the
// end. If the open session still sends reports of the command, the task plane refuses them as stale.
func (c *command) abandon() {
	c.buf.Discard()
	c.stop(causeStopped, true)
	c.w.forget(c)
}

// result returns how the command ended. ran says that a process was spawned; only then status is used.
func (c *command) result(status syscall.WaitStatus, ran bool) *taskv1.CommandEnded {
	c.mu.Lock()
	cause, detail := c.cause, c.detail
	c.mu.Unlock()
	end := &taskv1.CommandEnded{Reason: cause}
	if ran && status.Exited() {
		code := int32(status.ExitStatus())
		end.ExitCode = &code
	}
	switch cause {
	case causeTimeout:
		end.Message = "ended after its time limit of " + c.task.GetCommand().GetTimeout().AsDuration().String()
	case causeMemory, causeProcesses, causeOutput:
		end.Message = detail
	case causeStopped:
		end.Message = "stopped on request"
	case causeWorkerStopped:
		end.Message = "worker " + c.w.cfg.ID + " was stopped"
	default:
		end.Reason = taskv1.TaskEndReason_TASK_END_REASON_EXITED
		if ran && status.Signaled() {
			end.Reason = taskv1.TaskEndReason_TASK_END_REASON_SIGNALLED
			end.Message = "ended by " + unix.SignalName(status.Signal())
			if c.sandbox != nil && c.sandbox.Err() != nil {
				end.Message += "; " + c.sandbox.Err().Error()
			}
		} else if end.ExitCode != nil {
			end.Message = fmt.Sprintf("exit code %d", end.GetExitCode())
		}
	}
	return end
}

// finish records the end and tells the session to report it. Each later session reports it
// again until the task plane acknowledges it.
func (c *command) finish(end *taskv1.CommandEnded) {
	end.TaskId, end.LeaseGeneration = c.task.GetTaskId(), c.gen
	end.OutputBytes = c.buf.Total()
	end.Message = strings.ToValidUTF8(end.GetMessage(), "\uFFFD")
	c.mu.Lock()
	c.exited = true
	c.ended = end
	if c.flusher != nil {
		c.flusher.Stop()
	}
	c.mu.Unlock()
	c.w.markDirty(c)
}

// read reads one output stream to its end. An incomplete character at the end of a
// read is kept until its remaining bytes arrive, so that the two streams are never
// mixed inside of a character.
func (c *command) read(p *process, out output) {
	data := make([]byte, 32<<10)
	kept, late := 0, 0 // bytes of an incomplete character; bytes read while draining
	for {
		draining := p.renewDeadline(out.file)
		n, err := out.file.Read(data[kept:])
		open := utf8cut.Partial(data[:kept+n])
		if full := kept + n - open; full > 0 {
			c.emit(out.stream, data[:full])
			copy(data, data[full:kept+n])
		}
		kept = open
		if draining {
			late += n
		}
		if err != nil && (draining || !os.IsTimeout(err)) || late > maxLate {
			if kept > 0 {
				c.emit(out.stream, data[:kept])
			}
			return
		}
	}
}

// emit buffers output and tells the session to send it: at once if the buffer has a whole chunk, otherwise
// after outputDelay. It blocks while the buffer is full. It drops output beyond the command's limit and
// kills the command.
func (c *command) emit(stream taskv1.OutputStream, data []byte) {
	data, over := c.limitOutput(data)
	if over {
		c.exceed(causeOutput, fmt.Sprintf("ended: it wrote more than its limit of %d bytes", c.limits.output))
	}
	c.buf.Add(stream, data)
	if c.buf.Full() {
		c.w.markDirty(c)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flusher == nil {
		c.flusher = time.AfterFunc(outputDelay, func() {
			c.mu.Lock()
			c.flusher = nil
			c.mu.Unlock()
			c.w.markDirty(c)
		})
	}
}

// input accepts input in the order of its numbers. It ignores input that was accepted before, and
// input whose predecessor is missing: the task plane sends input again until it is reported as taken.
func (c *command) input(in *taskv1.CommandInput) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in.GetInputSeq() != c.lastSeq+1 {
		return
	}
	c.lastSeq++
	c.inputs = append(c.inputs, in)
	select {
	case c.moreInput <- struct{}{}:
	default:
	}
}

// write writes the command's input to the process and has it reported as taken. At the end of the
// input it closes a pipe and returns, or sends end-of-transmission to a terminal and goes on, since a
// terminal accepts more input. It also returns when the process ends or closes its input.
func (c *command) write(p *process) {
	for {
		c.mu.Lock()
		waiting := c.inputs
		c.inputs = nil
		c.mu.Unlock()
		for _, in := range waiting {
			data := in.GetData()
			if in.GetEndOfInput() && p.tty {
				data = append(append([]byte(nil), data...), endOfTransmission)
			}
			if _, err := p.stdin.Write(data); err != nil {
				return // the process ended or has closed its input
			}
			c.mu.Lock()
			c.wroteSeq = in.GetInputSeq()
			c.mu.Unlock()
			c.w.markDirty(c)
			if in.GetEndOfInput() && !p.tty {
				_ = p.stdin.Close() // closing a pipe has no error that matters here
				return
			}
		}
		if len(waiting) > 0 {
			continue
		}
		select {
		case <-c.moreInput:
		case <-p.exited:
			return
		}
	}
}
