package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// The names of the figures of other systems.
const (
	nameRiver       = "River on PostgreSQL, single inserts"
	nameRiverWork   = "River on PostgreSQL, jobs claimed and completed"
	nameAsynq       = "asynq on Redis (appendfsync always), single tasks"
	nameAsynqWork   = "asynq on Redis (appendfsync always), tasks claimed and completed"
	rivalsDir       = "bench/rivals"
	noteRiver       = "no gRPC"
	noteRiverWork   = "jobs inserted before"
	noteAsynqWork   = "tasks enqueued before"
	rivalsAreAbsent = "not measured: "
)

// rivals is the process of bench/rivals, which measures other systems. It is a separate module, so
// that its dependencies are not Quartet's.
type rivals struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startRivals builds and starts the program. It needs PostgreSQL and Redis on the machine.
func startRivals(ctx context.Context, dir string) (*rivals, error) {
	bin := filepath.Join(dir, "rivals-bin")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, ".")
	build.Dir = rivalsDir
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build in %s: %w: %s", rivalsDir, err, out)
	}
	data := filepath.Join(dir, "rivals")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL runs as another account
		return nil, err
	}
	r := &rivals{cmd: exec.Command(bin, "-dir", data)} //nolint:noctx // it ends with its input, so that it can stop its servers
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReaderSize(out, 1<<20)
	return r, r.cmd.Start()
}

func (r *rivals) stop() error { return errors.Join(r.in.Close(), r.cmd.Wait()) }

// turn measures one slice of a figure.
func (r *rivals) turn(figure string) func(context.Context, int, time.Duration) (turn, error) {
	return func(_ context.Context, callers int, span time.Duration) (turn, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, err := fmt.Fprintf(r.in, "{\"figure\": %q, \"callers\": %d, \"span\": %q}\n", figure, callers,
			span); err != nil {
			return turn{}, err
		}
		line, err := r.out.ReadBytes('\n')
		if err != nil {
			return turn{}, fmt.Errorf("the program of %s ended: %w", rivalsDir, err)
		}
		var a struct {
			Done  int             `json:"done"`
			Span  time.Duration   `json:"span"`
			Took  []time.Duration `json:"took"`
			Error string          `json:"error"`
		}
		if err := json.Unmarshal(line, &a); err != nil {
			return turn{}, err
		}
		if a.Error != "" {
			return turn{}, errors.New(a.Error)
		}
		return turn{took: a.Took, done: a.Done, span: a.Span}, nil
	}
}

// measureRivals measures other systems after Quartet and not alternately with it, because their running
// servers would slow Quartet down. So a ratio to them is one of whole figures.
func measureRivals(ctx context.Context, o options, say func(row)) error {
	figures := map[int][]figure{}
	for _, f := range []struct {
		name, figure, note string
		callers            int
	}{
		{nameRiver, "river_insert", noteRiver, 256},
		{nameAsynq, "asynq_enqueue", noteRiver, 256},
		{nameRiverWork, "river_work", noteRiverWork, stepWorkers},
		{nameAsynqWork, "asynq_work", noteAsynqWork, stepWorkers},
		{nameRiverWork, "river_work", noteRiverWork, manyWorkers},
	} {
		if o.wants(f.name) {
			figures[f.callers] = append(figures[f.callers], figure{name: f.name, note: f.note, kind: f.figure})
		}
	}
	if len(figures) == 0 {
		return nil
	}
	r, err := startRivals(ctx, o.dir)
	if err != nil {
		say(row{name: "River and asynq", note: rivalsAreAbsent + err.Error()})
		return nil //nolint:nilerr // the rest is measured without them
	}
	for _, callers := range []int{256, stepWorkers, manyWorkers} {
		if len(figures[callers]) == 0 {
			continue
		}
		for i := range figures[callers] {
			figures[callers][i].turn = r.turn(figures[callers][i].kind)
		}
		rows, err := alternate(ctx, callers, o.span, figures[callers])
		if err != nil {
			say(row{name: "River and asynq", note: rivalsAreAbsent + err.Error()})
			break
		}
		for _, row := range rows {
			say(row)
		}
	}
	return r.stop()
}
