package proctree

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// guardPatience is how long a host waits for its guard to end.
	guardPatience = 5 * time.Second
	// guardPause is between two guards, should one be killed.
	guardPause = time.Second
	// guardRounds is how often a guard looks again; what was about to fork when
	// its host died is there a moment later.
	guardRounds = 3
)

// guard is the process that ends what a host leaves if it is killed.
type guard struct {
	argv   []string
	first  Mark
	logger *zap.Logger
	done   chan struct{}
	quit   chan struct{} // closed by stop

	mu      sync.Mutex
	stopped bool
	hold    *os.File // our end of the pipe
}

func startGuard(argv []string, first Mark, logger *zap.Logger) (*guard, error) {
	g := &guard{argv: argv, first: first, logger: logger, done: make(chan struct{}), quit: make(chan struct{})}
	cmd, err := g.start()
	if err != nil {
		return nil, fmt.Errorf("proctree: start the guard %q: %w", argv[0], err)
	}
	go g.keep(cmd)
	return g, nil
}

// start runs the program with the reading end of a pipe as its stdin. Nothing else
// inherits the writing end, so its end is the end of this process.
func (g *guard) start() (*exec.Cmd, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(g.argv[0], append(g.argv[1:len(g.argv):len(g.argv)], strconv.FormatUint(uint64(g.first), 10))...) //nolint:gosec,noctx // the program is ours, and outlives us
	cmd.Stdin, cmd.Stderr, cmd.Env, cmd.Dir = r, os.Stderr, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a ^C is not for it
	forking.Lock()
	err = cmd.Start()
	forking.Unlock()
	_ = r.Close() // it has its own
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil || g.stopped {
		_ = w.Close()
		return cmd, err
	}
	g.hold = w
	return cmd, nil
}

// keep sees to it that there is a guard until the host is closed.
func (g *guard) keep(cmd *exec.Cmd) {
	defer close(g.done)
	for {
		err := cmd.Wait()
		g.mu.Lock()
		stopped := g.stopped
		if g.hold != nil {
			_ = g.hold.Close()
			g.hold = nil
		}
		g.mu.Unlock()
		if stopped {
			return
		}
		g.logger.Warn("the guard of this worker's processes ended; starting another", zap.Error(err))
		pause := time.NewTimer(guardPause)
		select {
		case <-pause.C:
		case <-g.quit:
			pause.Stop()
			return
		}
		if cmd, err = g.start(); err != nil {
			g.logger.Error("there is no guard: should this process be killed, its next life ends what it left", zap.Error(err))
			return
		}
	}
}

// stop lets the guard end, and waits for it.
func (g *guard) stop() {
	g.mu.Lock()
	g.stopped = true
	close(g.quit)
	if g.hold != nil {
		_ = g.hold.Close()
		g.hold = nil
	}
	g.mu.Unlock()
	patience := time.NewTimer(guardPatience)
	defer patience.Stop()
	select {
	case <-g.done:
	case <-patience.C:
	}
}

// Guard is what the guard process does: it waits for the end of in, which is the
// end of its host, and then kills all that the host has left. arg is the last
// argument that it was started with.
func Guard(ctx context.Context, in io.Reader, arg string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // it ends with its host, not before
	v, err := strconv.ParseUint(arg, 10, 64)
	if err != nil || v&leading == 0 || v >= 2*leading {
		return fmt.Errorf("proctree: %q is not a mark; the guard is started by a worker only", arg)
	}
	first := Mark(v)
	_, _ = io.Copy(io.Discard, in) // an error is an end, too
	for range guardRounds {
		if _, err = kill(ctx, func(m Mark) bool { return m.life() == first.life() }, 0); err != nil {
			continue
		}
		pause := time.NewTimer(10 * killPause)
		<-pause.C
	}
	return err
}
