package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/spool"
)

// Causes with which the context of a command ends before its handler returns, beside
// ErrStopping.
var (
	// ErrStopped means that the task was stopped or its lease was lost. For a step it means
	// that the run was cancelled or that the server refused a report of it.
	ErrStopped = errors.New("the task was stopped")
	// ErrTimeout means that the command reached its timeout.
	ErrTimeout = errors.New("the command's time is over")
)

// ExitError ends a command with an exit code.
type ExitError struct{ Code int }

// Error returns a text such as "exit code 2".
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// defaultTimeout is the timeout of a command that has none.
const defaultTimeout = time.Hour

// Command is a leased command.
type Command struct {
	// Task is the leased task; Task.Command says what to run.
	Task *taskv1.Task

	gen    int64           // generation of the lease
	ctx    context.Context //nolint:containedctx // the handler's context, which is cancelled to stop the command
	cancel context.CancelCauseFunc
	wake   func() // tells the worker that there is something to send; does not block
	input  *input

	buf *spool.Buffer

	mu        sync.Mutex
	sentStart bool                 // the start was sent on this stream
	acked     int64                // number of the last input that was reported as taken on this stream
	over      *taskv1.CommandEnded // the end, as it is reported; nil before
	sentEnd   bool                 // the end was sent on this stream
}

func newCommand(life context.Context, lease *taskv1.CommandLease, wake func()) *Command {
	c := &Command{
		Task: lease.GetTask(), gen: lease.GetLeaseGeneration(), wake: wake, input: newInput(),
		buf: spool.NewAt(lease.GetOutputOffset()),
	}
	c.ctx, c.cancel = context.WithCancelCause(life)
	return c
}

// Stdout returns the writer of the command's standard output. The order of writes to Stdout
// and Stderr is kept.
func (c *Command) Stdout() io.Writer {
	return outputWriter{c, taskv1.OutputStream_OUTPUT_STREAM_STDOUT}
}

// Stderr returns the writer of the command's standard error.
func (c *Command) Stderr() io.Writer {
	return outputWriter{c, taskv1.OutputStream_OUTPUT_STREAM_STDERR}
}

// Stdin returns the reader of the input that is sent to the task. It ends, after the input
// that was received, when the end of input is sent or the handler's context ends. A command
// that accepts no input gets none, so a read blocks until its context ends.
func (c *Command) Stdin() io.Reader { return c.input }

// run runs the handler and records how it ended.
func (c *Command) run(handle CommandHandler) {
	timeout := defaultTimeout
	if t := c.Task.GetCommand().GetTimeout(); t.IsValid() && t.AsDuration() > 0 {
		timeout = t.AsDuration()
	}
	timer := time.AfterFunc(timeout, func() { c.cancel(ErrTimeout) })
	defer timer.Stop()
	defer context.AfterFunc(c.ctx, c.input.close)()
	c.wake()
	err := handle(c.ctx, c)
	e := &taskv1.CommandEnded{
		TaskId: c.Task.GetTaskId(), LeaseGeneration: c.gen,
		Reason: taskv1.TaskEndReason_TASK_END_REASON_EXITED,
	}
	var exit *ExitError
	switch cause := context.Cause(c.ctx); {
	case err != nil && errors.Is(cause, ErrStopped):
		e.Reason, e.Message = taskv1.TaskEndReason_TASK_END_REASON_STOPPED, "stopped on request"
	case err != nil && errors.Is(cause, ErrTimeout):
		e.Reason, e.Message = taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT, fmt.Sprintf("not done after %s", timeout)
	case err != nil && cause != nil:
		e.Reason, e.Message = taskv1.TaskEndReason_TASK_END_REASON_WORKER_STOPPED, "the worker was told to end"
	case errors.As(err, &exit):
		e.ExitCode = proto.Int32(int32(exit.Code))
	case err != nil:
		e.ExitCode, e.Message = proto.Int32(1), cut(err.Error(), 1000)
	default:
		e.ExitCode = proto.Int32(0)
	}
	c.mu.Lock()
	e.OutputBytes = c.buf.Total()
	c.over = e
	c.mu.Unlock()
	c.wake()
}

// unsent returns what was not sent on this stream, and marks it as sent: the start, which input was
// taken, output and, after all output, the end.
func (c *Command) unsent() []*taskv1.ConnectRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*taskv1.ConnectRequest
	id := c.Task.GetTaskId()
	if !c.sentStart {
		c.sentStart = true
		out = append(out, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Started{
			Started: &taskv1.CommandStarted{TaskId: id, LeaseGeneration: c.gen},
		}})
	}
	if seq := c.input.taken(); seq > c.acked {
		c.acked = seq
		out = append(out, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_InputTaken{
			InputTaken: &taskv1.CommandInputTaken{TaskId: id, LeaseGeneration: c.gen, InputSeq: seq},
		}})
	}
	for _, chunk := range c.buf.Next() { // all of it if c.over is set, because that is set last
		out = append(out, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Output{
			Output: &taskv1.CommandOutput{TaskId: id, LeaseGeneration: c.gen, Chunk: chunk},
		}})
	}
	if c.over != nil && !c.sentEnd {
		c.sentEnd = true
		out = append(out, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Ended{Ended: c.over}})
	}
	return out
}

// rewind marks the start, the input, the end and the output that is not stored as not sent, for a new stream.
func (c *Command) rewind() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sentStart, c.sentEnd, c.acked = false, false, 0
	c.buf.Rewind()
}

// acknowledge drops the output that is stored.
func (c *Command) acknowledge(end int64) { c.buf.Acknowledge(end) }

// abandon cancels a command whose lease was lost or whose worker has stopped, and makes its writes fail. The
// caller must remove the command, or have ended the stream, so that nothing more of its output is sent.
func (c *Command) abandon() {
	c.cancel(ErrStopped) // before the writes fail, which say why
	c.buf.Discard()
}

type outputWriter struct {
	c      *Command
	stream taskv1.OutputStream
}

// Write queues output, which is kept until the server has stored it. It blocks while the queue is full.
// It fails once abandon was called, because the lease was lost or the worker has stopped. The end of the command's
// context alone does not make it fail.
func (w outputWriter) Write(p []byte) (int, error) {
	for written := 0; written < len(p); {
		n := spool.Cut(p[written:])
		if !w.c.buf.Add(w.stream, p[written:written+n]) {
			return written, context.Cause(w.c.ctx)
		}
		written += n
		w.c.wake()
	}
	return len(p), nil
}

// input holds what was sent to a command and not read yet.
type input struct {
	mu    sync.Mutex
	some  *sync.Cond
	data  []byte
	seq   int64
	ended bool
}

func newInput() *input {
	i := &input{}
	i.some = sync.NewCond(&i.mu)
	return i
}

// take queues input that was not received before.
func (i *input) take(m *taskv1.CommandInput) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if m.GetInputSeq() <= i.seq {
		return
	}
	i.seq = m.GetInputSeq()
	i.data = append(i.data, m.GetData()...)
	i.ended = i.ended || m.GetEndOfInput()
	i.some.Broadcast()
}

func (i *input) taken() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seq
}

func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.some.Broadcast()
}

// Read implements io.Reader. It blocks until there is input, and returns io.EOF once all was read after ended is set.
func (i *input) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.data) == 0 {
		if i.ended {
			return 0, io.EOF
		}
		i.some.Wait()
	}
	n := copy(p, i.data)
	i.data = i.data[n:]
	return n, nil
}
