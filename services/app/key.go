package app

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loadKey reads the installation's key, or creates it if there is no file. Credentials and
// trigger secrets are derived from it, so it is written once, synced, and never replaced: a
// file with something else is an error.
func loadKey(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	switch {
	case err == nil:
		key, err := hex.DecodeString(strings.TrimSpace(string(raw)))
		if err != nil || len(key) < 32 {
			return nil, fmt.Errorf("key file %s does not hold 64 or more hex digits; restore it from a backup, because credentials and trigger URLs are derived from it", path)
		}
		return key, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("key file: %w", err)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	// If two processes start at once, one of them links its file first, and both read that
	// one.
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(hex.EncodeToString(key) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	err = os.Link(tmp, path)
	if rm := os.Remove(tmp); err == nil {
		err = rm
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return loadKey(path)
}

// triggerSecrets returns a function that derives the secret of a trigger from its id.
// Only a hash of the secret is stored, and a repeated request still returns the same
// secret.
func triggerSecrets(key []byte) func(string) string {
	return func(triggerID string) string {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte("trigger\x00" + triggerID))
		return "qtr_" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
}

// lockDir locks a data directory, which it creates if necessary, or returns an error if
// another process has locked it: two embedded servers with one store would destroy it.
func lockDir(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data-dir %s is in use by another process; stop it or choose another data-dir", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f.Close, nil
}
