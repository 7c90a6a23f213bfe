package sandboxes

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	"quartet/pkg/proctree"
)

// Leader is the first process of a tree.
type Leader interface {
	// AwaitExit waits until the process has ended and leaves it unreaped: until it is
	// reaped, the number of its process group is not reused.
	AwaitExit()
	// Wait reaps the process and returns its wait status. It must be called exactly once.
	Wait() syscall.WaitStatus
}

// child is a leader that this process forked.
type child struct{ cmd *exec.Cmd }

func (c child) AwaitExit() { proctree.AwaitExit(c.cmd.Process.Pid) }

func (c child) Wait() syscall.WaitStatus {
	_ = c.cmd.Wait() // its error is part of the state
	status, _ := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status
}

// Launch starts the process of a spec as the leader of a new tree of host, in the sandbox s or, if s is
// nil, as a child of this process. It returns the leader, its process number and the mark of the tree.
// The caller must call AwaitExit, then host.End with the mark, and then Wait of the leader.
func Launch(host *proctree.Host, s *confine.Sandbox, spec confine.Spec) (Leader, int, proctree.Mark, error) {
	if s != nil {
		var p *confine.Process
		mark, err := host.StartBy(func(m proctree.Mark) (err error) {
			spec.Mark = uint64(m)
			p, err = s.Start(spec)
			return err
		})
		if err != nil {
			return nil, 0, 0, err
		}
		return p, p.Pid, mark, nil
	}
	cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...) //nolint:noctx // its caller ends it by signals
	cmd.Dir, cmd.Env = spec.Dir, spec.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Files[0], spec.Files[1], spec.Files[2]
	cmd.SysProcAttr = proctree.GroupAttr()
	if spec.Terminal {
		cmd.SysProcAttr = proctree.TerminalAttr()
	}
	mark, err := host.Start(cmd, nil)
	if err != nil {
		return nil, 0, 0, err
	}
	return child{cmd}, cmd.Process.Pid, mark, nil
}

// ExitError is the error of a program that ended with a status other than 0.
type ExitError struct{ Status syscall.WaitStatus }

func (e *ExitError) Error() string {
	if e.Status.Signaled() {
		return "ended by " + unix.SignalName(e.Status.Signal())
	}
	return fmt.Sprintf("exit status %d", e.Status.ExitStatus())
}

// Program is a program that Run runs to its end.
type Program struct {
	// Spec describes its process. Files and Terminal are ignored.
	Spec confine.Spec
	// Stdin is its input; nil: none. A read of Stdin must not block for long, because Run waits for it.
	Stdin io.Reader
	// Stdout and Stderr receive its output.
	Stdout, Stderr io.Writer
	// Grace is the time between SIGTERM and SIGKILL when ctx ends; 0: SIGKILL at once.
	Grace time.Duration
}

// lateOutput is how long output is read after the program has ended. There must be a limit, since a
// process that escaped the tree may keep the pipes open.
const lateOutput = time.Second

// Run runs a program to its end, and kills the processes that it left. When ctx ends, Run kills the program
// and the processes that it started. It returns nil if the program ended with status 0, an *ExitError if it
// ended with another one or by a signal, and otherwise the error of its start or of killing its processes.
func Run(ctx context.Context, host *proctree.Host, s *confine.Sandbox, p Program) (err error) {
	pipes := new(pipes)
	defer pipes.close()
	stdin, input, err := pipes.open()
	if err != nil {
		return err
	}
	outR, outW, err := pipes.open()
	if err != nil {
		return err
	}
	errR, errW, err := pipes.open()
	if err != nil {
		return err
	}
	p.Spec.Files, p.Spec.Terminal = [3]*os.File{stdin, outW, errW}, false
	leader, pid, mark, err := Launch(host, s, p.Spec)
	if err != nil {
		return err
	}
	_, _, _ = stdin.Close(), outW.Close(), errW.Close() // the program has inherited them
	var copying sync.WaitGroup
	copying.Go(func() {
		if p.Stdin != nil {
			_, _ = io.Copy(input, p.Stdin) // a program need not read its input
		}
		_ = input.Close()
	})
	copying.Go(func() { _, _ = io.Copy(p.Stdout, outR) }) // until the end of the pipe or its read deadline
	copying.Go(func() { _, _ = io.Copy(p.Stderr, errR) })
	ended := endWith(ctx, pid, p.Grace)
	leader.AwaitExit()
	ended()
	_, err = host.End(context.WithoutCancel(ctx), mark, 0)
	status := leader.Wait()
	late := time.Now().Add(lateOutput)
	_, _, _ = input.SetWriteDeadline(time.Now()), outR.SetReadDeadline(late), errR.SetReadDeadline(late)
	copying.Wait()
	if err == nil && status != 0 {
		return &ExitError{status}
	}
	return err
}

// endWith kills the process group of pid when ctx ends, with SIGTERM and after grace with SIGKILL. stop
// ends this, and waits until no signal is sent any more. The process must not be reaped before stop has returned.
func endWith(ctx context.Context, pid int, grace time.Duration) (stop func()) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		if grace > 0 {
			_ = unix.Kill(-pid, unix.SIGTERM) // ESRCH: nothing is left
			_ = unix.Kill(-pid, unix.SIGCONT)
			timer := time.NewTimer(grace)
			defer timer.Stop()
			select {
			case <-done:
				return
			case <-timer.C:
			}
		}
		_ = unix.Kill(-pid, unix.SIGKILL)
	})
	return func() {
		close(done)
		watching.Wait()
	}
}

// pipes are pipes that are closed together.
type pipes struct{ files []*os.File }

func (p *pipes) open() (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err == nil {
		p.files = append(p.files, r, w)
	}
	return r, w, err
}

func (p *pipes) close() {
	for _, f := range p.files {
		_ = f.Close() // most are closed already
	}
}
