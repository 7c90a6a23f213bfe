package proctree

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"go.uber.org/zap"
)

// Config of a host. Owner and Life are required.
type Config struct {
	// Owner is the lasting name of whoever starts processes. No two that live at
	// the same time may share it.
	Owner string
	// Life names this life of it.
	Life string
	// Guard is the program with its arguments that is to become the guard: it has
	// to call Guard with its last argument. None: no guard, and what is left after a
	// SIGKILL of the host is ended by its next life.
	Guard  []string
	Logger *zap.Logger
}

// Host starts processes and ends whatever comes of them.
type Host struct {
	first   Mark
	spawner *spawner
	guard   *guard
	logger  *zap.Logger
	closing sync.Once

	mu   sync.Mutex
	last Mark              // given, without what it has in common with first
	live map[Mark]struct{} // that were not ended
}

// Open ends what former lives of the owner left, and begins.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Owner == "" || cfg.Life == "" {
		return nil, errors.New("proctree: Config needs Owner and Life")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	first := firstMark(cfg.Owner, cfg.Life)
	// Nothing of this life runs yet, so all that is the owner's was left.
	n, err := kill(ctx, func(m Mark) bool { return m.owner() == first.owner() }, 0)
	if err != nil {
		return nil, fmt.Errorf("proctree: take over from a former life: %w", err)
	}
	if n > 0 {
		cfg.Logger.Warn("ended processes that a former life left", zap.Int("processes", n))
	}
	h := &Host{first: first, logger: cfg.Logger, live: make(map[Mark]struct{})}
	if len(cfg.Guard) > 0 {
		if h.guard, err = startGuard(cfg.Guard, first, cfg.Logger); err != nil {
			return nil, err
		}
	}
	h.spawner = newSpawner()
	return h, nil
}

// Start has f fork the first process of a tree and gives the tree's mark, which End
// has to be called for when that process has ended. Forks
// happen one after the other, on a thread that lives as long as the host, so
// that Pdeathsig means the death of this process.
func (h *Host) Start(f func() error) (Mark, error) {
	m := h.take()
	err := h.spawner.do(func() error { return marked(m, f) })
	if err != nil {
		h.free(m)
	}
	return m, err
}

// take gives a mark that no living tree has: they come round after a million.
func (h *Host) take() Mark {
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

func (h *Host) free(m Mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.live, m)
}

// End kills what lives of a tree and returns when nothing does. leader is the
// tree's first process if that is not reaped yet, and began less than two seconds
// ago; it saves a look at processes that are older. 0: look at all.
func (h *Host) End(ctx context.Context, m Mark, leader int) (int, error) {
	n, err := kill(ctx, func(have Mark) bool { return have == m }, leader)
	if err == nil { // what does not die keeps its mark to itself
		h.free(m)
	}
	return n, err
}

// Close ends whatever the host started, and the guard. It is idempotent.
func (h *Host) Close(ctx context.Context) (err error) {
	h.closing.Do(func() {
		h.spawner.close()
		_, err = kill(ctx, func(m Mark) bool { return m.life() == h.first.life() }, 0)
		if h.guard != nil {
			h.guard.stop()
		}
	})
	return err
}

// spawner starts processes on one thread that lives as long as the host. A child's
// Pdeathsig fires when the thread that forked it ends, not the process, and Go's
// threads come and go; so every child is forked from this one.
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

// do runs f on the thread.
func (s *spawner) do(f func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- f() }
	return <-result
}

// close ends the thread, and with it what was started on it with Pdeathsig.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}
