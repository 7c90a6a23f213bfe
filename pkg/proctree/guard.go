package proctree

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// guardPatience is how long stop waits for the guard to end.
	guardPatience = 5 * time.Second
	// guardPause is the pause before a guard that died is replaced.
	guardPause = time.Second
	// guardRounds is how many times a guard searches and kills: a process that was about to
	// fork when the host died has a child a moment later.
	guardRounds = 3
)

// guard is the host's side of the guard process, which kills the host's processes if
// the host itself is killed.
type guard struct {
	argv   []string
	first  Mark
	logger *zap.Logger
	done   chan struct{} // closed when keep returns
	quit   chan struct{} // closed by stop

	mu      sync.Mutex
	stopped bool
	pipe    *os.File // our end of the guard's stdin; nil while there is no guard
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

// start runs the guard with the read end of a pipe as its stdin. No other process
// inherits the write end, so the guard reads EOF when this process ends.
func (g *guard) start() (*exec.Cmd, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(g.argv, []string{strconv.FormatUint(uint64(g.first), 10)})
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // the program is our own and outlives this process
	cmd.Stdin, cmd.Stderr, cmd.Env, cmd.Dir = r, os.Stderr, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that ^C on the terminal does not reach it
	err = StartUnmarked(cmd)
	_ = r.Close() // the guard has its own copy
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil || g.stopped {
		_ = w.Close()
		return cmd, err
	}
	g.pipe = w
	return cmd, nil
}

// keep replaces a guard that ends, until the host is closed or a start fails.
func (g *guard) keep(cmd *exec.Cmd) {
	defer close(g.done)
	for {
		err := cmd.Wait()
		g.mu.Lock()
		stopped := g.stopped
		if g.pipe != nil {
			_ = g.pipe.Close()
			g.pipe = nil
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
			g.logger.Error("there is no guard: if this process is killed, its processes stay until it is started again",
				zap.Error(err))
			return
		}
	}
}

// stop closes the pipe, so that the guard ends, and waits until it has ended, for at most guardPatience. It must be
// called only once.
func (g *guard) stop() {
	g.mu.Lock()
	g.stopped = true
	close(g.quit)
	if g.pipe != nil {
		_ = g.pipe.Close()
		g.pipe = nil
	}
	g.mu.Unlock()
	patience := time.NewTimer(guardPatience)
	defer patience.Stop()
	select {
	case <-g.done:
	case <-patience.C:
	}
}

// Guard is the body of the guard process. It reads from in, which must be the stdin of the process,
// until the host has ended, and then kills all processes that the host left. arg must be the last argument
// of the process. Guard makes the process ignore SIGINT, SIGTERM and SIGHUP.
func Guard(ctx context.Context, in io.Reader, arg string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // it ends with its host, not before
	v, err := strconv.ParseUint(arg, 10, 64)
	if err != nil || v&leading == 0 || v >= 2*leading {
		return fmt.Errorf("proctree: %q is not a mark; only a worker starts the guard", arg)
	}
	left := newOrphans(Mark(v))
	left.follow(in)
	for range guardRounds {
		if _, err = left.kill(ctx); err != nil {
			continue
		}
		pause := time.NewTimer(10 * killPause)
		<-pause.C
	}
	return err
}
