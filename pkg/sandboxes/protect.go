package sandboxes

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Programs that are not confined execute what they find in a home and in a repository: a shell its start-up files, the
// session what is in .config/autostart, git its hooks and the programs that its configuration names. A command that
// writes there is executed later without its sandbox. This file finds such places in the roots of commands.

const (
	// maxDepth and maxEntries bound the search for repositories in a root.
	maxDepth, maxEntries = 5, 20_000
	// worktreesDir has the worktrees of agents, which git in sandboxes makes and removes.
	worktreesDir = ".quartet-worktrees"
)

// programsInHome are the entries of a home, beside those with a dot, from which programs are started.
var programsInHome = []string{"bin", "Desktop"}

// toolsInProject are the settings of tools in the directory of a repository that name programs to execute.
var toolsInProject = []string{
	".vscode", ".idea", ".envrc", ".mcp.json", ".claude", ".codex", ".cursor", ".githooks", ".husky",
}

// HasHome reports whether dir is the home of this process's user, or a directory around it.
func HasHome(dir string) bool {
	home := userHome()
	found, err := filepath.EvalSymlinks(dir)
	return err == nil && home != "" && isIn(home, found)
}

// isIn reports whether a clean path is dir or in it.
func isIn(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// protected returns what the commands of a sandbox must not change in its roots: directories in which nothing appears
// or disappears, and what is read-only. See confine.Policy. Where a repository has no hooks, it makes the empty
// directory, which commands would otherwise make.
func protected(roots []string) (fixed, readOnly []string) {
	for _, home := range homes() {
		if !slices.ContainsFunc(roots, func(root string) bool { return isIn(home, root) }) {
			continue
		}
		entries, err := os.ReadDir(home)
		if err != nil {
			continue // no command reads it either
		}
		fixed = append(fixed, home)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || slices.Contains(programsInHome, e.Name()) {
				readOnly = append(readOnly, filepath.Join(home, e.Name()))
			}
		}
	}
	for _, root := range roots {
		readOnly = append(readOnly, inRepositories(root)...)
	}
	slices.Sort(readOnly)
	readOnly = slices.Compact(readOnly)
	return fixed, slices.DeleteFunc(readOnly, func(path string) bool {
		st, err := os.Lstat(path)
		return err != nil || st.Mode()&fs.ModeSymlink != 0 || slices.Contains(roots, path)
	})
}

// firstUser is the lowest id of a user who is a person, by the convention of Linux distributions.
const firstUser = 1000

// homes returns the real paths of the homes of this machine's users, this process's first.
func homes() (dirs []string) {
	add := func(dir string) {
		found, err := filepath.EvalSymlinks(dir)
		if err == nil && found != "/" && !slices.Contains(dirs, found) {
			dirs = append(dirs, found)
		}
	}
	if home := userHome(); home != "" {
		add(home)
	}
	users, err := os.Open("/etc/passwd")
	if err != nil {
		return dirs
	}
	defer func() { _ = users.Close() }() // nothing was written
	for lines := bufio.NewScanner(users); lines.Scan(); {
		// name, password, user id, group id, comment, home, shell
		fields := strings.Split(lines.Text(), ":")
		if len(fields) != 7 || !filepath.IsAbs(fields[5]) || strings.HasSuffix(fields[6], "/nologin") ||
			strings.HasSuffix(fields[6], "/false") {
			continue // nobody logs in with it
		}
		if uid, err := strconv.Atoi(fields[2]); err == nil && (uid == 0 || uid >= firstUser) {
			add(fields[5])
		}
	}
	return dirs
}

// inRepositories returns what is read-only in the repositories of git at and below a root, as far as it is searched.
func inRepositories(root string) (paths []string) {
	type place struct {
		dir   string
		depth int
	}
	left := maxEntries
	for queue := []place{{root, 0}}; len(queue) > 0 && left > 0; queue = queue[1:] {
		dir := queue[0].dir
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		left -= len(entries)
		if dir == root || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ".git" }) {
			for _, name := range toolsInProject {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
		if isRepository(dir) { // a bare one
			paths = append(paths, inGitDir(dir, dir)...)
			continue
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case e.Name() == ".git" && e.IsDir():
				paths = append(paths, inGitDir(path, dir)...)
			case e.Name() == ".git":
				paths = append(paths, path) // it says where the repository is
			case e.IsDir() && queue[0].depth < maxDepth && e.Name() != worktreesDir && e.Name() != "node_modules":
				queue = append(queue, place{path, queue[0].depth + 1})
			}
		}
	}
	return paths
}

// isRepository reports whether git takes a directory for its own.
func isRepository(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// inGitDir returns the files and directories of a repository's directory that name programs for git to execute, or
// another directory that does. top is the directory of its work tree.
func inGitDir(dir, top string) (paths []string) {
	for _, name := range []string{"config", "config.worktree", "hooks", "commondir"} {
		paths = append(paths, filepath.Join(dir, name))
	}
	if isRepository(dir) {
		prepare(dir)
	}
	paths = append(paths, namedByConfig(filepath.Join(dir, "config"), dir, top)...)
	worktrees, _ := os.ReadDir(filepath.Join(dir, "worktrees")) // it need not exist
	for _, e := range worktrees {
		tree := filepath.Join(dir, "worktrees", e.Name())
		to, err := os.ReadFile(filepath.Join(tree, "gitdir"))
		if err == nil && !strings.Contains(string(to), worktreesDir) {
			for _, name := range []string{"commondir", "gitdir", "config.worktree"} {
				paths = append(paths, filepath.Join(tree, name))
			}
		}
	}
	_ = filepath.WalkDir(filepath.Join(dir, "modules"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && isRepository(path) {
			paths = append(paths, inGitDir(path, top)...)
			return fs.SkipDir
		}
		return nil // what cannot be read is not searched
	})
	return paths
}

// prepare makes what git reads in a repository's directory and need not exist, so that it can be read-only: a
// directory without hooks, and a commondir that says that this is the directory. It follows no link out of it.
func prepare(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // nothing was written
	_ = root.Mkdir("hooks", 0o755)      // it exists, or no command may make it either
	if f, err := root.OpenFile("commondir", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
		_, _ = f.WriteString(".\n")
		_ = f.Close()
	}
}

// namedByConfig returns the directory of hooks and the further configuration that a configuration of git names.
func namedByConfig(config, dir, top string) (paths []string) {
	text, err := os.ReadFile(config)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		base := ""
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "hookspath":
			base = top
		case "path":
			base = dir
		}
		if base == "" || value == "" {
			continue
		}
		if !filepath.IsAbs(value) {
			value = filepath.Join(base, value)
		}
		paths = append(paths, filepath.Clean(value))
	}
	return paths
}
