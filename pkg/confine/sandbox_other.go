//go:build !linux

package confine

import (
	"errors"
	"os/exec"
	"syscall"
)

// Launcher starts the process of a helper; see Open.
type Launcher func(cmd *exec.Cmd) error

// Sandbox confines the processes that Start starts. This system has none.
type Sandbox struct{}

// Process is a process of a Sandbox.
type Process struct{ Pid int }

// Open returns ErrUnavailable.
func Open(Policy, []string, Launcher) (*Sandbox, error) { return nil, ErrUnavailable }

// Main returns ErrUnavailable.
func Main() error { return ErrUnavailable }

// Level returns "".
func (*Sandbox) Level() Level { return "" }

// Dir returns "".
func (*Sandbox) Dir() string { return "" }

// Start returns ErrUnavailable.
func (*Sandbox) Start(Spec) (*Process, error) { return nil, ErrUnavailable }

// Ended returns a nil channel, which is never closed.
func (*Sandbox) Ended() <-chan struct{} { return nil }

// Err returns nil.
func (*Sandbox) Err() error { return nil }

// Close returns an error.
func (*Sandbox) Close() error { return errors.New("confine: never opened") }

// AwaitExit does nothing.
func (*Process) AwaitExit() {}

// Wait returns the zero status.
func (*Process) Wait() (none syscall.WaitStatus) { return none }
