package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// TestStagesAreTargetsAndDependOnFiles: each row of .ci/stages is a target of the Makefile, and each of its pathspecs
// names files that exist, so that a directory that moves takes its stage with it.
func TestStagesAreTargetsAndDependOnFiles(t *testing.T) {
	root := filepath.Join("..", "..")
	makefile := must.Value(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	table := must.Value(os.ReadFile(filepath.Join(root, ".ci", "stages")))(t)
	stages := 0
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		stages++
		require.Greater(t, len(fields), 2, line)
		require.Contains(t, string(makefile), "\n"+fields[0]+":", "the Makefile has no such target")
		must.Value(strconv.Atoi(fields[1]))(t, line)
		for _, spec := range fields[2:] {
			files := must.Value(exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "--", spec).Output())(t)
			require.NotEmpty(t, files, "%s depends on %s, which names no file", fields[0], spec)
		}
	}
	require.Greater(t, stages, 10)
}

// verifying is a repository with three stages, of which the second fails while a file says so.
type verifying struct {
	t   *testing.T
	dir string
}

func newVerifying(t *testing.T) *verifying {
	v := &verifying{t, t.TempDir()}
	script := must.Value(os.ReadFile(filepath.Join("..", "..", "tools", "verify.sh")))(t)
	v.write("tools/verify.sh", string(script))
	v.write(".ci/stages", "# a comment\n\none 100 a/b *.x\ntwo 1500 two\nthree 1500 three\n")
	v.write("Makefile", ".PHONY: one two three\none two three:\n\t@echo ran $@; ! grep -qs $@ broken\n")
	v.write(".gitignore", "/bin/\n/broken\n")
	for _, name := range []string{"a/b/c", "a/other", "deep/d.x", "two", "three"} {
		v.write(name, "")
	}
	v.git("init", "-q")
	v.commit()
	return v
}

func (v *verifying) write(name, text string) {
	v.t.Helper()
	path := filepath.Join(v.dir, name)
	require.NoError(v.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(v.t, os.WriteFile(path, []byte(text), 0o700))
}

func (v *verifying) git(args ...string) string {
	v.t.Helper()
	out, err := exec.CommandContext(v.t.Context(), "git", append([]string{
		"-C", v.dir, "-c", "user.name=n", "-c", "user.email=n@example.test",
	}, args...)...).CombinedOutput()
	require.NoError(v.t, err, string(out))
	return strings.TrimSpace(string(out))
}

// commit commits everything and returns the commit.
func (v *verifying) commit() string {
	v.t.Helper()
	v.git("add", "-A")
	v.git("commit", "-q", "--allow-empty", "-m", "m")
	return v.git("rev-parse", "HEAD")
}

// run runs the script and returns the stages that ran, its output, and whether it succeeded.
func (v *verifying) run(args ...string) (ran []string, out string, ok bool) {
	v.t.Helper()
	cmd := exec.CommandContext(v.t.Context(), filepath.Join(v.dir, "tools", "verify.sh"), args...)
	cmd.Env = append(os.Environ(), "BUDGET=2000", "MAKE=make", "MAKEFLAGS=")
	text, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(text)) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "ran "); is {
			ran = append(ran, name)
		}
	}
	return ran, string(text), err == nil
}

func TestStagesOfChangedFilesAreDue(t *testing.T) {
	v := newVerifying(t)
	base := v.commit()
	for _, c := range []struct {
		changed string
		due     []string
	}{
		{"a/b/c", []string{"one"}},
		{"a/other", nil},
		{"deep/d.x", []string{"one"}},
		{"two", []string{"two"}},
	} {
		v.write(".ci/base", base)
		v.write(c.changed, c.changed)
		v.commit()
		ran, out, ok := v.run("--due")
		require.True(t, ok, out)
		require.Equal(t, c.due, ran, out)
		base = v.commit()
	}
}

func TestStagesWithoutABaseAreAllDueAndWhatIsOwedIsNamed(t *testing.T) {
	for name, base := range map[string]string{"none": "", "unknown": strings.Repeat("0", 40), "nonsense": "--all"} {
		t.Run(name, func(t *testing.T) {
			v := newVerifying(t)
			v.write(".ci/base", base)
			ran, out, ok := v.run("--due")
			require.True(t, ok, out)
			require.Equal(t, []string{"one", "two", "three"}, ran, "each takes no time")
		})
	}
	t.Run("not an ancestor", func(t *testing.T) {
		v := newVerifying(t)
		first := v.git("rev-parse", "HEAD")
		v.write("two", "changed")
		other := v.commit()
		v.git("reset", "-q", "--hard", first)
		v.write(".ci/base", other)
		ran, out, _ := v.run("--due")
		require.Equal(t, []string{"one", "two", "three"}, ran, out)
	})
	t.Run("owed", func(t *testing.T) {
		v := newVerifying(t)
		v.write(".ci/stages", "one 100 a\ntwo 1901 two\nthree 1900 three\nfour 2001 a\n")
		v.write("Makefile", ".PHONY: one two three four\none two three four:\n\t@echo ran $@\n")
		v.commit()
		ran, out, ok := v.run("--due")
		require.True(t, ok, out)
		require.Equal(t, []string{"one", "two", "three"}, ran, "what was spent counts, not what was expected")
		require.Contains(t, out, "OWED, because it could not be done or 2000 s would be exceeded: make four\n")
	})
}

func TestStagesThatPassedAreNotRunAgain(t *testing.T) {
	v := newVerifying(t)
	v.write("broken", "two")
	ran, out, ok := v.run()
	require.False(t, ok)
	require.Equal(t, []string{"one", "two", "three"}, ran, "a failure keeps no other stage from running")
	require.Contains(t, out, "FAILED: two\n")

	v.write("broken", "")
	ran, out, ok = v.run()
	require.True(t, ok, out)
	require.Equal(t, []string{"two"}, ran)
	require.Contains(t, out, "passed before")

	v.write("Makefile", ".PHONY: one two three\none two three:\n\t@echo ran $@; echo no network >$$NOT_DONE; false\n")
	ran, out, ok = v.run()
	require.True(t, ok, "what cannot be done here is owed: "+out)
	require.Equal(t, []string{"one", "two", "three"}, ran)
	require.Regexp(t, `one +\d+ s  NOT DONE: no network`, out)
	require.Contains(t, out, ": make one two three\n")

	v.write("Makefile", ".PHONY: one two three\none two three:\n\t@echo ran $@\n")
	v.write("a/untracked", "new")
	ran, out, _ = v.run()
	require.Equal(t, []string{"one", "two", "three"}, ran, "other sources: "+out)
}
