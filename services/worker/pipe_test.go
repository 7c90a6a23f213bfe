package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// A pipe in the place of a file of git keeps nobody waiting.
func TestT9_APipeIsNotRead(t *testing.T) {
	root := t.TempDir()
	pipe := filepath.Join(root, "locked")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, ".git"), []byte("gitdir: "+root+"\n"), 0o600))
	_, err := isInterrupted(&taskv1.Worktree{Path: root})
	require.ErrorContains(t, err, pipe)
	require.NoError(t, os.Remove(pipe))
	require.NoError(t, os.WriteFile(pipe, []byte("initializing\n"), 0o600))
	interrupted, err := isInterrupted(&taskv1.Worktree{Path: root})
	require.NoError(t, err)
	require.True(t, interrupted)
}
