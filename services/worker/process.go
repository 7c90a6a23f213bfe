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
	"unicode/utf8"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
)

const (
	// endOfTransmission ends the input of a terminal that is in line mode.
	endOfTransmission = 4
	// maxLate is the most that is read from a pipe after the command ended:
	// what it can hold, and no more, however much a process that got away writes.
	maxLate = 1 << 20
)

// process is a running command: a process that leads its own group, and the
// ends of its pipes or terminal that are ours.
type process struct {
	cmd     *exec.Cmd
	pid     int
	mark    proctree.Mark // of all that comes of it
	began   time.Time
	tty     bool
	stdin   *os.File // nil without input
	outputs []output
	gone    chan struct{} // the process ended; it is reaped later

	drain    time.Duration
	draining atomic.Bool
	closing  sync.Once
}

type output struct {
	stream taskv1.OutputStream
	file   *os.File
}

// start spawns a command. It leads its own process group, so that a signal
// reaches its children as well (#872), and is killed should the worker die.
func start(on *proctree.Host, spec *taskv1.CommandSpec, dir string, env []string) (*process, error) {
	argv := spec.GetArgv()
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", spec.GetCmd()}
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // its end is ours to manage
	cmd.Dir, cmd.Env = dir, env
	p := &process{cmd: cmd, tty: spec.GetTty(), gone: make(chan struct{}), began: time.Now()}
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

func (p *process) startOnPipes(on *proctree.Host, input bool) (err error) {
	var ours, theirs []*os.File
	defer func() {
		for _, f := range theirs {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			for _, f := range ours {
				_ = f.Close() // the start failed already
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

// awaitExit returns when the process has ended, and leaves it unreaped: as long
// as it is, nobody else can get its group's number.
func (p *process) awaitExit() {
	proctree.AwaitExit(p.pid)
	close(p.gone)
}

// signal reaches the whole group. The process must not be reaped.
func (p *process) signal(sig unix.Signal) {
	// ESRCH is all that can go wrong, and means that there is nobody to tell.
	_ = unix.Kill(-p.pid, sig)
}

// young is how long a process number cannot have been given out twice.
const young = 2 * time.Second

// endTree kills what is left of all that the process started, also what left its
// group. The process must have ended and not be reaped.
func (p *process) endTree(ctx context.Context, on *proctree.Host) error {
	leader := p.pid
	if time.Since(p.began) > young {
		leader = 0
	}
	_, err := on.End(ctx, p.mark, leader)
	return err
}

// beginDrain makes reads end after d without news.
func (p *process) beginDrain(d time.Duration) {
	p.drain = d
	p.draining.Store(true)
	for _, out := range p.outputs {
		_ = out.file.SetReadDeadline(time.Now().Add(d)) // pipes and terminals have deadlines
	}
}

// renewDeadline is called before each read; it reports whether the process is
// being drained, so that a timeout of this read is the end.
func (p *process) renewDeadline(f *os.File) bool {
	if !p.draining.Load() {
		return false
	}
	_ = f.SetReadDeadline(time.Now().Add(p.drain))
	return true
}

// reap ends the process for good and closes our ends.
func (p *process) reap() *os.ProcessState {
	p.closing.Do(func() {
		_ = p.cmd.Wait() // the state says it all
		if p.stdin != nil {
			_ = p.stdin.Close()
		}
		for _, out := range p.outputs {
			_ = out.file.Close()
		}
	})
	return p.cmd.ProcessState
}

func waitStatus(state *os.ProcessState) (syscall.WaitStatus, bool) {
	if state == nil {
		return 0, false
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	return status, ok
}

// trailing counts the bytes at the end that begin a character without ending it.
func trailing(b []byte) int {
	for n := 1; n <= len(b) && n < utf8.UTFMax; n++ {
		c := b[len(b)-n]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
			return n
		}
		return 0
	}
	return 0
}
