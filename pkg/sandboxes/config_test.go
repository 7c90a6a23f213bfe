package sandboxes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/localtoken"
)

// The directory of token files is hidden before a server has created it, wherever the variables put it, and if
// its mode is wrong.
func TestT10_TokenFilesDoNotExistForCommands(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	usual := filepath.Join(home, ".local", "state", "quartet")
	require.Contains(t, (&Config{}).hidden(), usual)
	require.DirExists(t, usual)
	require.NoError(t, os.Chmod(usual, 0o755))
	require.Contains(t, (&Config{}).hidden(), usual)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	require.Subset(t, (&Config{}).hidden(), []string{usual, localtoken.Dir()}, "that of this worker, and that of a server without the variable")
}

// Where only Landlock confines, a root that contains the home is usable as long as there is no token: the
// directory that was created in case of one is removed. With a token in it, it stays hidden.
func TestT10_ARootWithoutTokens(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	tokens := filepath.Join(home, ".local", "state", "quartet")
	policy := func(root string) *confine.Policy {
		return &confine.Policy{Writable: []string{root}, Hidden: append((&Config{}).hidden(), "/elsewhere")}
	}
	p := policy(home)
	require.Contains(t, p.Hidden, tokens)
	require.True(t, withoutTokens(p))
	require.Equal(t, []string{"/elsewhere"}, p.Hidden)
	require.NoDirExists(t, tokens)
	require.True(t, withoutTokens(p), "another sandbox was opened at the same time")

	p = policy(filepath.Join(home, "project"))
	require.False(t, withoutTokens(p), "it is in no root")
	require.DirExists(t, tokens)

	p = policy(home)
	require.NoError(t, os.WriteFile(filepath.Join(tokens, "127.0.0.1:7480"), nil, 0o600))
	require.False(t, withoutTokens(p))
	require.Contains(t, p.Hidden, tokens)
}
