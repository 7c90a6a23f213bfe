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

// What a year of busy agents is, and how it is made small enough to be lived through.
//
// An installation of 200 busy agents writes 0.75 GB to its journals each day, in segments of 64 MiB, with 128 MiB of EVENTS, and keeps its
// history for 30 days. All amounts are divided by one factor: what is written each day, segments, snapshots and EVENTS.
// Settings have whole MiB; what would be less is 1 MiB, as of an installation with segment-mib and snapshot-mib of as many MiB as the factor.
//
// Time is not divided: the server has a clock on which a day passes at once when the work of that day is done (QUARTET_TEST_CLOCK_PASSED), so
// that history-days is 30, and everything that waits for a time does so. That clock is in builds with the tag clockstep only; it is the
// only difference from the binary that is shipped.
//
// What the server keeps of an agent by number, as its newest 64 turns and 256 messages, is not divided. So that these are full in the second
// month, agents are fewer than 200 and busier: busyAt divided by the factor, which is 200 at a factor of 44. What each completed item, ended task
// or archived segment leaves for good is divided by the factor like all that happens, so growth is factor times as large without it.
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
	return []string{"--segment-mib=" + mib(64), "--snapshot-mib=" + mib(16), "--events-mib=" + mib(128), "--history-days=30", "--embedded-worker=on"}
}

// month is what an installation takes at the end of a month. Sizes are in bytes.
type month struct {
	n                                                int
	written                                          int64 // to journals, in this month
	total, journals, snapshots, archive, events, out int64
	homes                                            int64 // of agents
	other                                            int64 // of the data directory
	cache                                            int64 // the file of agents that are not used, which has no name
	rss, heap                                        int64
	ready                                            time.Duration
	turns                                            int
	took                                             time.Duration
}

// measureYear lives through a year and says what the installation takes at the end of each month. It takes half an hour, so that it is not part
// of a run that measures everything unless --year is given.
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
		// After each month, so that a run that is ended early leaves what it has.
		if err := writeYear(o.yearDir, o.factor, all); err != nil {
			return err
		}
	}
	return nil
}

func (m month) String() string {
	return fmt.Sprintf("%d MB on disk (journals %.1f, snapshots %.1f, archive %.1f, EVENTS %.1f, output %.1f, homes %.1f, other %.1f; cache %.1f); RSS %d MB, heap %.1f MB; ready %s; %d turns, %d MB written in %s",
		m.total/1e6, mb(m.journals), mb(m.snapshots), mb(m.archive), mb(m.events), mb(m.out), mb(m.homes), mb(m.other), mb(m.cache), m.rss/1e6, mb(m.heap), m.ready.Round(10*time.Millisecond), m.turns, m.written/1e6, m.took.Round(time.Second))
}

func mb(n int64) float64 { return float64(n) / 1e6 }

// life is an installation that lives through the year.
type life struct {
	srv    *proc.Quartet
	client *client.Client
	pprof  string
	clock  string // the file with what has passed
	passed time.Duration

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
	if l.srv, err = proc.NewQuartet(binary, dir, "", append(yearSettings(factor), "--pprof-addr="+l.pprof)...); err != nil {
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

// pass lets time pass.
func (l *life) pass(d time.Duration) error {
	l.passed += d
	if err := os.WriteFile(l.clock+".new", []byte(l.passed.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(l.clock+".new", l.clock)
}

// measure lets the server rest, measures what it takes, and kills and starts it a few times.
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

// onDisk adds up the files of the installation.
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
	entries, _ = os.ReadDir(fds) // there is none but on Linux
	for _, e := range entries {
		name := filepath.Join(fds, e.Name())
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, dir) && strings.HasSuffix(to, " (deleted)") {
			if info, err := os.Stat(name); err == nil {
				m.cache += info.Size()
			}
		}
	}
}

// blocksOf returns how many bytes the blocks of the files and directories below a directory have, but for those that are left out.
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

// liveHeap returns what is in use of the server's heap after two collections, of which the first leaves what is in pools.
func (l *life) liveHeap(ctx context.Context) (n int64, err error) {
	url := "http://" + l.pprof + "/debug/pprof/heap?gc=1&debug=1"
	if err := scrape.Get(ctx, url, func(body io.Reader) error { _, err := io.Copy(io.Discard, body); return err }); err != nil {
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
