package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"quartet/bench/scrape"
	"quartet/pkg/bus"
	"quartet/pkg/client"
	"quartet/tests/proc"
)

// What a year of busy agents is, and how a benchmark can run it in half an hour.
//
// An installation of 200 busy agents writes 0.75 GB to its journals each day, in segments of 64 MiB, with 128 MiB
// of EVENTS, and keeps its history for 30 days. The benchmark divides these amounts by one factor, but no setting
// is less than 1 MiB, as segment-mib and snapshot-mib must be whole numbers.
//
// Time is not divided. The server's clock moves on by a day when the work of that day is done (see
// QUARTET_TEST_CLOCK_PASSED), so that history-days is 30 and all timers are due as usual. Only builds with the tag
// clockstep have such a clock, which is their only difference from the shipped binary.
//
// What the server keeps of an agent up to a number, such as its newest 64 turns and 256 messages, is not divided.
// To fill that in the second month, there are fewer and busier agents: busyAt / factor, which is 200 at a factor of
// 44. What remains permanently of each item, task and segment is divided, so real growth is factor times as large.
const (
	yearAgents    = 200
	busyAt        = 8_800
	turnsPerMonth = 32 // of each agent
	daysPerMonth  = 30
	yearRunners   = 16
	quietFor      = 150 * time.Millisecond
	yearRest      = 8 * time.Second

	nameYear = "year: 200 busy agents"
)

// yearSettings returns the settings of the server.
func yearSettings(factor int) []string {
	mib := func(n int) string { return strconv.Itoa(max(n/factor, 1)) }
	return []string{
		"--segment-mib=" + mib(64), "--snapshot-mib=" + mib(16), "--events-mib=" + mib(128),
		"--history-days=30", "--embedded-worker=on",
	}
}

// month has what an installation uses at the end of a month. Sizes are in bytes.
type month struct {
	n                                                int
	written                                          int64 // to journals, in this month
	total, journals, snapshots, archive, events, out int64 // out: the output of commands
	homes                                            int64 // of agents
	other                                            int64 // the rest of the data directory
	cache                                            int64 // the nameless file with the evicted state of unused agents
	rss, heap                                        int64
	ready                                            time.Duration
	turns                                            int
	took                                             time.Duration
}

// measureYear runs an installation for o.months months and reports what it uses at the end of each. Because that
// takes half an hour, it is only done if --year is given.
func measureYear(ctx context.Context, o options, say func(row)) error {
	if !o.year || !o.wants(nameYear) {
		return nil
	}
	binary, err := proc.Build(o.dir, "quartet/cmd/quartet", "quartet-year", "-tags=grpcnotrace,clockstep")
	if err != nil {
		return err
	}
	l, err := startLife(ctx, binary, filepath.Join(o.dir, "year"), o.factor)
	if err != nil {
		return err
	}
	defer func() { _ = l.stop() }()
	if err := l.spawn(ctx); err != nil {
		return err
	}
	var all []month
	for n := range o.months + 1 {
		m := month{n: n}
		began := time.Now()
		if n > 0 {
			if err := l.month(ctx); err != nil {
				return fmt.Errorf("month %d: %w", n, err)
			}
			m.turns = l.turns()
		}
		m.took = time.Since(began)
		if err := l.measure(ctx, &m); err != nil {
			return fmt.Errorf("month %d: %w", n, err)
		}
		if o.mem != "" {
			if err := l.profile(ctx, fmt.Sprintf("%s.%02d", o.mem, n)); err != nil {
				return err
			}
		}
		all = append(all, m)
		say(row{name: fmt.Sprintf("%s, month %d", nameYear, n), note: m.String()})
		if o.yearDir == "" {
			continue
		}
		// Written after each month, so that a run that is interrupted leaves the months before.
		if err := writeYear(o.yearDir, o.factor, all); err != nil {
			return err
		}
	}
	return nil
}

func (m month) String() string {
	return fmt.Sprintf("%d MB on disk (journals %.1f, snapshots %.1f, archive %.1f, EVENTS %.1f, output %.1f, homes "+
		"%.1f, other %.1f; cache %.1f); RSS %d MB, heap %.1f MB; ready %s; %d turns, %d MB written in %s",
		m.total/1e6, mb(m.journals), mb(m.snapshots), mb(m.archive), mb(m.events), mb(m.out), mb(m.homes), mb(m.other),
		mb(m.cache), m.rss/1e6, mb(m.heap), m.ready.Round(10*time.Millisecond), m.turns, m.written/1e6,
		m.took.Round(time.Second))
}

func mb(n int64) float64 { return float64(n) / 1e6 }

// life is the installation of the year.
type life struct {
	srv    *proc.Quartet
	client *client.Client
	pprof  string
	clock  string        // the file that says how much time has passed
	passed time.Duration // what the file says

	size   int // how many agents there are
	agents []*busy
	probe  string // an item of the first agent
	work   workload
}

func startLife(ctx context.Context, binary, dir string, factor int) (*life, error) {
	l := &life{clock: dir + "-clock", size: max(busyAt/factor, 1)}
	if err := os.Setenv("QUARTET_TEST_CLOCK_PASSED", l.clock); err != nil { // the server inherits it
		return nil, err
	}
	var err error
	if l.pprof, err = proc.FreeAddr(); err != nil {
		return nil, err
	}
	if l.srv, err = proc.NewQuartet(binary, dir, "", append(yearSettings(factor), "--pprof-addr="+l.pprof)...); err !=
		nil {
		return nil, err
	}
	if err := l.pass(0); err != nil {
		return nil, err
	}
	return l, l.start(ctx)
}

func (l *life) start(ctx context.Context) error {
	if err := l.srv.Start(ctx); err != nil {
		return err
	}
	var err error
	l.client, err = client.Dial(l.srv.GRPC)
	return err
}

func (l *life) stop() error {
	_ = l.client.Close()
	return l.srv.Kill()
}

// pass moves the server's clock on by d.
func (l *life) pass(d time.Duration) error {
	l.passed += d
	if err := os.WriteFile(l.clock+".new", []byte(l.passed.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(l.clock+".new", l.clock)
}

// measure waits for yearRest, measures what the server uses, and kills and starts it starts times.
func (l *life) measure(ctx context.Context, m *month) error {
	<-time.After(yearRest)
	var err error
	if m.written, err = l.frameBytes(ctx); err != nil {
		return err
	}
	if m.rss, err = scrape.Resident(l.srv.PID()); err != nil {
		return err
	}
	if m.heap, err = l.liveHeap(ctx); err != nil {
		return err
	}
	l.onDisk(m)
	var took []time.Duration
	for range starts {
		if err := l.stop(); err != nil {
			return err
		}
		began := time.Now()
		if err := l.start(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	m.ready = took[starts/2]
	return nil
}

// onDisk sets the sizes of the installation's files.
func (l *life) onDisk(m *month) {
	dir := l.srv.DataDir
	streams := filepath.Join(dir, "nats", "jetstream", "$G", "streams")
	entries, _ := os.ReadDir(streams)
	for _, e := range entries {
		n := blocksOf(filepath.Join(streams, e.Name()))
		switch {
		case strings.HasPrefix(e.Name(), "quartet-journal-"):
			m.journals += n
		case strings.HasPrefix(e.Name(), "quartet-snapshot-"):
			m.snapshots += n
		case e.Name() == bus.Stream:
			m.events += n
		default:
			m.out += n
		}
	}
	m.archive, m.homes = blocksOf(filepath.Join(dir, "archive")), blocksOf(filepath.Join(dir, "home"))
	m.other = blocksOf(dir, streams, filepath.Join(dir, "archive"), filepath.Join(dir, "home"))
	m.total = m.journals + m.snapshots + m.archive + m.events + m.out + m.homes + m.other
	fds := "/proc/" + strconv.Itoa(l.srv.PID()) + "/fd"
	entries, _ = os.ReadDir(fds) // exists only on Linux
	for _, e := range entries {
		name := filepath.Join(fds, e.Name())
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, dir) &&
			strings.HasSuffix(to, " (deleted)") {
			if info, err := os.Stat(name); err == nil {
				m.cache += info.Size()
			}
		}
	}
}

// blocksOf returns how many bytes on the disk the files and directories below dir take, without the paths in but.
func blocksOf(dir string, but ...string) (n int64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the server has removed it
		}
		if slices.Contains(but, path) {
			return filepath.SkipDir
		}
		if info, err := d.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				n += stat.Blocks * 512
			}
		}
		return nil
	})
	return n
}

// frameBytes returns how much the server has written to journals since it was started.
func (l *life) frameBytes(ctx context.Context) (int64, error) {
	sum, err := scrape.Metric(ctx, l.srv.HTTP, "quartet_journal_frame_bytes_sum")
	return int64(sum), err
}

// liveHeap returns the size of the server's heap after two collections; after the first one, pools keep objects.
func (l *life) liveHeap(ctx context.Context) (n int64, err error) {
	url := "http://" + l.pprof + "/debug/pprof/heap?gc=1&debug=1"
	if err := scrape.Get(ctx, url, func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	}); err != nil {
		return 0, err
	}
	err = scrape.Lines(ctx, url, func(line string) error {
		text, is := strings.CutPrefix(line, "# HeapAlloc = ")
		if !is {
			return nil
		}
		var err error
		n, err = strconv.ParseInt(text, 10, 64)
		return err
	})
	return n, err
}

// profile writes a profile of the server's heap.
func (l *life) profile(ctx context.Context, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return scrape.Get(ctx, "http://"+l.pprof+"/debug/pprof/heap?gc=1", func(body io.Reader) error {
		_, err := io.Copy(f, body)
		return err
	})
}
