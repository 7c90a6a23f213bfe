//go:build !unix

package localtoken

import (
	"errors"
	"fmt"
	"os"
)

// Prepare creates Dir and returns it. It is below the profile of the user, which other users cannot read.
func Prepare() (string, error) {
	dir := Dir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("directory of token files: %w; name one with XDG_STATE_HOME", err)
	}
	return dir, nil
}

// File is the token file of a running server. This system has none: no server runs here.
type File struct{}

// Publish returns an error.
func Publish(addr, _ string) (*File, error) {
	return nil, fmt.Errorf("token file of %s: %w on this system", addr, errors.ErrUnsupported)
}

// Path returns "".
func (*File) Path() string { return "" }

// Remove does nothing.
func (*File) Remove() error { return nil }

// Read returns "" and no error: no server of this system writes a token.
func Read(string) (string, error) { return "", nil }
