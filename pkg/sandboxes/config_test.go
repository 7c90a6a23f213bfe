package sandboxes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/localtoken"
	"quartet/pkg/must"
)

// The directory of token files is hidden before a server has created it, wherever the variables put it. Hiding does not
// create it: in a root that workers share, the sandboxes of the others, where only Landlock confines, would end.
func TestT10_TokenFilesDoNotExistForCommands(t *testing.T) {
	home := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	usual := filepath.Join(home, ".local", "state", "quartet")
	require.Contains(t, (&Config{}).hidden(), usual)
	require.NoDirExists(t, filepath.Join(home, ".local"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	require.Subset(t, (&Config{}).hidden(), []string{usual, localtoken.Dir()},
		"that of this worker, and that of a server without the variable")
}

// An empty directory of token files is removed from a root, and remains hidden in case a server creates it. With a
// token in it, or in no root, it stays where it is.
func TestT10_ARootWithoutTokens(t *testing.T) {
	home := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	tokens := must.Value(localtoken.Prepare())(t)
	require.False(t, removeEmptyTokenDir([]string{filepath.Join(home, "project")}))
	require.DirExists(t, tokens)
	require.True(t, removeEmptyTokenDir([]string{home}))
	require.NoDirExists(t, tokens)
	require.Contains(t, (&Config{}).hidden(), tokens)

	must.Value(localtoken.Prepare())(t)
	require.NoError(t, os.WriteFile(filepath.Join(tokens, "127.0.0.1:7480"), nil, 0o600))
	require.False(t, removeEmptyTokenDir([]string{home}))
}

// What does not exist yet is hidden too, and of a symbolic link the link and what it leads to.
func TestT10_WhatDoesNotExistYetIsHidden(t *testing.T) {
	dir := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	t.Setenv("HOME", filepath.Join(dir, "home"))
	require.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "home"), 0o700),
		os.Mkdir(filepath.Join(dir, "real"), 0o700), os.WriteFile(filepath.Join(dir, "real", "v1"), nil, 0o600)))
	require.NoError(t, errors.Join(os.Symlink("real", filepath.Join(dir, "link")),
		os.Symlink("v1", filepath.Join(dir, "real", "key"))))
	hidden := (&Config{Hidden: []string{
		filepath.Join(dir, "link", "key"), filepath.Join(dir, "link", "later", "key"),
		"",
	}}).hidden()
	require.Subset(t, hidden, []string{
		filepath.Join(dir, "real", "key"), filepath.Join(dir, "real", "v1"),
		filepath.Join(dir, "real", "later", "key"), filepath.Join(dir, "home", ".netrc"),
	})
	require.NotContains(t, hidden, must.Value(os.Getwd())(t))
}

// The secrets of a process are hidden. Where commands could read one of them after it is replaced, no worker begins.
func TestT10_SecretsOfTheProcessAreInNoRoot(t *testing.T) {
	dir := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	root, keys := filepath.Join(dir, "root"), filepath.Join(dir, "root", "keys")
	require.NoError(t, os.MkdirAll(keys, 0o700))
	outside, exposed, inside := filepath.Join(dir, "key"), filepath.Join(root, "tls.key"), filepath.Join(keys, "key")
	cfg := &Config{Hidden: []string{keys}}
	require.NoError(t, cfg.HideFiles(map[string]string{
		"key-file": outside, "oidc-client-secret-file": "",
		"tls-key-file": inside,
	}, []string{root}))
	require.Subset(t, cfg.hidden(), []string{outside, inside, keys})
	err := cfg.HideFiles(map[string]string{"tls-key-file": exposed}, []string{root})
	require.ErrorContains(t, err, "tls-key-file: "+exposed+" is inside of a directory that commands write")
	require.NoError(t, os.Symlink(exposed, filepath.Join(dir, "link")))
	require.ErrorContains(t, cfg.HideFiles(map[string]string{"key-file": filepath.Join(dir, "link")}, []string{root}),
		exposed)
}
