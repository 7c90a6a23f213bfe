package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of the home file API (SPEC A11).
const (
	maxHomePathBytes = 1024
	maxHomePartBytes = 255 // what file systems take for one name
	maxHomeFileBytes = 3 << 20
	maxHashedBytes   = 4 << 20 // a read of a larger file does not hash all of it
	// stagedPrefix begins the names of files on their way into place.
	stagedPrefix = ".quartet-"
)

// fileKey names a file for the lock that keeps its writers apart.
type fileKey struct {
	key
	path string
}

// homePath checks a caller's path. os.Root confines whatever comes; this gives
// the refusals that people understand.
func homePath(field, p string) (string, error) {
	if err := fault.TextBytes(field, p, maxHomePathBytes, true); err != nil {
		return "", err
	}
	if strings.HasPrefix(p, "/") {
		return "", outside(field, p)
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return "", outside(field, p)
		case len(part) > maxHomePartBytes:
			return "", fault.Invalid(field, p, "must have names of at most 255 bytes")
		case strings.HasPrefix(part, stagedPrefix):
			return "", fault.Invalid(field, p, "must not have a name that begins with "+stagedPrefix+", which are files being written")
		}
	}
	return path.Clean(p), nil
}

func outside(field, p string) error {
	return fault.PathOutsideHome.Newf("%s %q leads out of the agent's home; give a path relative to it, without ..", field, p).
		With("path", p).WithField(field, "must stay in the agent's home")
}

// homeTrouble says what a failed file operation means to the caller.
func homeTrouble(p string, err error) error {
	var known *fault.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFound.Newf("no file %q in the agent's home", p).With("path", p)
	// The os package has no value for it.
	case strings.Contains(err.Error(), "path escapes from parent"):
		return outside("path", p)
	case errors.Is(err, fs.ErrPermission):
		return fault.PermissionDenied.Newf("file %q may not be opened by the server", p).With("path", p)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENXIO), errors.Is(err, fs.ErrExist):
		return notAFile(p, "something else stands there or on the way")
	}
	return fault.Storage.Newf("file %q could not be read or written", p).With("outcome", "none").WithCause(err)
}

func notAFile(p, what string) error {
	return fault.NotAFile.Newf("%q cannot be used: %s", p, what).With("path", p)
}

// openHome opens the home of an agent that exists, for a caller who may read
// it, or write to it. One that was never written to is nil.
func (s *Service) openHome(ctx context.Context, agentID string, write bool) (*home, error) {
	actor := rpc.ActorFrom(ctx)
	if err := s.admit(actor, agentID); err != nil {
		return nil, err
	}
	if write {
		if err := rpc.RequireRole(ctx, writers...); err != nil {
			return nil, err
		}
	}
	if err := s.exists(ctx, key{actor.Namespace, agentID}); err != nil && (write || fault.From(err).Reason() != fault.AgentDeleted) {
		return nil, err
	}
	if write { // what a deleted agent left can be read, and stays as it is
		if _, _, err := plane.View(ctx, s.engine, agentID, func(st *State) (struct{}, error) {
			return struct{}{}, st.ownerAlive(actor.Namespace, agentID)
		}); err != nil {
			return nil, err
		}
	}
	h, err := s.plans.home(actor.Namespace, agentID, write)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, homeTrouble("", err)
	}
	return h, nil
}

// regular opens a file for reading. A pipe that somebody put there must not
// hold the server until it is written to.
func (h *home) regular(p string) (*os.File, fs.FileInfo, error) {
	if h == nil {
		return nil, nil, homeTrouble(p, fs.ErrNotExist)
	}
	f, err := h.OpenFile(filepath.FromSlash(p), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, homeTrouble(p, err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = notAFile(p, "it is not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, homeTrouble(p, err)
	}
	return f, st, nil
}

// hash is the SHA-256 of a whole file, in little memory.
func (h *home) hash(p string) (sum string, mode fs.FileMode, err error) {
	f, st, err := h.regular(p)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }()
	w := sha256.New()
	if _, err := io.Copy(w, f); err != nil {
		return "", 0, homeTrouble(p, err)
	}
	return hex.EncodeToString(w.Sum(nil)), st.Mode().Perm(), nil
}

// place puts a whole file where its name says, at once, and syncs it with every
// directory that was made for it.
func (h *home) place(name string, content []byte, mode fs.FileMode, staged string) error {
	dir := filepath.Dir(name)
	made := false
	if _, err := h.Stat(dir); err != nil {
		made = true
		if err := h.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	tmp := filepath.Join(dir, stagedPrefix+staged)
	f, err := h.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = h.Rename(tmp, name)
	}
	if err != nil {
		_ = h.Remove(tmp)
		return err
	}
	for {
		if err := h.syncDir(dir); err != nil {
			return err
		}
		if !made || dir == "." {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

func (h *home) syncDir(name string) error {
	d, err := h.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func homeFile(p string, st fs.FileInfo) *workv1.HomeFile {
	f := &workv1.HomeFile{Path: p, Directory: st.IsDir(), UpdatedAt: timestamppb.New(st.ModTime().UTC())}
	if !st.IsDir() {
		f.Bytes = st.Size()
	}
	return f
}
