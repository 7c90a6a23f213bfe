package proctree

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sampleEvery is how often the process table is read while a tree is alive.
	sampleEvery = 100 * time.Millisecond
	// killTime bounds a kill. A process that hangs in the kernel dies later.
	killTime  = 10 * time.Second
	killPause = 5 * time.Millisecond
)

// Supported describes this system.
func Supported() Capabilities {
	return Capabilities{Escapes: "a process that leaves its session and loses its parent within 100 ms, or is " +
		"started by another program on request"}
}

// processTable reads all processes of the system that have not ended.
func processTable() ([]entry, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, fmt.Errorf("proctree: read the process table: %w", err)
	}
	const zombie = 5 // SZOMB of sys/proc.h
	out := make([]entry, 0, len(all))
	for i := range all {
		p := &all[i]
		if p.Proc.P_stat == zombie {
			continue
		}
		started := p.Proc.P_starttime
		out = append(out, entry{int(p.Proc.P_pid), int(p.Eproc.Ppid), int(p.Eproc.Pgid), started.Nano()})
	}
	return out, nil
}

// trees finds the processes of this host by ancestry.
type trees struct {
	first Mark
	guard *guard

	mu       sync.Mutex
	live     map[Mark]*ancestry
	sampling bool
}

func newTrees(first Mark) *trees { return &trees{first: first, live: map[Mark]*ancestry{}} }

// report sets the guard to which each process is reported from now on. It must be called
// before the first start.
func (t *trees) report(g *guard) { t.guard = g }

func (t *trees) start(m Mark, cmd *exec.Cmd, start func() error) error {
	forking.Lock()
	defer forking.Unlock()
	if err := start(); err != nil {
		return err
	}
	leader := entry{pid: cmd.Process.Pid, group: cmd.Process.Pid}
	table, err := processTable()
	for _, e := range table {
		if e.pid == leader.pid {
			leader = e
		}
	}
	if err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live[m] = newAncestry(leader)
	t.reportToGuard(leader)
	if !t.sampling {
		t.sampling = true
		go t.sample()
	}
	return nil
}

// reportToGuard reports a process to the guard. t.mu must be held.
func (t *trees) reportToGuard(e entry) {
	if t.guard != nil {
		t.guard.write(fmt.Sprintf("%d %d\n", e.pid, e.started))
	}
}

// sample observes all trees until there are none.
func (t *trees) sample() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for range tick.C {
		table, err := processTable()
		t.mu.Lock()
		if len(t.live) == 0 {
			t.sampling = false
			t.mu.Unlock()
			return
		}
		if err == nil {
			t.observe(table)
		}
		t.mu.Unlock()
	}
}

// observe updates all trees. t.mu must be held.
func (t *trees) observe(table []entry) {
	for _, a := range t.live {
		for _, e := range a.observe(table) {
			t.reportToGuard(e)
		}
	}
}

func (t *trees) use() (map[Mark]Usage, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observe(table)
	out := make(map[Mark]Usage, len(t.live))
	for m, a := range t.live {
		if n := len(a.members); n > 0 {
			out[m] = Usage{Processes: n}
		}
	}
	return out, nil
}

func (t *trees) kill(ctx context.Context, m Mark, leader int) (int, error) {
	t.mu.Lock()
	a := t.live[m]
	t.mu.Unlock()
	if a == nil {
		return 0, nil
	}
	n, err := killAll(ctx, leader, func(table []entry) map[int]int64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		a.observe(table)
		return a.members
	})
	if err == nil {
		t.mu.Lock()
		delete(t.live, m)
		t.mu.Unlock()
	}
	return n, err
}

// killOwner kills nothing: on this system the processes of an earlier boot cannot be recognised.
func (t *trees) killOwner(context.Context) (int, error) { return 0, nil }

func (t *trees) killBoot(ctx context.Context) (n int, err error) {
	t.mu.Lock()
	marks := make([]Mark, 0, len(t.live))
	for m := range t.live {
		marks = append(marks, m)
	}
	t.mu.Unlock()
	for _, m := range marks {
		killed, failed := t.kill(ctx, m, 0)
		n, err = n+killed, errors.Join(err, failed)
	}
	return n, err
}

// killAll sends SIGKILL to the processes that find returns, except leader and this process,
// until find returns no other ones. It returns how many processes it killed, also with an error.
func killAll(ctx context.Context, leader int, find func([]entry) map[int]int64) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	killed := make(map[int]struct{})
	for {
		table, err := processTable()
		if err != nil {
			return len(killed), err
		}
		left := 0
		for pid := range find(table) {
			if pid == leader || pid == os.Getpid() {
				continue
			}
			left++
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return len(killed), fmt.Errorf("proctree: kill process %d: %w", pid, err)
			}
			killed[pid] = struct{}{}
		}
		if left == 0 {
			return len(killed), nil
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

// orphans has the host's processes that the host reported to the guard, and finds their descendants.
type orphans struct{ known ancestry }

func newOrphans(Mark) *orphans { return &orphans{ancestry{members: map[int]int64{}}} }

// follow reads the host's reports until the host has ended.
func (o *orphans) follow(in io.Reader) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var pid int
		var started int64
		if n, err := fmt.Sscanf(lines.Text(), "%d %d", &pid, &started); err == nil && n == 2 {
			o.known.members[pid] = started
		}
		if len(o.known.members)%1024 == 1023 { // forget those that have ended
			if table, err := processTable(); err == nil {
				o.known.observe(table)
			}
		}
	}
}

func (o *orphans) kill(ctx context.Context) (int, error) {
	return killAll(ctx, 0, func(table []entry) map[int]int64 {
		o.known.observe(table)
		return o.known.members
	})
}

// write sends a line to the guard. Without a guard, or when the guard has just died,
// the line is lost.
func (g *guard) write(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		_, _ = g.pipe.WriteString(line)
	}
}
