package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// apply sends all changes as one patch at the revision that it read.
func TestBoardApplySendsOnePatch(t *testing.T) {
	r := newHarness(t)
	require.Zero(t, r.run("board", "apply", "keeper", "testdata/board.yaml", "--prune").code)
	sent, ok := r.planes.last.(*boardv1.UpdateBoardRequest)
	require.True(t, ok)
	require.EqualValues(t, 7, sent.GetExpectedRevision())
	require.Len(t, sent.GetOperations(), 4)
	require.NotEmpty(t, sent.GetRequestId())

	require.Zero(t, r.run("board", "apply", "keeper", "testdata/other.yaml").code)
	made, ok := r.planes.last.(*boardv1.CreateBoardRequest)
	require.True(t, ok)
	require.Equal(t, "other", made.GetWalName())
}

// sync appends to a copy of a log the lines that it lacks, replaces an incomplete last
// line, and does not change a file that is something else.
func TestBoardWalSync(t *testing.T) {
	r := newHarness(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "keeper", "build.wal.jsonl")
	three := strings.Repeat(walLine+"\n", 3)
	for _, c := range []struct{ local, want, stderr string }{
		{"", three, "build.wal.jsonl: 3 lines"},
		{three, three, ""},
		{walLine + "\n" + walLine[:9], three, "build.wal.jsonl: 3 lines"},
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(c.local), 0o600))
		got := r.run("board", "wal", "sync", "keeper", dir)
		require.Zero(t, got.code, got.err)
		require.Equal(t, c.stderr, strings.TrimSpace(got.err))
		require.Equal(t, c.want, string(must.Value(os.ReadFile(file))(t)))
	}
	// What is not a copy of the server's log is named, with what to do, and is not changed.
	for content, wrong := range map[string]string{
		"what? nobody knows\n": "line 2 was changed",
		three + walLine + "\n": "it has 4 lines, and the server's log ends at line 3",

		walLine + "\n" + walLine + "\n" + walLine[:20] + "9}\n": "line 3 is not the one of the server's log",

		strings.Repeat("!", 30) + "\n": "the server's lines from 2 on do not continue it: " +
			"line 2 was changed",
	} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		got := r.run("board", "wal", "sync", "keeper", dir)
		require.NotZero(t, got.code, content)
		require.Contains(t, got.err, file+": ")
		require.Contains(t, got.err, wrong)
		require.Contains(t, strings.ToLower(got.err), "move")
		require.Equal(t, content, string(must.Value(os.ReadFile(file))(t)))
		require.Len(t, must.Value(os.ReadDir(filepath.Dir(file)))(t), 1)
	}
}

// With -o json too, replay and verify say how much of a log is cut off (SPEC B1.4).
func TestB1_ATornLogIsSaidInJSON(t *testing.T) {
	r := newHarness(t)
	for file, torn := range map[string]float64{"testdata/cut.wal.jsonl": 5, "-": 0} {
		for _, verb := range [][]string{{"board", "replay"}, {"board", "wal", "verify"}} {
			if file == "-" {
				file = filepath.Join(t.TempDir(), "whole.wal.jsonl")
				require.NoError(t, os.WriteFile(file, []byte(strings.Repeat(walLine+"\n", 2)), 0o600))
			}
			got := r.run(append(verb, file, "-o", "json")...)
			require.Zero(t, got.code, got.err)
			var doc struct {
				Board     map[string]any `json:"board"`
				Lines     float64        `json:"lines"`
				TornBytes float64        `json:"tornBytes"`
			}
			require.NoError(t, json.Unmarshal([]byte(got.out), &doc))
			require.Equal(t, "build", doc.Board["boardId"])
			require.Equal(t, []float64{2, torn}, []float64{doc.Lines, doc.TornBytes})
		}
	}
}
