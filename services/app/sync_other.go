//go:build !linux

package app

import "golang.org/x/sys/unix"

// syncDir syncs all file systems, because there is no call for a single one.
func syncDir(string) error { return unix.Sync() }
