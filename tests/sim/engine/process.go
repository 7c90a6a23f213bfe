package engine

import "sync/atomic"

// Process is one execution of a simulated process, which is killed as a whole. A restarted process is another
// Process.
type Process struct {
	Name string
	dead atomic.Bool
}

// NewProcess returns a live process. Its name is part of the names of its crossings.
func NewProcess(name string) *Process { return &Process{Name: name} }

// Dead reports whether the process was killed.
func (p *Process) Dead() bool { return p.isDead() }

func (p *Process) isDead() bool { return p != nil && p.dead.Load() }
