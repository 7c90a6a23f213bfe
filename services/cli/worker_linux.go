package cli

import "syscall"

// ownGroup puts a handler into a process group, so that all of it can be ended,
// and ends it with a worker that is killed.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
