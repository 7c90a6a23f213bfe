package proctree

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// GroupAttr returns attributes that make a process the leader of a new process group. On Linux they also give it a
// parent-death signal: the kernel kills it when the thread that started it ends, and so if this process dies.
func GroupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// TerminalAttr returns attributes that make a process the leader of a new session whose terminal is its
// stdin. On Linux they also give it a parent-death signal, as GroupAttr does.
func TerminalAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
}

// AwaitExit blocks until a child has ended and leaves it unreaped, so that its pid
// and its process group cannot be reused yet.
func AwaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
