package worker

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
)

// lookEvery is how often what commands take is measured. A command may be over a
// limit of memory or processes for that long (SPEC T7).
const lookEvery = 100 * time.Millisecond

// limits is what one command may take; 0: as much as it likes.
type limits struct {
	memory, output int64
	processes      int
}

// limitsOf gives what a command asked for, within what this worker allows.
func (w *Worker) limitsOf(t *taskv1.Task) limits {
	asked := t.GetCommand().GetLimits()
	return limits{
		memory:    lower(asked.GetMemoryBytes(), w.cfg.MaxMemory),
		output:    asked.GetOutputBytes(),
		processes: lower(int(asked.GetProcesses()), w.cfg.MaxProcesses),
	}
}

// lower gives the lower one of two limits.
func lower[T int | int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// within cuts output at the command's limit, and reports whether there was more.
func (c *command) within(data []byte) ([]byte, bool) {
	if c.most.output == 0 {
		return data, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.most.output - c.written
	if int64(len(data)) <= room {
		c.written += int64(len(data))
		return data, false
	}
	c.written = c.most.output
	return data[:room], true
}

// exceed ends a command that went over a limit, at once: what it takes is needed.
func (c *command) exceed(cause taskv1.TaskEndReason, detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == 0 && !c.exited {
		c.detail = detail
	}
	c.stopLocked(cause, true)
}

// judge compares what a command takes with what it may.
func (c *command) judge(u proctree.Usage) {
	switch {
	case c.most.memory > 0 && u.Memory > c.most.memory:
		c.exceed(causeMemory, fmt.Sprintf("ended: its %d processes had %s of memory; the limit is %s", u.Processes, mebibytes(u.Memory), mebibytes(c.most.memory)))
	case c.most.processes > 0 && u.Processes > c.most.processes:
		c.exceed(causeProcesses, fmt.Sprintf("ended: it had %d processes; the limit is %d", u.Processes, c.most.processes))
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// watchers look at the commands that have limits, all at one time, and only while
// there are some.
type watchers struct {
	mu       sync.Mutex
	commands map[proctree.Mark]*command
	looking  bool
}

// add has a command watched until the function that it gives is called.
func (w *watchers) add(c *command, m proctree.Mark) (remove func()) {
	if c.most.memory == 0 && c.most.processes == 0 {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commands == nil {
		w.commands = make(map[proctree.Mark]*command)
	}
	if !w.looking {
		w.looking = true
		c.w.running.Go(func() { w.look(c.w) }) // a command runs, so this is not the first to be waited for
	}
	w.commands[m] = c
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.commands, m)
	}
}

// look measures until no command is left.
func (w *watchers) look(on *Worker) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for range tick.C {
		used, err := on.host.Use()
		if err != nil {
			on.cfg.Logger.Warn("what commands take cannot be measured", zap.Error(err))
		}
		w.mu.Lock()
		if len(w.commands) == 0 {
			w.looking = false
			w.mu.Unlock()
			return
		}
		watched := make(map[*command]proctree.Usage, len(w.commands))
		for m, c := range w.commands {
			watched[c] = used[m]
		}
		w.mu.Unlock()
		for c, u := range watched {
			c.judge(u)
		}
	}
}
