//go:build !unix

package keyfile

import (
	"io/fs"
	"os"
)

// lock does nothing where there is no flock: of two changes at the same time one is kept.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// chown does nothing: a new file belongs to whoever the directory says.
func chown(*os.File, fs.FileInfo) error { return nil }

// syncDir does nothing: directories cannot be synced here.
func syncDir(string) error { return nil }
