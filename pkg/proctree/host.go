package proctree

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"

	"go.uber.org/zap"
)

// Config configures a Host. Owner and Boot are required.
type Config struct {
	// Owner is the permanent name of the program that starts processes. Two hosts
	// that run at the same time must not share it.
	Owner string
	// Boot identifies this run of the owner. It must differ from earlier ones.
	Boot string
	// Guard is the command line of the guard process. The host appends one argument, and the
	// process must pass that to the function Guard. If Guard is empty, processes that are left after a
	// SIGKILL of the host run until the owner's next boot kills them.
	Guard  []string
	Logger *zap.Logger // nil: nothing is logged
}

// Usage is what the processes of a tree use at one moment.
type Usage struct {
	Processes int
	Memory    int64 // bytes of private memory, shared memory and swap, without file pages; 0 where it is not measured
}

// Capabilities says what a Host can do on this system.
type Capabilities struct {
	// Memory: Usage.Memory is measured, so memory limits can be enforced.
	Memory bool
	// Escapes describes how a process can leave its tree unnoticed, for logs and
	// documentation.
	Escapes string
}

// Host starts trees of processes and ends them.
type Host struct {
	first   Mark
	trees   *trees
	spawner *spawner
	guard   *guard
	closing sync.Once

	mu   sync.Mutex
	last Mark              // the number of the newest tree, without the bits of first
	live map[Mark]struct{} // trees for which End has not succeeded
}

// Open kills what earlier boots of the owner left and returns a Host for this one.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Owner == "" || cfg.Boot == "" {
		return nil, errors.New("proctree: Config needs Owner and Boot")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	first := firstMark(cfg.Owner, cfg.Boot)
	h := &Host{first: first, trees: newTrees(first), live: make(map[Mark]struct{})}
	// Nothing of this boot runs yet, so whatever has the owner's mark is from before.
	n, err := h.trees.killOwner(ctx)
	if err != nil {
		return nil, fmt.Errorf("proctree: end the processes of an earlier boot: %w", err)
	}
	if n > 0 {
		cfg.Logger.Warn("ended processes that an earlier boot left", zap.Int("processes", n))
	}
	if len(cfg.Guard) > 0 {
		if h.guard, err = startGuard(cfg.Guard, first, cfg.Logger); err != nil {
			return nil, err
		}
		h.trees.report(h.guard)
	}
	h.spawner = newSpawner()
	return h, nil
}

// Start starts cmd as the leader of a new tree and returns the tree's Mark. It calls start
// to start cmd; nil means cmd.Start. Unless Start returns an error, the caller must call End once
// the leader has ended, also when the leader ended by itself. Start must not be called after Close.
//
// Start calls start on one thread that lives as long as the host, for one tree at a time. A child gets
// its parent-death signal (see GroupAttr) when the thread that forked it ends, which here is when this
// process dies or Close is called.
func (h *Host) Start(cmd *exec.Cmd, start func() error) (Mark, error) {
	if start == nil {
		start = cmd.Start
	}
	m := h.reserve()
	err := h.spawner.do(func() error { return h.trees.start(m, cmd, start) })
	if err != nil {
		h.release(m)
	}
	return m, err
}

// StartBy is Start for a leader that another process forks: start must make that process fork the
// leader with the Mark, and return once the leader runs. StartBy works only on systems where processes
// inherit marks (Linux).
func (h *Host) StartBy(start func(Mark) error) (Mark, error) {
	m := h.reserve()
	if err := start(m); err != nil {
		h.release(m)
		return 0, err
	}
	return m, nil
}

// StartHelper starts a process that belongs to no tree. If cmd has a parent-death signal (see GroupAttr), the
// process gets it when this process dies, and when Close is called.
func (h *Host) StartHelper(cmd *exec.Cmd) error {
	return h.spawner.do(func() error { return StartUnmarked(cmd) })
}

// reserve returns a Mark that no live tree has. Tree numbers wrap around after a
// million.
func (h *Host) reserve() Mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		h.last = (h.last + 1) & treeMask
		m := h.first | h.last
		if _, taken := h.live[m]; !taken {
			h.live[m] = struct{}{}
			return m
		}
	}
}

func (h *Host) release(m Mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.live, m)
}

// End kills the processes of a tree and returns once none is alive, with the number of processes it
// killed. If some do not die within ten seconds, it returns an error; the tree then keeps its Mark, and
// End may be called again.
//
// If leader is 0, End searches all processes. To make the search shorter, a caller may pass the pid of the
// tree's leader, if that has started less than two seconds ago and is not reaped: then End searches only
// processes that are younger than the leader, and does not kill the leader.
func (h *Host) End(ctx context.Context, m Mark, leader int) (int, error) {
	n, err := h.trees.kill(ctx, m, leader)
	if err == nil { // a tree that does not die keeps its number
		h.release(m)
	}
	return n, err
}

// Use measures all live trees of this host.
func (h *Host) Use() (map[Mark]Usage, error) { return h.trees.use() }

// Close kills all processes of the host's trees, sends the parent-death signal to helpers, and ends the
// guard. It is idempotent; calls after the first one return nil.
func (h *Host) Close(ctx context.Context) (err error) {
	h.closing.Do(func() {
		h.spawner.close()
		_, err = h.trees.killBoot(ctx)
		if h.guard != nil {
			h.guard.stop()
		}
	})
	return err
}

// spawner starts processes on one thread that lives as long as the host. The
// parent-death signal of a child fires when the thread that forked it ends, and Go
// creates and ends threads at will, so every child is forked by this one.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// do runs f on the thread and returns its error.
func (s *spawner) do(f func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- f() }
	return <-result
}

// close ends the thread, and with it every child that has a parent-death signal.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}
