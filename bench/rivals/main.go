package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

// ask is a request for one slice.
type ask struct {
	Figure  string `json:"figure"`
	Callers int    `json:"callers"`
	Span    string `json:"span"`
}

// answer is the result of one slice.
type answer struct {
	// Done is the number of operations that ended within the span.
	Done int `json:"done"`
	// Span is the duration of the slice, in nanoseconds.
	Span time.Duration `json:"span"`
	// Took are the latencies of the operations in nanoseconds, if the figure has them.
	Took  []time.Duration `json:"took,omitempty"`
	Error string          `json:"error,omitempty"`
}

// figures has, by name, the functions that measure a slice. Each takes the number of callers or workers, and how
// long to measure.
type figures map[string]func(ctx context.Context, callers int, span time.Duration) (answer, error)

func main() {
	dir := flag.String("dir", "", "where the servers keep their data; empty: a temporary directory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *dir)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rivals:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "rivals"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	known := figures{}
	for _, start := range []func(context.Context, string, figures) (func() error, error){startRiver, startAsynq} {
		stop, serr := start(ctx, dir, known)
		if stop != nil {
			defer func() { err = errors.Join(err, stop()) }()
		}
		if serr != nil {
			return serr
		}
	}
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := out.Encode(measure(ctx, known, in.Bytes())); err != nil {
			return err
		}
	}
	return in.Err()
}

func measure(ctx context.Context, known figures, line []byte) answer {
	var q ask
	if err := json.Unmarshal(line, &q); err != nil {
		return answer{Error: err.Error()}
	}
	span, err := time.ParseDuration(q.Span)
	if err != nil {
		return answer{Error: err.Error()}
	}
	figure := known[q.Figure]
	if figure == nil {
		return answer{Error: fmt.Sprintf("there is no figure %q", q.Figure)}
	}
	a, err := figure(ctx, q.Callers, span)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return a
}
