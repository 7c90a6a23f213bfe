package worker_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/must"
	"quartet/pkg/sandboxes"
	"quartet/services/worker"
)

// snapshot returns the files, directories and links at and below paths, with modes and contents.
func snapshot(t *testing.T, paths ...string) map[string]string {
	found := make(map[string]string)
	for _, path := range paths {
		require.NoError(t, filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			content, _ := os.ReadFile(path) // a directory has none
			link, _ := os.Readlink(path)
			found[path] = fmt.Sprint(must.Value(e.Info())(t).Mode(), link, string(content))
			return nil
		}))
	}
	return found
}

// waysToPlant returns shell lines that put something at a path below the working directory, by any means. Files for it
// are made in scratch.
func waysToPlant(path, scratch string) (lines []string) {
	for _, place := range append([]string{path}, parentsOf(path)...) {
		lines = append(
			lines,
			"rm -rf "+place+"; mkdir -p $(dirname "+path+"); echo x > "+path,
			"mv "+place+" "+scratch+"/away; mkdir -p $(dirname "+path+"); echo x > "+path,
			"mkdir -p "+scratch+"/new; mv -T "+scratch+"/new "+place,
			"ln -sfn "+scratch+" "+place, "chmod 777 "+place,
		)
	}
	return append(
		lines, "echo x >> "+path, "mkdir -p $(dirname "+path+") && echo x > "+path, "mkdir -p "+path,
		"echo x > "+scratch+"/f; mv -f "+scratch+"/f "+path, "echo x > "+scratch+"/f; ln -f "+scratch+"/f "+path,
		"ln "+path+" "+scratch+"/hard && echo x >> "+scratch+"/hard", "truncate -s 0 "+path,
	)
}

// parentsOf returns the directories that lead to a relative path.
func parentsOf(path string) (dirs []string) {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	return dirs
}

// What programs outside of a sandbox execute later cannot be written in a root: in a home that is named as one, whether
// it exists or not, and in repositories.
func TestT10_WhatRunsLaterIsReadOnly(t *testing.T) {
	for _, level := range []confine.Level{confine.LevelNamespaces, confine.LevelLandlock} {
		for _, above := range []bool{false, true} { // the home, or the directory around it, is the root
			t.Run(fmt.Sprint(level, above), func(t *testing.T) {
				r := newRig(t)
				home := r.root
				if above {
					home = filepath.Join(r.root, "user")
				}
				t.Setenv("HOME", home)
				t.Setenv("XDG_STATE_HOME", "")
				for _, dir := range []string{".config/systemd/user", "bin", "src/scratch", ".cargo"} {
					require.NoError(t, os.MkdirAll(filepath.Join(home, dir), 0o700))
				}
				for _, file := range []string{".bashrc", ".gitconfig", "bin/tool", "notes", ".config/systemd/user/a.service"} {
					require.NoError(t, os.WriteFile(filepath.Join(home, file), nil, 0o600))
				}
				r.worker(func(c *worker.Config) {
					c.Confinement = &sandboxes.Config{
						Helper: []string{"/proc/self/exe", helperArgument}, Network: confine.NetworkNone, Level: level,
					}
				})
				var before map[string]string
				look := func() map[string]string {
					found := snapshot(t, r.root)
					for path := range found {
						if strings.HasPrefix(path, filepath.Join(home, "src/")) || path == filepath.Join(home, "notes") {
							delete(found, path)
						}
					}
					return found
				}
				before = look()
				attempts := 0
				for _, path := range []string{
					".bashrc", ".bash_profile", ".profile", ".zshenv", ".gitconfig", ".config/autostart/a.desktop",
					".config/systemd/user/a.service", ".config/fish/config.fish", ".local/bin/tool", ".cargo/config.toml",
					".vimrc", ".pam_environment", "bin/tool", "bin/other", "Desktop/a.desktop", "newdir/file",
				} {
					lines := waysToPlant(path, "src/scratch")
					if level == confine.LevelLandlock { // which does not confine modes
						lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "chmod ") })
					}
					out := r.run("keeper", home, strings.Join(lines, "\n")+"\nrm -rf src/scratch/*")
					require.Equal(t, before, look(), "%s: %s", path, out)
					attempts += len(lines)
				}
				t.Logf("%d attempts", attempts)
				require.Equal(t, "ab\nc", r.run("keeper", home, "echo a > notes; printf b > src/f; cat notes src/f | tr -d '\\n'; "+
					"mkdir -p src/d && mv src/f src/d && echo && echo c"))
			})
		}
	}
}

// Hooks and configuration of a repository are read-only where namespaces confine; its content, index and branches are
// not. A repository without hooks gets none.
func TestT10_HooksOfRepositoriesAreReadOnly(t *testing.T) {
	r := newRig(t)
	t.Setenv("HOME", t.TempDir())
	git := func(dir string, args ...string) {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=b@c"}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	nested := filepath.Join(r.root, "a", "nested")
	require.NoError(t, os.MkdirAll(nested, 0o700))
	for _, dir := range []string{r.root, nested} {
		git(dir, "init", "-q", "--template=")
		git(dir, "commit", "-q", "--allow-empty", "-m", "x")
	}
	git(r.root, "worktree", "add", "-q", filepath.Join(r.root, "tree"), "-b", "tree")
	git(nested, "config", "core.hooksPath", "scripts")
	git(nested, "config", "include.path", "../more.config")
	require.NoError(t, os.MkdirAll(filepath.Join(nested, "scripts"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(r.root, ".vscode"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(r.root, "scratch"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(nested, "more.config"), nil, 0o600))
	git(r.root, "init", "-q", "--bare", "--template=", filepath.Join(r.root, "bare"))
	r.worker(func(c *worker.Config) {
		c.Confinement = &sandboxes.Config{
			Helper: []string{"/proc/self/exe", helperArgument}, Network: confine.NetworkNone,
			Level: confine.LevelNamespaces,
		}
	})
	require.Equal(t, "up", r.run("keeper", "", "echo up"))
	protected := []string{
		".git/config", ".git/hooks/pre-commit", ".git/commondir", "a/nested/.git/config", "a/nested/.git/hooks/post-checkout",
		"a/nested/.git/commondir", "a/nested/scripts/pre-commit", "a/nested/more.config", "bare/config",
		"bare/hooks/post-update", "bare/commondir", "tree/.git", ".git/worktrees/tree/commondir", ".vscode/tasks.json",
	}
	var existing []string
	for _, path := range protected {
		path = filepath.Join(r.root, path)
		for _, place := range []string{path, filepath.Dir(path)} {
			if _, err := os.Lstat(place); err == nil && filepath.Base(place) != "nested" && filepath.Base(place) != "bare" &&
				filepath.Base(place) != ".git" && filepath.Base(place) != "tree" || filepath.Base(path) == ".git" && place == path {
				existing = append(existing, place)
				break
			}
		}
	}
	before := snapshot(t, existing...)
	attempts := 0
	for _, path := range protected {
		var lines []string
		for _, line := range waysToPlant(path, "scratch") {
			// What a repository has otherwise is the command's: rm would remove it.
			if !strings.HasPrefix(line, "rm -rf ") || strings.HasPrefix(line, "rm -rf "+path+";") {
				lines = append(lines, line)
			}
		}
		out := r.run("keeper", "", strings.Join(lines, "\n")+"\nrm -rf scratch/*")
		require.Equal(t, before, snapshot(t, existing...), "%s: %s", path, out)
		attempts += len(lines)
	}
	t.Logf("%d attempts", attempts)
	require.Equal(t, "y\nx\n3", r.run("keeper", "", "chmod 700 .git a a/nested; echo f > f && git add f && "+
		"git -c user.name=a -c user.email=b@c commit -q -m y && git branch other && git log --format=%s && "+
		"git branch -a | grep -c r"))
	require.Equal(t, "made", r.run("keeper", "", "git init -q mine && cd mine && git config a.b c && echo made"))
	require.Equal(t, "true\n.", string(must.Value(exec.Command("sh", "-c", "git -C "+filepath.Join(r.root, "bare")+
		" rev-parse --is-bare-repository --git-dir | head -c 6").Output())(t)))
}
