//go:build unix

package local

import "syscall"

// detached makes a process the first one of a session of its own, so that no signal to this one's reaches it.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
