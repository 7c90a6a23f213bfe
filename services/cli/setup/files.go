package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"quartet/services/cli/session"
)

const (
	// maxSettings is the size of the largest file that is edited, in bytes.
	maxSettings = 16 << 20
	// backupSuffix is appended to the name of a file for the copy of what was in it before the first change.
	backupSuffix = ".before-quartet"
)

// readFile returns the content of a file, nil if there is no file. The content of an empty file is not nil. A file
// larger than maxSettings is an error.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err == nil && len(raw) > maxSettings {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxSettings)
	}
	if raw == nil {
		raw = []byte{}
	}
	return raw, err
}

// writeFile replaces the content old of a file by next as a whole; a next of nil removes the file. It keeps the mode
// of the file, and follows a link. It returns an error if the file has changed since old was read.
//
// With keep, old is copied beside the file unless a copy of an earlier content is there. Without it, if the copy has
// the same JSON as next in another form, that form is written. A copy that equals what was written is removed.
func writeFile(path string, old, next []byte, keep bool) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	now, err := readFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, old) || (now == nil) != (old == nil) {
		return fmt.Errorf("%s was changed by another program meanwhile; try again", path)
	}
	saved, err := readFile(path + backupSuffix)
	if err != nil {
		return err
	}
	switch {
	case keep && saved == nil:
		if err := session.ReplaceFile(path+backupSuffix, old, mode); err != nil {
			return err
		}
	case next == nil:
		return os.Remove(path)
	case !keep && sameJSON(saved, next):
		next = saved // in the form in which the user wrote it
	}
	if err := session.ReplaceFile(path, next, mode); err != nil {
		return err
	}
	if saved != nil && bytes.Equal(saved, next) {
		return os.Remove(path + backupSuffix)
	}
	return nil
}
