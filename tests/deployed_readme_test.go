//go:build deployed

package tests

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var deployedDir = flag.String("deployed-dir", "", "the directory that `make up` was run in, for what does harm to it")

// TestTheReadmeIsRun runs the commands of "Run it for real" in their order, in one
// shell, in the directory of -deployed-dir: a copy of this tree whose .env has other
// ports. What README.md shows of their output must be in it.
func TestTheReadmeIsRun(t *testing.T) {
	require.NotEmpty(t, *deployedDir, "make compose-test gives the directory")
	_, httpPort, _ := strings.Cut(strings.TrimPrefix(*deployedHTTP, "https://"), ":")
	_, grpcPort, _ := strings.Cut(*deployedGRPC, ":")
	ours := strings.NewReplacer("7480", httpPort, "7481", grpcPort)
	out := t.TempDir()
	blocks := section(t, "Run it for real")
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	file := func(i int) string { return filepath.Join(out, fmt.Sprint(i)) }
	for i, b := range blocks {
		// Braces and not parentheses: what a block exports, the next one has.
		fmt.Fprintf(&script, "{\n%s} > %s 2>&1\n", ours.Replace(b.commands), file(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, os.WriteFile(file(len(blocks)), []byte(script.String()), 0o600))
	cmd := exec.CommandContext(ctx, "bash", file(len(blocks)))
	cmd.Dir = *deployedDir
	// The shell of somebody who begins: nothing of Quartet is set.
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "QUARTET_TOKEN") && !strings.HasPrefix(kv, "SSL_CERT_FILE=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	said, err := cmd.CombinedOutput()
	for i, b := range blocks {
		raw, missing := os.ReadFile(file(i))
		require.NoError(t, missing, "block %d was not reached: %s", i, said)
		last := err != nil && (i == len(blocks)-1 || !exists(file(i+1))) // it ended here
		require.False(t, last, "%v\n%s\nsaid:\n%s%s", err, b.commands, raw, said)
		for _, line := range b.lines {
			require.Regexp(t, loosely(ours.Replace(line)), string(raw), b.commands)
		}
	}
	require.NoError(t, err, string(said))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// loosely finds a line: … is anything within it, blanks are as many as there are.
func loosely(line string) *regexp.Regexp {
	parts := strings.Split(line, "…")
	for i, p := range parts {
		words := strings.Fields(p)
		for j := range words {
			words[j] = regexp.QuoteMeta(words[j])
		}
		parts[i] = strings.Join(words, `\s+`)
	}
	return regexp.MustCompile(strings.Join(parts, `[^\n]*`))
}
