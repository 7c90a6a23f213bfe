package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"quartet/pkg/fault"
)

// Isolation says which agents share the directories in which commands of a worker may run.
type Isolation string

// The isolations. With all but IsolateNone a worker has exactly one root, and each command runs in the
// directory below it that its namespace or agent has. The worker creates that directory with the first
// command and never removes it. A confined command can reach no other directory of the root.
const (
	// IsolateNone: all agents share the roots.
	IsolateNone Isolation = "none"
	// IsolateNamespaces: the agents of a namespace share the directory <root>/<namespace>.
	IsolateNamespaces Isolation = "namespace"
	// IsolateAgents: an agent has the directory <root>/<namespace>/<agent id>. The worker makes no
	// worktrees, since a child would share its parent's repository.
	IsolateAgents Isolation = "agent"
)

// ParseIsolation returns the isolation of a name; empty: IsolateNone.
func ParseIsolation(name string) (Isolation, error) {
	switch i := Isolation(name); i {
	case "":
		return IsolateNone, nil
	case IsolateNone, IsolateNamespaces, IsolateAgents:
		return i, nil
	default:
		return "", fmt.Errorf("isolation %q: must be none, namespace or agent", name)
	}
}

// workspace has the directories in which the commands of an agent or a namespace may run, as real
// paths. By default commands run in the first one.
type workspace []string

// workspaceOf returns the workspace of an agent. Unless all agents share the roots, it creates the
// agent's or namespace's directory if that is missing.
func (w *Worker) workspaceOf(namespace, agentID string) (workspace, error) {
	var dir string
	switch w.cfg.Isolate {
	case IsolateNamespaces:
		dir = namespace
	case IsolateAgents:
		dir = filepath.Join(namespace, agentID)
	default:
		return w.roots, nil
	}
	if err := errors.Join(fault.Name("namespace", namespace), fault.Name("agent_id", agentID)); err != nil {
		return nil, err
	}
	return w.makeWorkspace(dir)
}

// workspaceOfNamespace returns the workspace that the agents of a namespace share. With IsolateAgents
// they share none, and it returns an error.
func (w *Worker) workspaceOfNamespace(namespace string) (workspace, error) {
	switch w.cfg.Isolate {
	case IsolateNone:
		return w.roots, nil
	case IsolateNamespaces:
		if err := fault.Name("namespace", namespace); err != nil {
			return nil, err
		}
		return w.makeWorkspace(namespace)
	default:
		return nil, fmt.Errorf("worker %s gives each agent a directory of its own and makes no worktrees; spawn with "+
			"workspace_mode inherit", w.cfg.ID)
	}
}

// makeWorkspace creates the workspace in a directory below the root. The directory must not be
// reached through a symbolic link: the root may have been written by agents that shared it.
func (w *Worker) makeWorkspace(dir string) (workspace, error) {
	root, err := os.OpenRoot(w.roots[0])
	if err != nil {
		return nil, fmt.Errorf("workspace_unavailable: %w", err)
	}
	defer root.Close()
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("workspace_unavailable: %w", err)
	}
	path := filepath.Join(w.roots[0], dir)
	if to, err := filepath.EvalSymlinks(path); err != nil || to != path {
		return nil, fmt.Errorf("workspace_unavailable: %s of worker %s must be a directory, not a link", path, w.cfg.ID)
	}
	return workspace{path}, nil
}

// has reports whether a clean path is one of the workspace's directories or below it.
func (s workspace) has(path string) bool { return s.around(path) != "" }

// around returns the directory of the workspace that a clean path is or is below; empty: none.
func (s workspace) around(path string) string {
	i := slices.IndexFunc(s, func(dir string) bool { return within(path, dir) })
	if i < 0 {
		return ""
	}
	return s[i]
}

// open opens the directory of the workspace that a clean path is in, and returns it with the path
// relative to it. Operations on the os.Root cannot leave the directory through symbolic links. The caller
// must close it.
func (s workspace) open(path string) (*os.Root, string, error) {
	dir := s.around(path)
	if dir == "" {
		return nil, "", fmt.Errorf("execution_root_violation: %s is outside of %s", path, s)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", err
	}
	name, err := filepath.Rel(dir, path)
	return root, name, err
}

// String returns the directories, separated by " or ", as error messages name them.
func (s workspace) String() string { return strings.Join(s, " or ") }

// within reports whether a clean path is a root or below it.
func within(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/")
}
