package proctree

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// GroupAttr returns attributes that make a process the leader of a new process group. It is killed if this
// process dies, where the system offers that (Linux).
func GroupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// TerminalAttr returns attributes that make a process the leader of a new session whose terminal is its
// stdin. It is killed if this process dies, where the system offers that (Linux).
func TerminalAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
}

// AwaitExit blocks until a child has ended and leaves it unreaped, so that its pid
// and its process group cannot be reused yet.
func AwaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
