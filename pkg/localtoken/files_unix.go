//go:build unix

package localtoken

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Prepare creates Dir, for this user only, and returns it. It returns an error if Dir exists and belongs
// to another user, or is open to others.
func Prepare() (string, error) {
	dir := Dir()
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", fmt.Errorf("directory of token files: %w; name one with XDG_STATE_HOME", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("directory of token files: %w; name one with XDG_STATE_HOME", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("directory of token files: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s, for token files, is not a directory (%s); remove it", dir, info.Mode())
	}
	return dir, private(dir, info, "chmod 700")
}

// File is the token file of a running server.
type File struct {
	path string
	lock *os.File
}

// Publish writes the token file of a server that listens at addr, and replaces the file of an earlier server
// there. It locks the file until Remove is called or the process ends. A server must call it after it has
// begun to listen and before it accepts calls, so that a client that was waiting for the server finds the file.
func Publish(addr, token string) (*File, error) {
	path := Path(addr)
	if path == "" {
		return nil, fmt.Errorf("%s is not a loopback address; a token file is for clients of this machine", addr)
	}
	dir, err := Prepare()
	if err != nil {
		return nil, err
	}
	// Only one process of this user changes the directory at a time, so that sweep removes no new file.
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of token files: %w", err)
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w; name a directory on a local disk with XDG_STATE_HOME", dir, err)
	}
	sweep(d)
	// A new file with a name of its own: nothing that exists is opened or followed.
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	_, err = f.WriteString(header + token + "\n")
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("token file: %w", err), os.Remove(f.Name()), f.Close())
	}
	return &File{path: path, lock: f}, nil
}

// Path returns the path of the file.
func (f *File) Path() string { return f.path }

// Remove removes the file, unless a later server has replaced it, and releases the lock. A server must
// call it before it stops listening, because another server can use the address after that. Further calls,
// and a call of a nil File, do nothing.
func (f *File) Remove() error {
	if f == nil || f.lock == nil {
		return nil
	}
	var err error
	if now, e := os.Lstat(f.path); e == nil {
		if own, e := f.lock.Stat(); e == nil && os.SameFile(now, own) {
			err = os.Remove(f.path)
		}
	}
	err = errors.Join(err, f.lock.Close())
	f.lock = nil
	return err
}

// Read returns the token of the server of this user that listens at addr. It is "" if there is none:
// addr is not a loopback address, there is no file, or its server has ended. A file that
// another user owns or can read is an error, and so is one with other content.
func Read(addr string) (string, error) {
	path := Path(addr)
	if path == "" {
		return "", nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("token file %s is not a regular file (%s); remove it", path, info.Mode())
	}
	if err := private(path, info, "chmod 600"); err != nil {
		return "", err
	}
	running, err := locked(f)
	if err != nil || !running {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token, ok := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), header)
	if !ok || !strings.HasPrefix(token, Prefix) || strings.ContainsAny(token, " \t\r\n") || len(text) > maxFile {
		return "", fmt.Errorf("token file %s does not have the form %s%s…; restart the server that wrote it", path,
			header, Prefix)
	}
	return token, nil
}

// private returns an error for a file or directory that another user owns or can use. remedy is the command that
// makes it private.
func private(path string, info fs.FileInfo, remedy string) error {
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s, for tokens, belongs to another user; remove it, or name another directory with "+
			"XDG_STATE_HOME", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s, for tokens, is open to other users (mode %04o); if none of them changed it: %s %s", path,
			mode, remedy, path)
	}
	return nil
}

// locked reports whether a process holds the lock of a token file, without waiting.
func locked(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock of token file %s: %w", f.Name(), err)
	}
	return false, nil // closing the file releases the lock
}

// sweep removes the token files in the directory d of servers that ended without removing them. It ignores errors.
// The caller must hold the lock of d.
func sweep(d *os.File) {
	names, _ := d.Readdirnames(maxSwept)
	for _, name := range names {
		if _, err := netip.ParseAddrPort(name); err != nil {
			continue
		}
		f, err := os.OpenFile(filepath.Join(d.Name(), name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if running, err := locked(f); err == nil && !running {
			_ = os.Remove(f.Name())
		}
		_ = f.Close()
	}
}
