package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// maxSettings is the size of the largest file that is edited, in bytes.
	maxSettings = 16 << 20
	// backupSuffix is appended to the name of a file for the copy of what was in it before the last change.
	backupSuffix = ".before-quartet"
)

// readFile returns the content of a file, nil if there is none.
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

// writeFile replaces a file as a whole, after a copy of its old content was made beside it. It keeps the mode of the file, and follows
// it if it is a link. A next of nil removes the file. Where the file has changed since old was read, it is an error.
func writeFile(path string, old, next []byte) error {
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
	if old != nil {
		if err := replaceFile(path+backupSuffix, old, mode); err != nil {
			return err
		}
	}
	if next == nil {
		return os.Remove(path)
	}
	return replaceFile(path, next, mode)
}

// replaceFile writes a file so that readers see its old content or the new one.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".quartet-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
