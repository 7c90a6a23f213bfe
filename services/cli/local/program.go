package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program returns the absolute path of this program for files that outlive it, such as settings of other tools and
// the definition of a service. If the program was started through a link, that is the path of the link, which a
// package manager points to the newest version.
func Program() (string, error) { return program(os.Args[0]) }

// program is Program for a process that was started as name.
func program(name string) (string, error) {
	file, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("the path of this program: %w", err)
	}
	this, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("the path of this program: %w", err)
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return file, nil //nolint:nilerr // the name is not a path that leads anywhere from here
	}
	if started, err := os.Stat(path); err != nil || !os.SameFile(started, this) { //nolint:gosec // whoever starts the program names it
		return file, nil //nolint:nilerr // see above
	}
	return path, nil
}
