// Package sandboxes runs the programs of a worker as process trees (see package proctree), in a sandbox or with the
// rights of this process. There is one sandbox for each owner, which is opened when a program of the owner starts and
// closed when none has run for a while. The package also determines which files the programs may read in addition to
// those that package confine always permits. All processes of a tree are killed when its program or this process ends.
package sandboxes

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"quartet/pkg/confine"
	"quartet/pkg/localtoken"
)

// Config says how programs are confined; see package confine.
type Config struct {
	// Helper is the command line of a process that calls confine.Main. Required.
	Helper []string
	// Network is the network that programs reach.
	Network confine.Network
	// Readable are files and directories that programs may read, beside those of the
	// system and the roots.
	Readable []string
	// Hidden are files and directories that are hidden from programs; see confine.Policy.
	Hidden []string
	// Level is the level to use; empty: the best that the host offers; see confine.Policy.
	Level confine.Level
}

// toolchains are directories below the home of this process's user that have programs and
// libraries, which commands may read. They contain no secrets except those listed in secrets.
var toolchains = []string{
	"go", ".cargo", ".rustup", ".nvm", ".pyenv", ".rbenv", ".asdf", ".volta", ".bun", ".deno",
	".sdkman", ".local/bin", ".local/lib",
}

// secrets are files and directories below the home of this process's user that are always hidden
// from commands, even if the home is a root.
var secrets = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".config/gh", ".kube", ".docker", ".netrc",
	".git-credentials", ".npmrc", ".pypirc",
	".cargo/credentials", ".cargo/credentials.toml", ".local/share/keyrings", ".password-store", ".config/op",
	".quartet", ".config/quartet",
	".local/state/quartet",
}

// readable returns what commands may read in addition to the system: what the configuration adds, the
// toolchains, and the directories of this process's PATH, except for relative ones, those at or below the
// user's home, and the root.
func (c *Config) readable() []string {
	paths := append([]string(nil), c.Readable...)
	home := userHome()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) && (home == "" || !strings.HasPrefix(dir+"/", home+"/")) && filepath.Clean(dir) != "/" {
			paths = append(paths, filepath.Clean(dir))
		}
	}
	if home != "" {
		for _, name := range toolchains {
			paths = append(paths, filepath.Join(home, name))
		}
	}
	return paths
}

// hidden returns what is hidden from commands, whether it exists or not. No path has a symbolic link but as its last
// element; then what that leads to is hidden as well.
func (c *Config) hidden() (paths []string) {
	all := slices.DeleteFunc(slices.Clone(c.Hidden), func(path string) bool { return path == "" })
	if home := userHome(); home != "" {
		for _, name := range secrets {
			all = append(all, filepath.Join(home, name))
		}
	}
	all = append(all, localtoken.Dir())
	for _, path := range all {
		paths = append(paths, places(path)...)
	}
	return paths
}

// places returns the path of a file or directory, without symbolic links but as its last element, and the paths to
// which that leads if it is one, which need not exist.
func places(path string) (paths []string) {
	path, err := filepath.Abs(path)
	for err == nil && len(paths) < maxLinks {
		path = filepath.Join(realDir(filepath.Dir(path)), filepath.Base(path))
		paths = append(paths, path)
		var target string
		if target, err = os.Readlink(path); err == nil && !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return paths
}

// maxLinks is how many symbolic links are followed, as by the kernel.
const maxLinks = 40

// HideFiles hides files with secrets of this process. files has them by the names of their settings; "" is no file. The
// error names a file that is inside of a root and in no hidden directory: when it is replaced there, as a key that is
// rotated, commands that run could read it before it is hidden again.
func (c *Config) HideFiles(files map[string]string, roots []string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] == "" {
			continue
		}
		for _, path := range places(files[name]) {
			inside := func(dir string) bool {
				found, err := filepath.EvalSymlinks(dir)
				return err == nil && strings.HasPrefix(path, strings.TrimSuffix(found, "/")+"/")
			}
			if slices.ContainsFunc(roots, inside) && !slices.ContainsFunc(c.Hidden, inside) {
				return fmt.Errorf("%s: %s is inside of a directory that commands write, where it cannot be hidden "+
					"from them when it is replaced; move it elsewhere, or hide the directory that it is in "+
					"(worker-hidden)", name, path)
			}
		}
		c.Hidden = append(c.Hidden, files[name])
	}
	return nil
}

// realDir returns an absolute path without the symbolic links in the part of it that exists.
func realDir(path string) string {
	found, err := filepath.EvalSymlinks(path)
	if err == nil || path == "/" {
		return cmp.Or(found, path)
	}
	return filepath.Join(realDir(filepath.Dir(path)), filepath.Base(path))
}

// userHome returns the real path of the home of this process's user, empty if there is none.
func userHome() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	if home, err = filepath.EvalSymlinks(home); err != nil || home == "/" {
		return ""
	}
	return home
}

// gitIdentity returns the section [user] of this user's .gitconfig with name and email, or "" if there are
// none. It is written to the home of a new sandbox, so that commits that are made there have the name of the user
// who runs the worker.
func gitIdentity() string {
	config, err := os.ReadFile(filepath.Join(userHome(), ".gitconfig"))
	if err != nil {
		return ""
	}
	var out strings.Builder
	section := ""
	for line := range strings.Lines(string(config)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.ToLower(line)
		}
		name, _, ok := strings.Cut(line, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if ok && section == "[user]" && (name == "name" || name == "email") {
			out.WriteString("\t" + line + "\n")
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "[user]\n" + out.String()
}
