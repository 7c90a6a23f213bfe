package keyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Load reads a key file.
func Load(path string) (Ring, error) {
	raw, err := read(path)
	if err != nil {
		return Ring{}, err
	}
	return parseFile(path, raw)
}

func parseFile(path string, raw []byte) (Ring, error) {
	r, err := Parse(raw)
	if err != nil {
		return Ring{}, fmt.Errorf("key file %s: %w; restore it from a copy, because credentials and trigger URLs are "+
			"derived from it", path, err)
	}
	return r, nil
}

// read returns the contents of a key file, but at most MaxFile+1 bytes, so that Parse can refuse a larger file.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return raw, nil
}

// LoadOrCreate reads a key file, or creates it, durably, with one key if there is none. If two processes
// create the file at the same time, both return the same key.
func LoadOrCreate(path string, now time.Time) (Ring, error) {
	r, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Ring{}, err
	}
	tmp, err := writeBeside(path, New(now).format(), nil)
	if err != nil {
		return Ring{}, err
	}
	// The first process to link its file creates the key; the others read it.
	err = os.Link(tmp, path)
	if rm := os.Remove(tmp); err == nil {
		err = rm
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return Ring{}, err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return Ring{}, err
	}
	return Load(path)
}

// Update replaces the keys in a file by those that change returns, durably and atomically: a reader
// sees either the old file or the new one. Owner and mode are kept. If another process is updating
// the file, or change returns an error, Update returns an error and the file is as it was.
func Update(path string, change func(Ring) (Ring, error)) (Ring, error) {
	path, err := filepath.EvalSymlinks(path) // a link must not be replaced by a file
	if err != nil {
		return Ring{}, fmt.Errorf("key file: %w", err)
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return Ring{}, err
	}
	defer unlock()
	old, err := Load(path)
	if err != nil {
		return Ring{}, err
	}
	next, err := change(old)
	if err != nil {
		return old, err
	}
	raw := next.format()
	if bytes.Equal(raw, old.format()) {
		return next, nil
	}
	if _, err := Parse(raw); err != nil {
		return old, fmt.Errorf("key file %s: the changed file would be invalid: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return old, err
	}
	tmp, err := writeBeside(path, raw, info)
	if err != nil {
		return old, err
	}
	if err := os.Rename(tmp, path); err != nil {
		return old, errors.Join(err, os.Remove(tmp))
	}
	return next, syncDir(filepath.Dir(path))
}

// writeBeside writes and syncs a temporary file in the directory of path, and returns its name. The file
// has the owner and the mode of like, or mode 0600 if like is nil.
func writeBeside(path string, raw []byte, like fs.FileInfo) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return "", err
	}
	if like != nil {
		err = f.Chmod(like.Mode().Perm())
		if err == nil {
			err = chown(f, like)
		}
	}
	if err == nil {
		_, err = f.Write(raw)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
