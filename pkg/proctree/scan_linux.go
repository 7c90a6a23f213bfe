package proctree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killTime bounds a kill. A process that hangs in the kernel dies later.
	killTime  = 10 * time.Second
	killPause = 2 * time.Millisecond
)

// trees finds the processes of this host by the mark that each of them carries.
type trees struct{ first Mark }

func newTrees(first Mark) *trees { return &trees{first} }

// Supported describes this system.
func Supported() Capabilities {
	return Capabilities{Memory: true, Escapes: "an unconfined process that sets its own RLIMIT_RTTIME, or a process " +
		"that another program starts on request"}
}

// report does nothing: on this system the guard finds processes by their marks, and need not be told of
// each one.
func (t *trees) report(*guard) {}

func (t *trees) start(m Mark, _ *exec.Cmd, start func() error) error { return withMark(m, start) }

func (t *trees) kill(ctx context.Context, m Mark, leader int) (int, error) {
	return kill(ctx, func(have Mark) bool { return have == m }, leader)
}

func (t *trees) killOwner(ctx context.Context) (int, error) {
	return kill(ctx, func(m Mark) bool { return m.owner() == t.first.owner() }, 0)
}

func (t *trees) killBoot(ctx context.Context) (int, error) {
	return kill(ctx, func(m Mark) bool { return m.boot() == t.first.boot() }, 0)
}

// use measures all trees of this boot in one pass over /proc.
func (t *trees) use() (map[Mark]Usage, error) {
	out := make(map[Mark]Usage)
	var status []byte
	err := each(0, func(pid int, m Mark) {
		if m.boot() != t.first.boot() {
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

// orphans finds for a guard the processes that its host left, by their marks.
type orphans struct{ first Mark }

func newOrphans(first Mark) *orphans { return &orphans{first} }

// follow reads from the host until the host has ended.
func (o *orphans) follow(in io.Reader) { _, _ = io.Copy(io.Discard, in) } // a read that fails also says that it has

func (o *orphans) kill(ctx context.Context) (int, error) {
	return kill(ctx, func(m Mark) bool { return m.boot() == o.first.boot() }, 0)
}

// kill sends SIGKILL to the processes whose mark matches and repeats that until it finds none
// alive, because one may fork during the search. It returns how many it killed. leader
// is as in Host.End. kill never sends a signal to the leader and to this process.
func kill(ctx context.Context, match func(Mark) bool, leader int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	killed := make(map[int]struct{})
	status := make([]byte, 4<<10)
	for {
		var failed error
		left := 0
		err := each(leader, func(pid int, m Mark) {
			if !match(m) || pid == leader || pid == os.Getpid() {
				return
			}
			// Open a handle, then read the mark again: the pid may have been reused.
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return // it has ended
			}
			defer func() { _ = unix.Close(fd) }()
			if _, alive := memoryOf(pid, status); !alive || markOf(pid, status) != m {
				return
			}
			left++
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				failed = fmt.Errorf("proctree: kill process %d: %w", pid, err)
				return
			}
			killed[pid] = struct{}{}
		})
		if err = errors.Join(err, failed); err != nil || left == 0 {
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

// each calls f for every process that has a mark. With a leader it visits only younger
// processes, by pid, unless pids have wrapped around since the leader started.
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
	if leader > 0 && newestPID() < leader {
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

// newestPID returns the pid that was assigned last, or 0 if it is not known.
func newestPID() int {
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

// memoryOf returns the private and shared memory and swap of a process in bytes, without the pages
// of files. alive is false for a process that has ended, whether or not it was reaped, and for one that
// cannot be read. buf is scratch space for the process's status file; memoryOf ignores the part of the file
// that does not fit.
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
