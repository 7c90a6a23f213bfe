package proctree

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// GroupAttr returns attributes that make a process the leader of a new process group.
func GroupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// TerminalAttr returns attributes that make a process the leader of a new session whose terminal is its stdin.
func TerminalAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true, Setctty: true} }

// AwaitExit blocks until a child has ended and leaves it unreaped, so that its pid
// and its process group cannot be reused yet.
func AwaitExit(pid int) {
	queue, err := unix.Kqueue()
	if err != nil {
		return // the caller reaps next, which blocks just as well
	}
	defer func() { _ = unix.Close(queue) }()
	var change unix.Kevent_t
	unix.SetKevent(&change, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change.Fflags = unix.NOTE_EXIT
	events := make([]unix.Kevent_t, 1)
	for {
		// For a process that has ended already, Kevent returns ESRCH; then nothing is left to wait for.
		_, err = unix.Kevent(queue, []unix.Kevent_t{change}, events, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
