package confine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// replace replaces a file as editors and key rotation do: a file beside it is renamed over it.
func replace(t *testing.T, path, content string) {
	require.NoError(t, errors.Join(os.WriteFile(path+".new", []byte(content), 0o600), os.Rename(path+".new", path)))
}

// What is hidden in a directory that commands only read does not appear in an open sandbox, whatever the host does:
// replace it, make it, write a copy beside it, or replace a directory around it. The rest of the directory is there
// (SPEC T10).
func TestT10_WhatIsReplacedStaysHidden(t *testing.T) {
	etc := filepath.Join(must.Value(filepath.EvalSymlinks(t.TempDir()))(t), "etc")
	key, absent, tls := filepath.Join(etc, "app", "key"), filepath.Join(etc, "app", "token"),
		filepath.Join(etc, "app", "tls")
	for path, content := range map[string]string{
		key: "SECRET", filepath.Join(etc, "app", "public"): "public",
		filepath.Join(etc, "live", "f"): "before", filepath.Join(tls, "tls.key"): "SECRET",
		filepath.Join(etc, "top"): "top",
	} {
		require.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(content), 0o644)))
	}
	require.NoError(t, os.Symlink("app/public", filepath.Join(etc, "link")))
	s := open(t, func(p *confine.Policy) {
		p.Level, p.Readable, p.Hidden = confine.LevelNamespaces, []string{etc},
			[]string{key, absent, tls, filepath.Join(etc, "later", "key")}
	})
	look := func() string {
		out, _ := s.run("cd " + etc + "; find . -type f -exec cat {} + | tr -d '\\n'; cat app/key app/token " +
			"app/tls/tls.key later/key app/.key.tmp 2>/dev/null; ls -a app app/tls later 2>/dev/null")
		return out
	}
	said := look()
	require.NotContains(t, said, "SECRET")
	for _, word := range []string{"public", "before", "top"} {
		require.Contains(t, said, word)
	}
	out, _ := s.run("cat " + etc + "/link; ls " + etc + "/app")
	require.Equal(t, "publicpublic", strings.ReplaceAll(out, "\n", ""), "neither key nor tls exists")

	replace(t, key, "SECRET")
	require.NotContains(t, look(), "SECRET", "the key was replaced")
	require.NoError(t, errors.Join(os.WriteFile(absent, []byte("SECRET"), 0o600),
		os.WriteFile(filepath.Join(etc, "app", ".key.tmp"), []byte("SECRET"), 0o600)))
	require.NotContains(t, look(), "SECRET", "what was not there was made, and a copy beside the key")
	require.NoError(t, errors.Join(os.Rename(tls, tls+".old"), os.Mkdir(tls, 0o755),
		os.WriteFile(filepath.Join(tls, "tls.key"), []byte("SECRET"), 0o600)))
	require.NotContains(t, look(), "SECRET", "a hidden directory was replaced")
	require.NoError(t, errors.Join(os.MkdirAll(filepath.Join(etc, "later"), 0o755),
		os.WriteFile(filepath.Join(etc, "later", "key"), []byte("SECRET"), 0o600)))
	require.NotContains(t, look(), "SECRET", "a directory for what is hidden was made")
	app := filepath.Join(etc, "app")
	require.NoError(t, errors.Join(os.Rename(app, app+".old"), os.Mkdir(app, 0o755),
		os.WriteFile(key, []byte("SECRET"), 0o600)))
	require.NotContains(t, look(), "SECRET", "the directory of the key was replaced")
	require.NoError(t, os.WriteFile(filepath.Join(etc, "live", "f"), []byte("after"), 0o644))
	replace(t, filepath.Join(etc, "live", "f"), "again")
	require.Contains(t, look(), "again", "a directory with nothing hidden shows what is on the host")
}

// Inside of a directory that commands write, what is hidden and replaced, or made, on the host is hidden again, before
// the next command and while one runs; with the directories that lead to it, it cannot be moved (SPEC T10).
func TestT10_WhatIsReplacedInARootIsHiddenAgain(t *testing.T) {
	var file, folder, absent string
	change := func(p *confine.Policy) {
		p.Level = confine.LevelNamespaces
		file, folder, absent = filepath.Join(p.Writable[0], ".env"), filepath.Join(p.Writable[0], "keys"),
			filepath.Join(p.Writable[0], "made", "later", "key")
		p.Hidden = []string{file, folder, absent}
		require.NoError(t, errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(file, []byte("SECRET"), 0o600),
			os.WriteFile(folder+"/k", []byte("SECRET"), 0o600)))
	}
	s := open(t, change)
	look := "cat .env keys/k made/later/key 2>/dev/null; find . -type f -exec cat {} +"
	out, _ := s.run(look)
	require.NotContains(t, out, "SECRET")
	// A command that runs all the time tells what it sees.
	running, output := s.start("until test -e stop; do until test -e now; do test -e stop && exit; sleep 0.01; done; " +
		"rm now; (" + look + ") > seen.tmp 2>&1; mv seen.tmp seen; done")
	seen := func() string {
		require.NoError(t, os.WriteFile(filepath.Join(s.workspace, "now"), nil, 0o600))
		var said []byte
		require.Eventually(t, func() bool {
			said, _ = os.ReadFile(filepath.Join(s.workspace, "seen"))
			return os.Remove(filepath.Join(s.workspace, "seen")) == nil
		}, waitFor, pause)
		return string(said)
	}
	for what, change := range map[string]func() error{
		"file": func() error { replace(t, file, "SECRET"); return nil },
		"directory": func() error {
			return errors.Join(os.Rename(folder, t.TempDir()+"/old"), os.Mkdir(folder, 0o700),
				os.WriteFile(folder+"/k", []byte("SECRET"), 0o600))
		},
		"made": func() error {
			return errors.Join(os.MkdirAll(filepath.Dir(absent), 0o700), os.WriteFile(absent, []byte("SECRET"), 0o600))
		},
	} {
		require.NoError(t, change(), what)
		out, _ := s.run(look) // hidden again before a command starts
		require.NotContains(t, out, "SECRET", what)
	}
	replace(t, file, "SECRET")
	require.Eventually(t, func() bool { return !strings.Contains(seen(), "SECRET") }, waitFor, pause,
		"hidden again while a command runs")
	out, _ = s.run("mv made moved; cat moved/later/key; mv made/later moved; cat moved/key; mv keys moved; cat " +
		"moved/k; echo x > made/f && cat made/f")
	require.NotContains(t, out, "SECRET")
	require.Contains(t, out, "x")
	require.NoError(t, os.WriteFile(filepath.Join(s.workspace, "stop"), nil, 0o600))
	require.Empty(t, output())
	require.Zero(t, running.Wait().ExitStatus())
}

// A sandbox does not end because the host replaces what is hidden at the moment when it is to be hidden again.
func TestT10_WhatIsReplacedAllTheTimeEndsNoSandbox(t *testing.T) {
	dir := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	file := filepath.Join(dir, ".env")
	require.NoError(t, os.WriteFile(file, []byte("SECRET"), 0o600))
	another := func() *sandbox {
		return open(t, func(p *confine.Policy) {
			p.Level, p.Writable, p.Hidden = confine.LevelNamespaces, []string{dir}, []string{file}
		})
	}
	s := another()
	ctx, cancel := context.WithCancel(t.Context())
	replaced := make(chan error, 1)
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			err = errors.Join(os.WriteFile(file+".new", []byte("SECRET"), 0o600), os.Rename(file+".new", file))
		}
		replaced <- err
	}()
	for range 300 {
		p, output := s.start("true")
		require.Empty(t, output())
		require.Zero(t, p.Wait().ExitStatus(), s.Err())
	}
	for range 20 {
		require.NoError(t, another().Close())
	}
	cancel()
	require.NoError(t, <-replaced)
}

// Where Landlock alone confines, which hides nothing, a sandbox ends when something appears that must be hidden.
func TestT10_LandlockEndsWithWhatCannotBeHidden(t *testing.T) {
	var hidden string
	s := open(t, func(p *confine.Policy) {
		hidden = filepath.Join(p.Writable[0], "key")
		p.Level, p.Hidden = confine.LevelLandlock, []string{hidden}
	})
	out, _ := s.run("echo works")
	require.Equal(t, "works", out)
	p, output := s.start("sleep 1000")
	require.NoError(t, os.WriteFile(hidden, []byte("SECRET"), 0o600))
	require.Empty(t, output())
	require.True(t, p.Wait().Signaled())
	<-s.Ended()
	require.ErrorContains(t, s.Err(), "the sandbox ended: "+hidden+" must not exist for commands")
	_, err := s.Start(confine.Spec{Argv: []string{"true"}, Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}})
	require.Error(t, err)
}

// Directories in /etc and /opt are searched to the end for what not every user can read, and what appears there later
// is found. A root in /opt is not searched (SPEC T10).
func TestT10_WhatOnlyRootMayReadIsHiddenAtAnyDepth(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make files in /opt")
	}
	top, err := os.MkdirTemp("/opt", "quartet-test-") //nolint:usetesting // it must be in /opt
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(top)) })
	deep, public, root := filepath.Join(top, "a", "b", "c", "d", "e"), filepath.Join(top, "public", "x"),
		filepath.Join(top, "root")
	require.NoError(t, errors.Join(os.Chmod(top, 0o755), os.MkdirAll(deep, 0o755), os.MkdirAll(public, 0o755),
		os.Mkdir(root, 0o755)))
	require.NoError(t, errors.Join(os.WriteFile(deep+"/key", []byte("SECRET"), 0o600),
		os.WriteFile(deep+"/readable", []byte("public"), 0o644), os.WriteFile(root+"/mine", []byte("mine"), 0o600)))
	s := open(t, func(p *confine.Policy) { p.Level, p.Writable = confine.LevelNamespaces, []string{root} })
	look := func() string {
		out, _ := s.run("cat " + deep + "/key " + deep + "/readable " + public + "/key; find " + top +
			" -type f -exec cat {} +")
		return out
	}
	require.NotContains(t, look(), "SECRET")
	require.Contains(t, look(), "public")
	require.Contains(t, look(), "mine")
	replace(t, deep+"/key", "SECRET")
	require.NoError(t, os.WriteFile(deep+"/other", []byte("SECRET"), 0o600))
	require.NotContains(t, look(), "SECRET", "beside something that is hidden, nothing appears")
	require.NoError(t, os.WriteFile(public+"/key", []byte("SECRET"), 0o600))
	require.Eventually(t, func() bool { return !strings.Contains(look(), "SECRET") }, waitFor, pause,
		"it is found after a while")
	require.Contains(t, look(), "mine")
}

// A directory above a root in /tmp cannot be renamed by commands, also if it is hidden and was not there.
func TestT10_ParentsOfARootInTmpCannotBeMoved(t *testing.T) {
	base, err := os.MkdirTemp("/tmp", "quartet-test-") //nolint:usetesting // it must be in /tmp
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	hidden, root := filepath.Join(base, "h"), filepath.Join(base, "h", "ws")
	require.NoError(t, os.MkdirAll(root, 0o700))
	s := open(t, func(p *confine.Policy) {
		p.Level, p.Writable, p.Hidden = confine.LevelNamespaces, []string{root}, []string{hidden}
	})
	for range 2 {
		out, _ := s.run("mv " + hidden + " " + base + "/moved && echo moved; mv " + base +
			" /tmp/moved && echo moved; cd " + root + " && echo there")
		require.NotContains(t, strings.ReplaceAll(out, "/moved", ""), "moved")
		require.Contains(t, out, "there")
	}
}
