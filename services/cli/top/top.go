package top

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

const (
	// betweenReads is the shortest time between two readings, however many events there are, and idleRead the longest.
	betweenReads, idleRead = 500 * time.Millisecond, 10 * time.Second
	// clockTick is how often the picture is drawn although nothing was read: ages grow, and the size may have changed.
	clockTick = time.Second
)

// Command returns `quartet top`.
func Command(s *session.Session) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use: "top", Short: "Show the agents live, and one of them in detail", Args: input.None,
		Long: `Show the agents on the whole terminal and keep them up to date: each with its posture,
its control, its queued messages, the work item in focus and the reason. Enter shows
one agent in detail: what the scheduler decides and why, its running tasks and its
queue. Nothing is changed.

  ↑ ↓ j k PgUp PgDn   choose, or scroll       /   only agents that contain a text
  enter               show in detail          s   sort by posture, name or queued
  esc                 back                    q   quit

Up to 2000 agents are shown. Where there are more, all are counted, those that do or
wait for something come before idle ones, and / finds the others by their ids.
With --once, -o json, or where the output is no terminal, the list is printed once.`,
		Example: "  quartet top\n  quartet top --once",
	}
	cmd.Flags().BoolVar(&once, "once", false, "Print the list once")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		in, isFile := cmd.InOrStdin().(*os.File)
		out, outFile := cmd.OutOrStdout().(*os.File)
		if once || s.JSON() || !isFile || !outFile || !terminal.IsTerminal(in) || !terminal.IsTerminal(out) {
			return printOnce(s, cmd, conn)
		}
		screen, err := openScreen(in, out)
		if err != nil {
			return err
		}
		stop := make(chan struct{})
		keys := make(chan key)
		// It ends with the terminal: a blocked read of one cannot be interrupted everywhere.
		go readKeys(in, keys, stop)
		v := &view{address: s.Address(), utc: s.Zone() == time.UTC}
		err = run(cmd.Context(), reader{conn}, screen, v, keys, s.Now)
		close(stop)
		return errors.Join(err, screen.close())
	})
	return cmd
}

// printOnce prints the list.
func printOnce(s *session.Session, cmd *cobra.Command, conn *grpc.ClientConn) error {
	get := reader{conn}.first
	if !s.JSON() {
		get = func(ctx context.Context) (fleet, error) { return reader{conn}.fleet(ctx, "") }
	}
	f, err := get(cmd.Context())
	if err != nil {
		return err
	}
	return s.Show(cmd, &agentv1.ListAgentsResponse{Agents: f.agents}, func(p *output.Printer) {
		v := &view{address: s.Address(), utc: s.Zone() == time.UTC, fleet: f, loaded: true, now: s.Now()}
		var rows [][]string
		for _, a := range v.rows() {
			rows = append(rows, row(a))
		}
		p.Printf("%s\n\n", uncoloured(v.head()))
		p.Table("no agents", header, rows)
	})
}

// reading is the result of one reading.
type reading struct {
	fleet  fleet
	detail *detail
	inside string // the agent of detail
	err    error
}

// run shows the view until q is pressed, keys is closed or ctx ends.
func run(ctx context.Context, r reader, s *screen, v *view, keys <-chan key, now func() time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	changed, lost, results := make(chan struct{}, 1), make(chan error, 1), make(chan reading, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(ctx, func() { offer(changed, struct{}{}) }, func(err error) { offer(lost, err) })
	}()
	running := false // a reading
	defer func() {
		cancel()
		<-watched
		if running {
			<-results
		}
	}()
	clock := time.NewTicker(clockTick)
	defer clock.Stop()
	due := time.NewTimer(0) // when to read again
	defer due.Stop()
	var last time.Time
	wanted := true
	for {
		v.now = now()
		if err := s.draw(v.lines); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case k, ok := <-keys:
			if !ok {
				return nil
			}
			switch v.press(k) {
			case quit:
				return nil
			case load:
				wanted, last = true, time.Time{}
				due.Reset(0)
			case nothing:
			}
		case <-clock.C:
		case err := <-lost:
			v.problem = "connection lost, trying again: " + fault.From(err).Message()
		case <-changed:
			if !wanted {
				wanted = true
				due.Reset(max(betweenReads-time.Since(last), 0))
			}
		case <-due.C:
			if running {
				due.Reset(betweenReads)
				continue
			}
			running, wanted, last = true, false, time.Now()
			due.Reset(idleRead)
			go func(inside, filter string) { results <- r.read(ctx, inside, filter) }(v.inside, v.filter)
		case got := <-results:
			running = false
			v.take(got)
			if wanted {
				due.Reset(max(betweenReads-time.Since(last), 0))
			}
		}
	}
}

// offer sends v unless the channel is full: one is enough.
func offer[T any](to chan<- T, v T) {
	select {
	case to <- v:
	default:
	}
}

// read reads the agent inside, or, if inside is empty, the fleet. filter does not restrict the fleet: of one that is
// too large to be read whole, agents whose id contains filter are read in addition; see fleet. An error is in the
// result.
func (r reader) read(ctx context.Context, inside, filter string) reading {
	ctx, cancel := context.WithTimeout(ctx, readTerm)
	defer cancel()
	got := reading{inside: inside}
	if inside != "" {
		got.detail, got.err = r.detail(ctx, inside)
	} else {
		got.fleet, got.err = r.fleet(ctx, filter)
	}
	return got
}

// take puts what was read into the view.
func (v *view) take(got reading) {
	if got.err != nil {
		v.problem = fault.From(got.err).Message()
		return
	}
	v.problem = ""
	switch got.inside {
	case "":
		v.fleet, v.loaded = got.fleet, true
	case v.inside:
		v.detail = got.detail
	}
}

// uncoloured returns s without colours.
func uncoloured(s string) string {
	var b strings.Builder
	for s != "" {
		before, rest, ok := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !ok {
			break
		}
		_, s, _ = strings.Cut(rest, "m")
	}
	return b.String()
}
