package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// What apply sends is one patch at the revision that was read.
func TestBoardApplySendsOnePatch(t *testing.T) {
	r := newRig(t)
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

// A copy of a log is brought up to date from where it ends; one that was cut off
// is mended; one that says something else is left alone.
func TestBoardWalSync(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "keeper", "build.wal.jsonl")
	three := strings.Repeat(walLine+"\n", 3)
	for _, c := range []struct{ has, want, says string }{
		{"", three, "build.wal.jsonl: 3 lines"},
		{three, three, ""},
		{walLine + "\n" + walLine[:9], three, "build.wal.jsonl: 3 lines"},
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(c.has), 0o600))
		got := r.run("board", "wal", "sync", "keeper", dir)
		require.Zero(t, got.code, got.err)
		require.Equal(t, c.says, strings.TrimSpace(got.err))
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, c.want, string(raw))
	}
	require.NoError(t, os.WriteFile(file, []byte("what? nobody knows\n"), 0o600))
	got := r.run("board", "wal", "sync", "keeper", dir)
	require.NotZero(t, got.code)
	require.Contains(t, got.err, "build.wal.jsonl: ")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "what? nobody knows\n", string(raw))
}
