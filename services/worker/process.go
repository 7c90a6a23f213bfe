package worker

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
	"quartet/pkg/sandboxes"
)

const (
	// endOfTransmission (^D) ends the input of a terminal in line mode.
	endOfTransmission = 4
	// maxLate bounds the bytes that are read from a pipe after the command ended. A
	// pipe holds no more, so that this loses nothing, however much a process that
	// escaped the process group writes.
	maxLate = 1 << 20
)

// process is the process of a command, which leads its own process group, with the
// worker's ends of its pipes or terminal.
type process struct {
	sandboxes.Leader
	pid     int
	mark    proctree.Mark // of all processes that it starts
	began   time.Time
	tty     bool
	stdin   *os.File // nil if the command accepts no input and has no terminal
	outputs []output
	exited  chan struct{} // closed when the process has ended; it is reaped later

	drain    time.Duration // see beginDrain
	draining atomic.Bool
	closing  sync.Once
	status   syscall.WaitStatus // valid once the process is reaped
}

// output is the worker's end of a pipe or terminal, and the stream that its bytes belong to.
type output struct {
	stream taskv1.OutputStream
	file   *os.File
}

// start spawns a command in the sandbox s, or without a sandbox if s is nil. The process leads its
// own process group, so that a signal to the group reaches its children as well. The system or the guard
// kills it if the worker dies (see proctree).
func (w *Worker) start(s *confine.Sandbox, spec *taskv1.CommandSpec, dir string, env []string) (*process, error) {
	argv := spec.GetArgv()
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", spec.GetCmd()}
	}
	p := &process{tty: spec.GetTty(), exited: make(chan struct{}), began: time.Now()}
	theirs, err := p.openFiles(spec.GetAcceptsInput())
	if err == nil {
		p.Leader, p.pid, p.mark, err = sandboxes.Launch(w.host, s, confine.Spec{
			Argv: argv, Env: env, Dir: dir,
			Files: theirs, Terminal: p.tty,
		})
	}
	for i, f := range theirs {
		if f != nil && (i == 0 || f != theirs[0]) { // a terminal is all three
			_ = f.Close() // the process has it
		}
	}
	if err != nil {
		p.closeFiles()
		return nil, err
	}
	return p, nil
}

// openFiles opens the pipes or the terminal of the process, sets the worker's ends in p, and returns
// the process's ends: stdin, stdout and stderr. Without input, stdin is empty. A terminal has 24 lines
// and 80 columns and is all three; it has an input in any case. After an error theirs has what was
// opened and nil for the rest. The caller closes theirs, and calls closeFiles after an error.
func (p *process) openFiles(input bool) (theirs [3]*os.File, err error) {
	if p.tty {
		master, slave, err := pty.Open()
		if err != nil {
			return theirs, err
		}
		p.stdin = master
		p.outputs = []output{{taskv1.OutputStream_OUTPUT_STREAM_STDOUT, master}}
		return [3]*os.File{slave, slave, slave}, pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 80})
	}
	if input {
		theirs[0], p.stdin, err = os.Pipe()
	} else {
		theirs[0], err = os.Open(os.DevNull)
	}
	for i, stream := range []taskv1.OutputStream{
		taskv1.OutputStream_OUTPUT_STREAM_STDOUT,
		taskv1.OutputStream_OUTPUT_STREAM_STDERR,
	} {
		if err != nil {
			return theirs, err
		}
		var r *os.File
		if r, theirs[i+1], err = os.Pipe(); err == nil {
			p.outputs = append(p.outputs, output{stream, r})
		}
	}
	return theirs, err
}

// closeFiles closes the worker's ends of the pipes or terminal.
func (p *process) closeFiles() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	for _, out := range p.outputs {
		_ = out.file.Close()
	}
}

// awaitExit waits until the process has ended and leaves it unreaped: until it is
// reaped, the number of its process group is not reused.
func (p *process) awaitExit() {
	p.AwaitExit()
	close(p.exited)
}

// signal sends a signal to the process group. The process must not have been
// reaped.
func (p *process) signal(sig unix.Signal) {
	// The only possible error is ESRCH: no process of the group is left.
	_ = unix.Kill(-p.pid, sig)
}

// pidReuseTime is how long a process number is certain not to be reused.
const pidReuseTime = 2 * time.Second

// endTree kills what is left of all processes that the process started, including
// those that left its group. The process must have ended and not have been reaped. Its pid limits the
// search (see proctree.Host.End) only if it began less than pidReuseTime ago.
func (p *process) endTree(ctx context.Context, on *proctree.Host) error {
	leader := p.pid
	if time.Since(p.began) > pidReuseTime {
		leader = 0
	}
	_, err := on.End(ctx, p.mark, leader)
	return err
}

// beginDrain makes each read of the outputs time out once no output arrived for d.
func (p *process) beginDrain(d time.Duration) {
	p.drain = d
	p.draining.Store(true)
	for _, out := range p.outputs {
		_ = out.file.SetReadDeadline(time.Now().Add(d)) // pipes and terminals support deadlines
	}
}

// renewDeadline must be called before each read. It reports whether the process is
// being drained, so that a timeout of the read is the end of the output.
func (p *process) renewDeadline(f *os.File) bool {
	if !p.draining.Load() {
		return false
	}
	_ = f.SetReadDeadline(time.Now().Add(p.drain))
	return true
}

// reap reaps the process, closes the worker's ends of its pipes or terminal, and returns its
// wait status. It is idempotent.
func (p *process) reap() syscall.WaitStatus {
	p.closing.Do(func() {
		p.status = p.Wait()
		p.closeFiles()
	})
	return p.status
}
