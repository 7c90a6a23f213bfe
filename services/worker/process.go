package worker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
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
	cmd     *exec.Cmd
	pid     int
	mark    proctree.Mark // of all processes that it starts
	began   time.Time
	tty     bool
	stdin   *os.File // nil without input
	outputs []output
	exited  chan struct{} // closed when the process has ended; it is reaped later

	drain    time.Duration // see beginDrain
	draining atomic.Bool
	closing  sync.Once
}

// output is the worker's end of a pipe or terminal, and the stream that its bytes belong to.
type output struct {
	stream taskv1.OutputStream
	file   *os.File
}

// start spawns a command. Its process leads its own process group, so that a signal
// reaches its children as well, and is killed if the worker dies.
func start(on *proctree.Host, spec *taskv1.CommandSpec, dir string, env []string) (*process, error) {
	argv := spec.GetArgv()
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", spec.GetCmd()}
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // the command ends it by signals
	cmd.Dir, cmd.Env = dir, env
	p := &process{cmd: cmd, tty: spec.GetTty(), exited: make(chan struct{}), began: time.Now()}
	var err error
	if p.tty {
		err = p.startOnTerminal(on)
	} else {
		err = p.startOnPipes(on, spec.GetAcceptsInput())
	}
	if err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// startOnTerminal starts the process on a new terminal of 24 lines and 80 columns, which is
// both its input and its output.
func (p *process) startOnTerminal(on *proctree.Host) (err error) {
	p.mark, err = on.Start(p.cmd, func() error {
		master, err := pty.StartWithAttrs(p.cmd, &pty.Winsize{Rows: 24, Cols: 80},
			proctree.TerminalAttr())
		if err != nil {
			return err
		}
		p.stdin = master
		p.outputs = []output{{taskv1.OutputStream_OUTPUT_STREAM_STDOUT, master}}
		return nil
	})
	return err
}

// startOnPipes starts the process on pipes for its output and, if input is set, for its input.
func (p *process) startOnPipes(on *proctree.Host, input bool) (err error) {
	var ours, theirs []*os.File
	defer func() {
		for _, f := range theirs {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			for _, f := range ours {
				_ = f.Close() // the error of the start is the one to report
			}
		}
	}()
	open := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	if input {
		r, w := open()
		if err != nil {
			return err
		}
		ours, theirs = append(ours, w), append(theirs, r)
		p.cmd.Stdin, p.stdin = r, w
	}
	for _, stream := range []taskv1.OutputStream{taskv1.OutputStream_OUTPUT_STREAM_STDOUT, taskv1.OutputStream_OUTPUT_STREAM_STDERR} {
		r, w := open()
		if err != nil {
			return err
		}
		ours, theirs = append(ours, r), append(theirs, w)
		if stream == taskv1.OutputStream_OUTPUT_STREAM_STDOUT {
			p.cmd.Stdout = w
		} else {
			p.cmd.Stderr = w
		}
		p.outputs = append(p.outputs, output{stream, r})
	}
	p.cmd.SysProcAttr = proctree.GroupAttr()
	p.mark, err = on.Start(p.cmd, nil)
	return err
}

// awaitExit waits until the process has ended and leaves it unreaped: until it is
// reaped, the number of its process group is not reused.
func (p *process) awaitExit() {
	proctree.AwaitExit(p.pid)
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
// those that left its group. The process must have ended and not have been reaped.
func (p *process) endTree(ctx context.Context, on *proctree.Host) error {
	leader := p.pid
	if time.Since(p.began) > pidReuseTime {
		leader = 0
	}
	_, err := on.End(ctx, p.mark, leader)
	return err
}

// beginDrain makes reads of the outputs end once no output arrived for d.
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

// reap reaps the process and closes the worker's ends of its pipes or terminal. It
// is idempotent.
func (p *process) reap() *os.ProcessState {
	p.closing.Do(func() {
		_ = p.cmd.Wait() // its error is part of ProcessState
		if p.stdin != nil {
			_ = p.stdin.Close()
		}
		for _, out := range p.outputs {
			_ = out.file.Close()
		}
	})
	return p.cmd.ProcessState
}

// waitStatus returns the wait status of a process; ok is false if state is nil.
func waitStatus(state *os.ProcessState) (status syscall.WaitStatus, ok bool) {
	if state == nil {
		return 0, false
	}
	status, ok = state.Sys().(syscall.WaitStatus)
	return status, ok
}
