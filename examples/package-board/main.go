// Command package-board prints a board for a Go repository: a step for each package, which depends
// on the steps of the packages that it imports. A broken package is found before the packages
// that import it, and independent packages are tested concurrently.
//
//	go run ./examples/package-board -C ~/src/project > board.yaml
//	quartet board apply keeper board.yaml
//	quartet board open keeper/packages go
//	quartet worker --pool go --capacity 2 --writable ~/src/project --handler "cd $HOME/src/project;"' go test -short "$QUARTET_STEP_TITLE"'
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	dir := flag.String("C", ".", "the repository")
	name := flag.String("board", "packages", "the board's id")
	pool := flag.String("pool", "go", "the pool of its workers")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	if err := write(os.Stdout, *dir, *name, *pool, patterns); err != nil {
		fmt.Fprintln(os.Stderr, "package-board:", err)
		os.Exit(1)
	}
}

// board is the content of the file that `quartet board apply` reads.
type board struct {
	Board string `yaml:"board"`
	Title string `yaml:"title"`
	Pool  string `yaml:"pool"`
	Steps []step `yaml:"steps"`
}

type step struct {
	ID    string   `yaml:"id"`
	Title string   `yaml:"title"`
	Needs []string `yaml:"needs,omitempty,flow"`
}

func write(out io.Writer, dir, name, pool string, patterns []string) error {
	pkgs, err := list(dir, patterns)
	if err != nil {
		return err
	}
	ids, taken := map[string]string{}, map[string]bool{}
	for _, p := range pkgs {
		id := stepID(p.ImportPath)
		for n := 2; taken[id]; n++ { // such as for a/b and a-b, which have the same stepID
			id = stepID(p.ImportPath + "-" + strconv.Itoa(n))
		}
		ids[p.ImportPath], taken[id] = id, true
	}
	b := board{Board: name, Title: fmt.Sprintf("Test %d packages, each after what it imports", len(pkgs)), Pool: pool}
	for _, p := range pkgs {
		s := step{ID: ids[p.ImportPath], Title: p.ImportPath}
		for _, i := range p.Imports {
			if id, ours := ids[i]; ours {
				s.Needs = append(s.Needs, id)
			}
		}
		b.Steps = append(b.Steps, s)
	}
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(b); err != nil {
		return err
	}
	return enc.Close()
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func list(dir string, patterns []string) ([]pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports", "--"}, patterns...)...) //nolint:noctx // ^C ends both
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w: %s", dir, err, strings.TrimSpace(errs.String()))
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(raw)); ; {
		var p pkg
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs, nil
		case err != nil:
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

// stepID returns the step id for a package path: with the characters that an id may have, and only
// its end if it is too long.
func stepID(path string) string {
	const most = 128
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(path))
	return strings.TrimLeft(id[max(len(id)-most, 0):], "-_")
}
