// Package homes reads and writes the agents' homes: a directory for each agent, with
// the plan files of its work items and whatever the agent writes there.
//
// Owns: the directory of all homes; the cache of plan descriptors.
// Never does: know who may read or write, or what the journal says of an item.
// Every path is opened below the home of one agent: a symbolic link that an agent makes
// leads nowhere outside it.
package homes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// MaxFileBytes is the size of the largest file that is written or edited (SPEC A11).
const MaxFileBytes = 3 << 20

// stagedPrefix begins the names of files that are being written.
const stagedPrefix = ".quartet-"

// Dir is the directory that holds all homes, as <namespace>/<agent>.
type Dir struct {
	path string // absolute
	root *os.Root
}

// OpenDir opens the directory at path, and makes it if it is missing. The caller must
// call Close on the Dir.
func OpenDir(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(abs, 0o750); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, err
	}
	return &Dir{path: abs, root: root}, nil
}

// Close releases the directory. Homes that are open stay open.
func (d *Dir) Close() error { return d.root.Close() }

// Home is the open home of one agent. A nil Home stands for one that nothing was ever
// written to; only File, Hash, Read, ReadAll, Walk and Close accept it.
type Home struct {
	root *os.Root
	path string // absolute
}

// Open opens an agent's home. A home that does not exist yet is made if create is set;
// otherwise the error wraps fs.ErrNotExist. The caller must call Close on the Home.
func (d *Dir) Open(namespace, agentID string, create bool) (*Home, error) {
	name := filepath.Join(namespace, agentID)
	root, err := d.root.OpenRoot(name)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err = d.root.MkdirAll(name, 0o750); err == nil {
			root, err = d.root.OpenRoot(name)
		}
	}
	if err != nil {
		return nil, err
	}
	return &Home{root, filepath.Join(d.path, name)}, nil
}

// Remove removes an agent's home with all that is in it. It is no error if there is none.
func (d *Dir) Remove(namespace, agentID string) error {
	return d.root.RemoveAll(filepath.Join(namespace, agentID))
}

// Close releases the home.
func (h *Home) Close() {
	if h != nil {
		_ = h.root.Close()
	}
}

// File opens a file for reading, which the caller must close, and describes it. Opening does
// not block, and anything but a regular file, such as a pipe, is NOT_A_FILE. Its errors, as
// those of Hash and ReadAll, are errors of the API.
func (h *Home) File(p string) (*os.File, fs.FileInfo, error) {
	if h == nil {
		return nil, nil, Error(p, fs.ErrNotExist)
	}
	f, err := h.root.OpenFile(filepath.FromSlash(p), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, Error(p, err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = NotAFile(p, "it is not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, Error(p, err)
	}
	return f, st, nil
}

// Hash returns the SHA-256 and the permissions of a file. It takes a fixed amount of
// memory.
func (h *Home) Hash(p string) (sum string, mode fs.FileMode, err error) {
	f, st, err := h.File(p)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }()
	w := sha256.New()
	if _, err := io.Copy(w, f); err != nil {
		return "", 0, Error(p, err)
	}
	return hex.EncodeToString(w.Sum(nil)), st.Mode().Perm(), nil
}

// ReadAll returns the content of a file of at most MaxFileBytes, and TOO_LARGE for a larger
// one.
func (h *Home) ReadAll(p string) ([]byte, error) {
	f, st, err := h.File(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if st.Size() > MaxFileBytes {
		return nil, fault.TooLarge.Newf("file %q has %d bytes; at most %d are edited through the API", p, st.Size(),
			MaxFileBytes).With("path", p)
	}
	content, err := readAtMost(f, MaxFileBytes)
	if err != nil {
		return nil, Error(p, err)
	}
	return content, nil
}

// readAtMost returns the first n bytes of r, or all if there are fewer.
func readAtMost(r io.Reader, n int64) ([]byte, error) { return io.ReadAll(io.LimitReader(r, n)) }

// Write writes a complete file, in place of any that is there, and returns what it is then.
// Readers see the old content or the new. The content, and every directory that was made
// for it, is on disk when Write returns. staged makes the name of the temporary file unique
// among concurrent writes in one directory. Its errors, as those of Open and Stat, are
// those of package os; see Error.
func (h *Home) Write(p string, content []byte, mode fs.FileMode, staged string) (fs.FileInfo, error) {
	name := filepath.FromSlash(p)
	dir := filepath.Dir(name)
	made := false
	if _, err := h.root.Stat(dir); err != nil {
		made = true
		if err := h.root.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
	}
	tmp := filepath.Join(dir, stagedPrefix+staged)
	f, err := h.root.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = h.root.Rename(tmp, name)
	}
	if err != nil {
		_ = h.root.Remove(tmp)
		return nil, err
	}
	if made {
		err = h.syncDirs(dir)
	} else {
		err = h.syncDir(dir)
	}
	if err != nil {
		return nil, err
	}
	return h.root.Stat(name)
}

// Stat describes a file or directory, following links within the home.
func (h *Home) Stat(p string) (fs.FileInfo, error) { return h.root.Stat(filepath.FromSlash(p)) }

// syncDir writes a directory's entries to disk.
func (h *Home) syncDir(name string) error {
	d, err := h.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// syncDirs writes the entries of a directory and of those above it in the home to disk.
func (h *Home) syncDirs(name string) error {
	for {
		if err := h.syncDir(name); err != nil || name == "." {
			return err
		}
		name = filepath.Dir(name)
	}
}

// Describe returns a file or directory as the API shows it, without its hash.
func Describe(p string, st fs.FileInfo) *workv1.HomeFile {
	f := &workv1.HomeFile{Path: p, Directory: st.IsDir(), UpdatedAt: shownTime(st)}
	if !st.IsDir() {
		f.Bytes = st.Size()
	}
	return f
}

// Error translates the error of a file operation into one of the API. It returns an error
// of the API unchanged.
func Error(p string, err error) error {
	var known *fault.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFound.Newf("no file %q in the agent's home", p).With("path", p)
	// The os package has no value for this error of os.Root.
	case strings.Contains(err.Error(), "path escapes from parent"):
		return outside("path", p)
	case errors.Is(err, fs.ErrPermission):
		return fault.PermissionDenied.Newf("file %q may not be opened by the server", p).With("path", p)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENXIO), errors.Is(err, fs.ErrExist):
		return NotAFile(p, "it, or a directory of its path, is of another type")
	}
	return fault.Storage.Newf("file %q could not be read or written", p).With("outcome", "none").WithCause(err)
}

// NotAFile returns the refusal of a path that cannot be read or written as a file, with
// the reason.
func NotAFile(p, cause string) error {
	return fault.NotAFile.Newf("%q cannot be used: %s", p, cause).With("path", p)
}
