package worker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxSweeps bounds how often a sweep looks again for what was forked meanwhile.
const maxSweeps = 20

// sweep kills the processes that earlier lives of this worker left: those that
// carry its id and another boot id. After a SIGKILL of the worker Pdeathsig
// ends the commands themselves, but not their children.
func sweep(ctx context.Context, workerID, boot string) (int, error) {
	return killMarked(ctx, func(env map[string]string) bool {
		return env[envWorker] == workerID && env[envBoot] != boot
	})
}

// sweepTask kills what is left of a command that was to be stopped, also what
// left its process group.
func sweepTask(ctx context.Context, taskID, boot string) (int, error) {
	return killMarked(ctx, func(env map[string]string) bool {
		return env[envTask] == taskID && env[envBoot] == boot
	})
}

// killMarked kills until nothing that is marked is left, since a process may
// fork while it is looked for.
func killMarked(ctx context.Context, match func(map[string]string) bool) (int, error) {
	killed := make(map[int]struct{})
	for range maxSweeps {
		if err := ctx.Err(); err != nil {
			return len(killed), err
		}
		pids, err := marked(match)
		if err != nil {
			return len(killed), err
		}
		fresh := false
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return len(killed), err
			}
			if _, again := killed[pid]; !again {
				killed[pid], fresh = struct{}{}, true
			}
		}
		if !fresh {
			return len(killed), nil
		}
	}
	return len(killed), nil
}

// marked finds the living processes whose environment matches. Those of other
// users cannot be read and are not ours.
func marked(match func(map[string]string) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ESRCH) {
				continue
			}
			return nil, err
		}
		if !bytes.Contains(raw, []byte(envBoot+"=")) {
			continue
		}
		env := make(map[string]string)
		for entry := range bytes.SplitSeq(raw, []byte{0}) {
			if name, value, ok := bytes.Cut(entry, []byte{'='}); ok {
				env[string(name)] = string(value)
			}
		}
		if match(env) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
