package proctree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killTime bounds a kill: a process that hangs in the kernel dies later.
	killTime  = 2 * time.Second
	killPause = 2 * time.Millisecond
)

// Usage is what a tree takes now.
type Usage struct {
	Processes int
	Memory    int64 // bytes: private and shared memory, and swap; not file pages
}

// Use measures all trees of this life at one time.
func (h *Host) Use() (map[Mark]Usage, error) {
	out := make(map[Mark]Usage)
	var status []byte
	err := each(0, func(pid int, m Mark) {
		if m.life() != h.first.life() {
			return
		}
		if status == nil {
			status = make([]byte, 4<<10)
		}
		memory, alive := memoryOf(pid, status)
		if alive {
			u := out[m]
			out[m] = Usage{u.Processes + 1, u.Memory + memory}
		}
	})
	return out, err
}

// kill ends the processes whose mark matches until nothing of them lives, since
// one may fork while it is looked for. leader is not signalled itself, and is
// what Host.End says.
func kill(ctx context.Context, match func(Mark) bool, leader int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	killed := make(map[int]struct{})
	status := make([]byte, 4<<10)
	for {
		var stubborn error
		left := 0
		err := each(leader, func(pid int, m Mark) {
			if !match(m) || pid == leader || pid == os.Getpid() {
				return
			}
			// A handle first, and the mark again: the number may be another's by now.
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return // it is gone
			}
			defer func() { _ = unix.Close(fd) }()
			if _, alive := memoryOf(pid, status); !alive || markOf(pid, status) != m {
				return
			}
			left++
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				stubborn = fmt.Errorf("proctree: kill process %d: %w", pid, err)
				return
			}
			killed[pid] = struct{}{}
		})
		if err = errors.Join(err, stubborn); err != nil || left == 0 {
			return len(killed), err
		}
		pause := time.NewTimer(killPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return len(killed), fmt.Errorf("proctree: %d processes do not die: %w", left, ctx.Err())
		}
	}
}

// each calls f for the processes that have a mark; with a leader only for those
// that were made after it, unless numbers began anew since then.
func each(leader int, f func(pid int, m Mark)) error {
	dir, err := os.Open("/proc")
	if err != nil {
		return fmt.Errorf("proctree: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("proctree: %w", err)
	}
	if leader > 0 && newest() < leader {
		leader = 0
	}
	buf := make([]byte, 4<<10)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= leader {
			continue
		}
		if m := markOf(pid, buf); m != 0 {
			f(pid, m)
		}
	}
	return nil
}

// newest is the number of the process that was made last; 0: not known.
func newest() int {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(raw)
	pid, err := strconv.Atoi(string(fields[len(fields)-1]))
	if err != nil {
		return 0
	}
	return pid
}

// memoryOf gives what a process takes; alive is false for one that is gone or only
// waits to be reaped.
func memoryOf(pid int, buf []byte) (memory int64, alive bool) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	n, err := f.Read(buf)
	_ = f.Close() // nothing was written
	if err != nil {
		return 0, false
	}
	alive = true
	for line := range bytes.Lines(buf[:n]) {
		name, value, _ := bytes.Cut(line, []byte{':'})
		fields := bytes.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch string(name) {
		case "State":
			alive = fields[0][0] != 'Z' && fields[0][0] != 'X'
		case "RssAnon", "RssShmem", "VmSwap":
			kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
			if err == nil {
				memory += kib << 10
			}
		}
	}
	return memory, alive
}
