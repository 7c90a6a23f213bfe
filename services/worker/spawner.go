package worker

import (
	"runtime"
	"sync"
)

// spawner starts processes on one thread that lives as long as the worker. A
// child's Pdeathsig fires when the thread that forked it ends, not the process,
// and Go's threads come and go; so every child is forked from this one.
type spawner struct {
	jobs chan func()
	once sync.Once
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

// close ends the thread; no child may be alive.
func (s *spawner) close() {
	s.once.Do(func() { close(s.jobs) })
	<-s.done
}
