// Package sandboxes keeps the sandboxes of a worker: one for each owner, which it opens when a program of
// the owner starts and closes when none has run for a while. It also determines which files the programs of a
// worker may read in addition to those that package confine always permits.
package sandboxes

import (
	"os"
	"path/filepath"
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
var toolchains = []string{"go", ".cargo", ".rustup", ".nvm", ".pyenv", ".rbenv", ".asdf", ".volta", ".bun", ".deno", ".sdkman", ".local/bin", ".local/lib"}

// secrets are files and directories below the home of this process's user that are always hidden
// from commands, even if the home is a root.
var secrets = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".config/gh", ".kube", ".docker", ".netrc", ".git-credentials", ".npmrc", ".pypirc",
	".cargo/credentials", ".cargo/credentials.toml", ".local/share/keyrings", ".password-store", ".config/op", ".quartet", ".config/quartet",
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

// hidden returns what is hidden from commands, as real paths.
func (c *Config) hidden() (paths []string) {
	all := append([]string(nil), c.Hidden...)
	if home := userHome(); home != "" {
		for _, name := range secrets {
			all = append(all, filepath.Join(home, name))
		}
	}
	// A server may write a token file while a sandbox is open, and only a directory that exists can be hidden.
	_, _ = localtoken.Prepare() // if it cannot be created, no server can write a token
	all = append(all, localtoken.Dir())
	for _, path := range all {
		if found, err := filepath.EvalSymlinks(path); err == nil {
			paths = append(paths, found)
		}
	}
	return paths
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
