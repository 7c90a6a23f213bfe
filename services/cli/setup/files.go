package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
)

const (
	// maxSettings is the size of the largest file that is edited, in bytes.
	maxSettings = 16 << 20
	// maxCopies is how many copies of a file are kept.
	maxCopies = 20
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
// of the file, and follows a link. It returns an error if the file has changed since old was read. keep says whether
// it makes a copy of old. With keepNone, if a copy has the same JSON as next in another form, that form is written.
// Copies that equal what was written are removed.
func writeFile(path string, old, next []byte, keep keeping) error {
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
	if err := keepCopy(path, old, mode, keep); err != nil {
		return err
	}
	if next == nil {
		return os.Remove(path)
	}
	for _, name := range copiesOf(path) {
		if text, err := readFile(name); err == nil && keep == keepNone && sameJSON(text, next) {
			next = text // in the form in which the user wrote it
			break
		}
	}
	if err := replaceFile(path, next, mode); err != nil {
		return err
	}
	for _, name := range copiesOf(path) {
		if text, err := readFile(name); err == nil && bytes.Equal(text, next) {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameJSON reports whether two documents of JSON have the same values. It is false if one is no JSON.
func sameJSON(a, b []byte) bool {
	var values [2]any
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if !json.Valid(text) || d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// keeping says when a copy of a file is made.
type keeping int

const (
	keepNone  keeping = iota // never: setup made the file, or only removes what it entered
	keepFirst                // if there is no copy yet: setup has entered something into the file before
	keepNew                  // if no copy has the same content: setup has entered nothing into the file
)

// keepCopy writes a copy of a file beside it. It never replaces an earlier one.
func keepCopy(path string, old []byte, mode fs.FileMode, keep keeping) error {
	if keep == keepNone || old == nil {
		return nil
	}
	copies := copiesOf(path)
	if keep == keepFirst && len(copies) > 0 {
		return nil
	}
	for _, name := range copies {
		if text, err := readFile(name); err == nil && bytes.Equal(text, old) {
			return nil
		}
	}
	for n := 1; n <= maxCopies; n++ {
		name := copyName(path, n)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return replaceFile(name, old, mode)
		}
	}
	return fmt.Errorf("there are %d copies %s*; remove those that you do not need", maxCopies, path+backupSuffix)
}

// copyName returns the name of the nth copy of a file.
func copyName(path string, n int) string {
	if n == 1 {
		return path + backupSuffix
	}
	return path + backupSuffix + "." + strconv.Itoa(n)
}

// copiesOf returns the names of the existing copies of a file, in the order of their numbers. This need not be the
// order of their ages: a new copy gets the lowest number that is free.
func copiesOf(path string) []string {
	var out []string
	for n := 1; n <= maxCopies; n++ {
		if _, err := os.Lstat(copyName(path, n)); err == nil {
			out = append(out, copyName(path, n))
		}
	}
	return out
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
