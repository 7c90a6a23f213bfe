//go:build !unix

package keyfile

import (
	"io/fs"
	"os"
)

// lock does nothing, because this system has no flock: if two processes update a file at the same time, one of
// the changes is lost.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// chown does nothing: the system determines the owner of a new file.
func chown(*os.File, fs.FileInfo) error { return nil }

// syncDir does nothing: directories cannot be synced here.
func syncDir(string) error { return nil }
