package worker

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
)

// measureEvery is how often the memory and processes of commands are measured. A
// command may exceed a limit for that long (SPEC T7).
const measureEvery = 100 * time.Millisecond

// limits bounds what one command may use; 0 means no limit.
type limits struct {
	memory, output int64 // bytes
	processes      int
}

// limitsOf returns the limits of a command: for each, the lower of the command's own and this worker's.
func (w *Worker) limitsOf(t *taskv1.Task) limits {
	own := t.GetCommand().GetLimits()
	return limits{
		memory:    lower(own.GetMemoryBytes(), w.cfg.MaxMemory),
		output:    own.GetOutputBytes(),
		processes: lower(int(own.GetProcesses()), w.cfg.MaxProcesses),
	}
}

// lower returns the lower of two limits, where 0 means none.
func lower[T int | int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// limitOutput counts data as output of the command. It returns the part of data that is within
// the command's limit; over reports whether there was more. Each piece of output must be
// passed once.
func (c *command) limitOutput(data []byte) (within []byte, over bool) {
	if c.limits.output == 0 {
		return data, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.limits.output - c.written
	if int64(len(data)) <= room {
		c.written += int64(len(data))
		return data, false
	}
	c.written = c.limits.output
	return data[:room], true
}

// exceed kills a command that exceeded a limit. detail is the message of its end, unless the
// command was ended for another reason before.
func (c *command) exceed(cause taskv1.TaskEndReason, detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == 0 && !c.exited {
		c.detail = detail
	}
	c.stopLocked(cause, true)
}

// checkUsage kills the command if its usage exceeds a limit.
func (c *command) checkUsage(u proctree.Usage) {
	switch {
	case c.limits.memory > 0 && u.Memory > c.limits.memory:
		c.exceed(causeMemory, fmt.Sprintf("ended: its %d processes had %s of memory; the limit is %s", u.Processes,
			mebibytes(u.Memory), mebibytes(c.limits.memory)))
	case c.limits.processes > 0 && u.Processes > c.limits.processes:
		c.exceed(causeProcesses, fmt.Sprintf("ended: it had %d processes; the limit is %d", u.Processes,
			c.limits.processes))
	}
}

// mebibytes returns a number of bytes as text in MiB.
func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// monitor measures the commands that have limits of memory or processes, all of them in one pass. Its
// goroutine runs while there are such commands.
type monitor struct {
	mu       sync.Mutex
	commands map[proctree.Mark]*command
	running  bool
}

// add monitors a command until remove is called.
func (w *monitor) add(c *command, m proctree.Mark) (remove func()) {
	if c.limits.memory == 0 && c.limits.processes == 0 {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commands == nil {
		w.commands = make(map[proctree.Mark]*command)
	}
	if !w.running {
		w.running = true
		c.w.running.Go(func() { w.run(c.w) }) // Stop does not wait yet, since this command is running
	}
	w.commands[m] = c
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.commands, m)
	}
}

// run measures until no command is left. It follows the machine's clock.
func (w *monitor) run(on *Worker) {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for range tick.C {
		used, err := on.host.Use()
		if err != nil {
			on.cfg.Logger.Warn("the memory and processes of commands cannot be measured", zap.Error(err))
		}
		w.mu.Lock()
		if len(w.commands) == 0 {
			w.running = false
			w.mu.Unlock()
			return
		}
		monitored := make(map[*command]proctree.Usage, len(w.commands))
		for m, c := range w.commands {
			monitored[c] = used[m]
		}
		w.mu.Unlock()
		for c, u := range monitored {
			c.checkUsage(u)
		}
	}
}
