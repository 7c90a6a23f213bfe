package confine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// helperSocket is the descriptor of a helper's end of the channel.
const helperSocket = 3

// helper starts the processes of a sandbox. In namespaces it is the init process.
type helper struct {
	channel *channel
	init    bool
	guard   *guardian
	spawn   chan func() // functions that the limited thread executes one after the other

	mu      sync.Mutex
	leaders map[int]bool  // numbers, inside of the sandbox, of the started processes that are not reaped
	byID    map[int64]int // the same numbers, by the ids of the start messages
}

// Main is the main function of a helper: it prepares the sandbox and starts processes in it.
// It returns nil when the program that opened the sandbox ends or closes it.
func Main() error {
	// No process of the sandbox may end this one by a signal. Child processes inherit ignored signals,
	// so these are received and discarded instead.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1,
		unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	// Whoever started the worker may have left files open.
	if err := unix.CloseRange(helperSocket, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	c, err := newChannel(os.NewFile(helperSocket, "sandbox"))
	if err != nil {
		return fmt.Errorf("this command is started by a worker: %w", err)
	}
	var first request
	files, err := c.receive(&first)
	closeAll(files)
	if err != nil || first.Setup == nil {
		return errors.Join(errors.New("confine: no setup"), err)
	}
	// no process of a sandbox may read the memory or the descriptors of this one
	if err := errors.Join(mapIDs(first.Setup.IDs), Protect()); err != nil {
		return c.send(response{Event: eventReady, Error: err.Error()})
	}
	h := &helper{
		channel: c, init: os.Getpid() == 1, spawn: make(chan func()), leaders: make(map[int]bool),
		byID: make(map[int64]int),
	}
	tun, err := h.prepare(first.Setup)
	if err != nil {
		return c.send(response{Event: eventReady, Error: err.Error()})
	}
	if err := c.send(response{Event: eventReady}, tun...); err != nil {
		return err
	}
	closeAll(tun)
	if h.init {
		go h.reapOrphans()
	}
	go func() { h.end(h.guard.run()) }()
	return h.serve()
}

// end ends this process, and with it the sandbox, because something cannot be hidden from its commands any more.
func (h *helper) end(err error) {
	fmt.Fprintln(os.Stderr, "a sandbox ends with its commands:", err)
	_ = h.channel.send(response{Event: eventEnding, Error: err.Error()}) // if this fails, the sandbox was closed
	h.mu.Lock()                                                          // no process starts
	for pid := range h.leaders {
		_ = unix.Kill(-pid, unix.SIGKILL) // without namespaces the end of this process kills only those that it started
	}
	os.Exit(1)
}

// mapIDs maps the user id and the group id in m to themselves, in the user namespace of this process, in which no ids
// are mapped yet. If m is nil, it does nothing.
func mapIDs(m *ids) error {
	if m == nil {
		return nil
	}
	for _, f := range [][2]string{
		{"uid_map", fmt.Sprintf("%d %d 1", m.UID, m.UID)},
		{"setgroups", "deny"}, // without it nobody but root may map a group
		{"gid_map", fmt.Sprintf("%d %d 1", m.GID, m.GID)},
	} {
		if err := os.WriteFile("/proc/self/"+f[0], []byte(f[1]), 0); err != nil {
			return fmt.Errorf("user namespace: %w", err)
		}
	}
	return nil
}

// prepare makes the view of the sandbox and the thread that starts its processes. tun has the descriptor of the
// network interface, which the caller must close; it is empty unless the network is NetworkOutside.
func (h *helper) prepare(s *setup) (tun []int, err error) {
	h.guard = newGuardian(s)
	if s.Policy.Level == LevelNamespaces {
		if tun, err = prepareNetwork(s.Policy.Network); err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
		if err := enterView(s, h.guard); err != nil {
			closeAll(tun)
			return nil, fmt.Errorf("mounts: %w", err)
		}
	}
	limited := make(chan error)
	onThread(func() {
		err := limitThread(s)
		limited <- err
		if err != nil {
			return
		}
		for f := range h.spawn {
			f()
		}
	})
	if err := <-limited; err != nil {
		closeAll(tun)
		return nil, err
	}
	return tun, nil
}

// onThread runs f on a thread of its own, because limits cannot be removed from a thread. It is never
// the main thread: the kernel checks that one when it decides whether a command may send a signal to
// this process or read it, so it must not have the limits of the commands.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			onThread(f)
			select {} // keeps all other goroutines off the main thread
		}
		f()
	}()
}

// serve executes requests until the channel is closed.
func (h *helper) serve() error {
	for {
		var r request
		files, err := h.channel.receive(&r)
		if err != nil {
			return nil //nolint:nilerr // the sandbox was closed
		}
		switch {
		case r.Start != nil:
			if err := h.guard.look(); err != nil {
				h.end(err)
			}
			h.start(r.Start, files)
		case r.Reap != 0:
			h.reap(r.Reap)
		default:
			closeAll(files)
		}
	}
}

// start starts a process, and reports its start or the error, and later its exit. It closes files. Calls must not
// overlap.
func (h *helper) start(m *startMsg, files []int) {
	var pid, fd int
	// The thread that forks must not change the mark: what it starts could do so too.
	err := withMark(m.Mark, func() error {
		result := make(chan error)
		h.spawn <- func() {
			var err error
			pid, fd, err = h.fork(m, files)
			result <- err
		}
		return <-result
	})
	closeAll(files)
	if err != nil {
		// if this fails, the helper ends
		_ = h.channel.send(response{Event: eventStarted, ID: m.ID, Error: err.Error()})
		return
	}
	_ = h.channel.send(response{Event: eventStarted, ID: m.ID}, fd) // if this fails, the helper ends
	_ = unix.Close(fd)
	go func() {
		for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
		_ = h.channel.send(response{Event: eventExited, ID: m.ID}) // if this fails, the helper ends
	}()
}

// fork starts a process and returns its number inside of the sandbox and a process descriptor (pidfd) of it. It must be
// called on the limited thread.
func (h *helper) fork(m *startMsg, files []int) (pid, fd int, err error) {
	if len(m.Argv) == 0 || len(files) != 3 {
		return 0, 0, errors.New("confine: a start without a program or files")
	}
	path, err := lookPath(m.Argv[0], m.Dir, m.Env)
	if err != nil {
		return 0, 0, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true, PidFD: &fd}
	if m.Terminal {
		attr.Setpgid, attr.Setsid, attr.Setctty = false, true, true
	}
	if !h.init {
		attr.Pdeathsig = syscall.SIGKILL
	}
	descriptors := make([]uintptr, len(files))
	for i, f := range files {
		descriptors[i] = uintptr(f)
	}
	h.mu.Lock() // the process may end before it is registered as a leader
	defer h.mu.Unlock()
	pid, err = syscall.ForkExec(path, m.Argv, &syscall.ProcAttr{Dir: m.Dir, Env: m.Env, Files: descriptors, Sys: attr})
	if err == nil {
		h.leaders[pid], h.byID[m.ID] = true, pid
	} else {
		return 0, 0, fmt.Errorf("fork/exec %s: %w", path, err)
	}
	if fd < 0 {
		return 0, 0, errors.New("confine: this system has no process descriptors")
	}
	return pid, fd, nil
}

// withMark runs f while the soft RLIMIT_RTTIME of this process is mark, which processes that f starts inherit; see
// Spec.Mark. 0 leaves it as it is. Calls must not overlap. The error is that of f, or of setting the limit before or
// after it.
func withMark(mark uint64, f func() error) error {
	if mark == 0 {
		return f()
	}
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &before); err != nil {
		return err
	}
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: mark, Max: before.Max}, nil); err != nil {
		return err
	}
	return errors.Join(f(), unix.Prlimit(0, unix.RLIMIT_RTTIME, &before, nil))
}

// lookPath returns the path of a program, as os/exec does for a process with this environment.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, v := range slices.Backward(env) {
		list, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(list) {
			path := filepath.Join(d, name)
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			if st, err := os.Stat(path); err == nil && !st.IsDir() && unix.Access(path, unix.X_OK) == nil {
				return path, nil
			}
		}
		break
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// reap starts to reap the process of a start message, which must have ended, and to report its status. It does not
// block. For an unknown id it does nothing.
func (h *helper) reap(id int64) {
	h.mu.Lock()
	pid, known := h.byID[id]
	h.mu.Unlock()
	if !known {
		return
	}
	go func() {
		var status unix.WaitStatus
		for {
			_, err := unix.Wait4(pid, &status, 0, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		h.mu.Lock()
		delete(h.leaders, pid)
		delete(h.byID, id)
		h.mu.Unlock()
		_ = h.channel.send(response{Event: eventReaped, ID: id, Status: int(status)}) // if this fails, the helper ends
	}()
}

// orphanPause is the time between two searches for orphans, so that a program that makes many
// costs little.
const orphanPause = 50 * time.Millisecond

// reapOrphans reaps processes whose parents ended before them, which are children of the init
// process.
func (h *helper) reapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for _, pid := range zombies() {
			h.mu.Lock()
			if !h.leaders[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it may be another process's child
			}
			h.mu.Unlock()
		}
		time.Sleep(orphanPause) //nolint:forbidigo // paces work of a process that has no clock but the machine's
	}
}

// zombies returns the children of the init process that have ended and are not reaped.
func zombies() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state parent …; the name may contain anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 && fields[0] == "Z" && fields[1] == "1" {
			pids = append(pids, pid)
		}
	}
	return pids
}
