package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// DependOnSources makes go test run the calling test again after a change of what binaries are built from. By itself,
// go test runs a package again only when its test binary has changed, or an environment variable that its tests read,
// or a file or directory of the module that they opened. Otherwise it repeats the last result, also of a package that
// starts a binary whose sources it does not import. Build calls DependOnSources. A test whose binaries were built by
// another process must call it itself.
//
// make test builds the binaries beforehand and gives their digest in QUARTET_BINARIES, which changes with them only. A
// go test without that variable reads the source tree instead.
func DependOnSources() error {
	if os.Getenv("QUARTET_BINARIES") != "" {
		return nil
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	for _, dir := range []string{"cmd", "examples", "pkg", "services"} {
		if err := readTree(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			return fmt.Errorf("proc: %w", err)
		}
	}
	return nil
}

// readTree reads all directories of a tree but those of Node packages. Of a directory that was read, go test remembers
// the names, sizes and times of its files.
func readTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("proc: %w", err)
		}
		if e.IsDir() && e.Name() == "node_modules" {
			return filepath.SkipDir
		}
		return nil
	})
}

// moduleRoot returns the nearest directory with a go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("proc: %w", err)
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("proc: %w", err)
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("proc: no go.mod at or above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}
