package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweepTime bounds a sweep: a process that hangs in the kernel dies later.
	sweepTime  = 2 * time.Second
	sweepPause = 2 * time.Millisecond
)

// sweep kills the processes that earlier lives of this worker left: those that
// carry its mark and another boot id. After a SIGKILL of the worker Pdeathsig
// ends the commands themselves, but not their children.
func sweep(ctx context.Context, owner, boot string) (int, error) {
	return killMarked(ctx, func(env map[string]string) bool {
		return env[envWorker] == owner && env[envBoot] != boot
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
// fork while it is looked for, and returns when all of it is gone.
func killMarked(ctx context.Context, match func(map[string]string) bool) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	killed := make(map[int]struct{})
	for {
		pids, err := marked(match)
		if err != nil || len(pids) == 0 {
			return len(killed), err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return len(killed), fmt.Errorf("kill process %d: %w", pid, err)
			}
			killed[pid] = struct{}{}
		}
		pause := time.NewTimer(sweepPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return len(killed), fmt.Errorf("%d processes do not die: %w", len(pids), ctx.Err())
		}
	}
}

// marked finds the living processes whose environment matches. What cannot be
// read is gone or another user's, and not ours.
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
			continue
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
