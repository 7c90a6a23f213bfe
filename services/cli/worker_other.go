//go:build !linux

package cli

import "syscall"

// ownGroup puts a handler into a process group, so that all of it can be ended.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
