// Package arch tests the shape of the house: who may import whom, that every
// package says what it is for, and that no file grows out of hand.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
)

type pkg struct {
	ImportPath string
	Dir        string
	Doc        string
	GoFiles    []string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,GoFiles,Imports", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out := must.Value(cmd.Output())(t)
	var all []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// R1: a plane imports pkg, pkg/pb and itself, never another plane.
func TestR1_PlanesDoNotImportEachOther(t *testing.T) {
	planes := []string{
		"agent", "work", "task", "waiting", "board", "identity", "audit", "quota", "doctor", "scheduler",
		"gateway", "console", "fleet", "worker", "runner", "mcp", "cli",
	}
	for _, p := range packages(t) {
		rest, ok := strings.CutPrefix(p.ImportPath, "quartet/services/")
		if !ok || !slices.Contains(planes, strings.Split(rest, "/")[0]) {
			continue
		}
		own := "quartet/services/" + strings.Split(rest, "/")[0]
		for _, i := range p.Imports {
			// quartet/proto is the definition of the API, which belongs to no plane.
			if strings.HasPrefix(i, "quartet/") && !strings.HasPrefix(i, "quartet/pkg/") && i != "quartet/proto" &&
				i != own && !strings.HasPrefix(i, own+"/") {
				t.Errorf("%s imports %s; a service imports pkg and itself only", p.ImportPath, i)
			}
		}
	}
}

// Libraries know no plane. The client is the one that is for programs outside:
// it knows the public messages, and still no service; so do the spool of output
// that its workers and ours share, the chain of the audit log, which its readers check, and the
// messages that MCP and the command line show to those who take no turns.
func TestLibrariesImportNoService(t *testing.T) {
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, "quartet/pkg/") {
			continue
		}
		for _, i := range p.Imports {
			// they are of every plane
			if i == "quartet/pkg/pb/quartet/snapshot/v1" || i == "quartet/pkg/pb/quartet/archive/v1" {
				continue
			}
			if strings.HasPrefix(i, "quartet/services/") || strings.HasPrefix(i, "quartet/pkg/pb/") &&
				!strings.HasPrefix(p.ImportPath, "quartet/pkg/pb/") && p.ImportPath != "quartet/pkg/client" &&
				p.ImportPath != "quartet/pkg/spool" && p.ImportPath != "quartet/pkg/staletick" &&
				p.ImportPath != "quartet/pkg/auditchain" && p.ImportPath != "quartet/pkg/unread" {
				t.Errorf("%s imports %s; a library knows no plane", p.ImportPath, i)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 || strings.HasPrefix(p.ImportPath, "quartet/pkg/pb/") {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		for _, word := range []string{"common", "util", "utils", "types", "helper", "helpers"} {
			if filepath.Base(p.ImportPath) == word {
				t.Errorf("%s has a name that says nothing", p.ImportPath)
			}
		}
	}
}

// Every documented reason is used somewhere, so the list tells the truth.
func TestEveryReasonIsUsed(t *testing.T) {
	names := constants(t)
	var code bytes.Buffer
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, "quartet/pkg/pb/") {
			continue
		}
		for _, f := range p.GoFiles {
			if f == "reasons.go" {
				continue
			}
			b := must.Value(os.ReadFile(filepath.Join(p.Dir, f)))(t)
			code.Write(b)
		}
	}
	for _, e := range fault.All {
		name := names[string(e.Reason)]
		require.NotEmpty(t, name, "reason %s has no constant", e.Reason)
		if !bytes.Contains(code.Bytes(), []byte("fault."+name)) &&
			!bytes.Contains(code.Bytes(), []byte(" "+name+".")) &&
			!bytes.Contains(code.Bytes(), []byte(name)) {
			t.Errorf("reason %s is documented and never used", e.Reason)
		}
	}
}

// constants maps a reason to the name of its Go constant.
func constants(t *testing.T) map[string]string {
	b := must.Value(os.ReadFile(filepath.Join("..", "..", "pkg", "fault", "reasons.go")))(t)
	names := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) == 4 && f[1] == "Reason" && f[2] == "=" {
			names[strings.Trim(f[3], `"`)] = f[0]
		}
	}
	return names
}
