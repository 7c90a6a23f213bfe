package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Names of the variables by which people know a worker's processes.
const (
	envTask   = "QUARTET_TASK_ID"
	envWorker = "QUARTET_TASK_WORKER" // id@state directory
	envBoot   = "QUARTET_BOOT_ID"
)

// workdir gives the real directory for a command, under one of the roots also
// after every link was followed (SPEC T7).
func (w *Worker) workdir(asked string) (string, error) {
	if asked == "" {
		return w.roots[0], nil
	}
	dir, err := filepath.EvalSymlinks(asked)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("workdir_not_found: %s does not exist on worker %s", asked, w.cfg.ID)
	case err != nil:
		return "", fmt.Errorf("workdir_not_found: %w", err)
	}
	if !w.inRoots(dir) {
		return "", fmt.Errorf("execution_root_violation: %s is outside the roots of worker %s; use a directory under %s",
			asked, w.cfg.ID, strings.Join(w.roots, " or "))
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "", fmt.Errorf("workdir_not_found: %s is not a directory", asked)
	}
	return dir, nil
}

// within reports whether a clean path is a root or below it.
func within(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/")
}

// environ is all that a command sees: nothing of the worker's own environment
// but what a shell needs, so no secret is inherited (SPEC T7).
func (w *Worker) environ(t *taskv1.Task) []string {
	vars := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": w.roots[0], "LANG": "C.UTF-8"}
	for name := range vars {
		if v := os.Getenv(name); v != "" {
			vars[name] = v
		}
	}
	vars["TMPDIR"] = os.TempDir()
	if t.GetCommand().GetTty() {
		vars["TERM"] = "xterm-256color"
	}
	if t.GetTraceparent() != "" { // as tools expect that take part in a trace
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
