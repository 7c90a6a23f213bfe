package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"quartet/pkg/confine"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Environment variables that identify the processes of a worker.
const (
	envTask   = "QUARTET_TASK_ID"
	envWorker = "QUARTET_TASK_WORKER" // id@state directory
	envBoot   = "QUARTET_BOOT_ID"
)

// workdir returns the directory for a command, with all symbolic links resolved,
// and refuses one outside of the workspace (SPEC T7). An empty path is the workspace's first
// directory. What the error says of a directory outside does not depend on whether it exists.
func (w *Worker) workdir(space workspace, path string) (string, error) {
	if path == "" {
		return space[0], nil
	}
	if dir, err := filepath.EvalSymlinks(path); err == nil && space.has(dir) {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return "", fmt.Errorf("workdir_not_found: %s is not a directory", path)
		}
		return dir, nil
	}
	switch err := space.missing(filepath.Clean(path)); {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("workdir_not_found: %s does not exist on worker %s", path, w.cfg.ID)
	case errors.Is(err, syscall.ENOTDIR):
		return "", fmt.Errorf("workdir_not_found: %s is not a directory", path)
	}
	return "",
		fmt.Errorf("execution_root_violation: %s is outside the roots of worker %s; use a directory under %s", path,
			w.cfg.ID, space)
}

// missing returns why a clean path does not exist in the workspace, nil if it is outside. It follows no link that
// leaves the workspace, so that the error says nothing of what is outside.
func (s workspace) missing(path string) error {
	if !s.has(path) {
		return nil
	}
	root, name, err := s.open(path)
	if err != nil {
		return nil // the directory of the workspace cannot be opened
	}
	defer func() { _ = root.Close() }() // nothing was written
	_, err = root.Stat(name)
	return err
}

// environ returns the environment of a command: its own variables, and of the
// worker's environment only what a shell needs, so that no secret is inherited (SPEC
// T7). In a sandbox, home and temporary directory are the sandbox's.
func (w *Worker) environ(space workspace, t *taskv1.Task, s *confine.Sandbox) []string {
	vars := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": space[0],
		"LANG": "C.UTF-8",
	}
	for name := range vars {
		if v := os.Getenv(name); v != "" {
			vars[name] = v
		}
	}
	vars["TMPDIR"] = os.TempDir()
	if s != nil {
		vars["HOME"], vars["TMPDIR"] = confine.Home(s.Dir()), confine.Temp(s.Dir())
	}
	if t.GetCommand().GetTty() {
		vars["TERM"] = "xterm-256color"
	}
	if t.GetTraceparent() != "" { // tools that support traces read it from here
		vars["TRACEPARENT"] = t.GetTraceparent()
	}
	for name, v := range t.GetCommand().GetEnv() {
		vars[name] = v
	}
	vars[envTask], vars[envWorker], vars[envBoot] = t.GetTaskId(), w.owner(), w.boot
	out := make([]string, 0, len(vars))
	for name, v := range vars {
		out = append(out, name+"="+v)
	}
	slices.Sort(out)
	return out
}
