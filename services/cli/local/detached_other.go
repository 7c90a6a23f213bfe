//go:build !unix

package local

import "syscall"

// detached needs nothing where processes are not grouped by sessions.
func detached() *syscall.SysProcAttr { return nil }
