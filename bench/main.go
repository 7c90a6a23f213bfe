// Command bench measures Quartet and its physical limits in one run on one machine: a bare gRPC
// echo with the same messages, a raw fsync, and one JetStream message per mutation. Figures of
// different runs or machines are not comparable; the documents quote the ratios within a run.
//
// It is a module of its own, because nobody who runs Quartet needs it, and runs in the directory of the repository:
//
//	make bench ARGS='--for 5s --write docs/benchmarks.md'
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"quartet/services/app"
	"quartet/tests/attack"
)

type options struct {
	dir      string
	span     time.Duration
	callers  []int
	write    string
	only     *regexp.Regexp
	cpu      string
	mem      string
	years    bool
	sleepers int
	year     bool
	months   int
	factor   int
	yearDir  string
}

func main() {
	attack.Main()
	var o options
	flag.StringVar(&o.dir, "dir", "", "where to write; empty: a temporary directory on the default disk")
	flag.DurationVar(&o.span, "for", 5*time.Second, "how long each figure is measured, in turns with those it is "+
		"compared with")
	flag.StringVar(&o.write, "write", "", "write the tables into this Markdown file")
	only := flag.String("only", "", "measure only figures whose name matches this regular expression")
	callers := flag.String("callers", "1,16,64,256", "how many callers at once, one figure each")
	flag.StringVar(&o.cpu, "cpuprofile", "", "write a CPU profile into this file; --only Quartet keeps the limits "+
		"out of it")
	flag.StringVar(&o.mem, "memprofile", "", "write what was allocated into this file")
	flag.IntVar(&o.sleepers, "sleepers", 10_000, "how many sleeping agents --years makes")
	flag.BoolVar(&o.years, "years", false, "measure as well what a million updates, a million completed items and "+
		"sleeping agents leave behind, and what snapshots cost; half an hour")
	flag.BoolVar(&o.year, "year", false, "measure as well what a year of 200 busy agents leaves behind month by "+
		"month; half an hour")
	flag.IntVar(&o.months, "months", 12, "how many months --year lives through")
	flag.IntVar(&o.factor, "factor", 440, "by what --year divides all amounts")
	flag.StringVar(&o.yearDir, "year-dir", "", "write the tables and the plot of --years and --year into this "+
		"directory, as docs/benchmarks")
	flag.Parse()
	if err := o.parse(*only, *callers); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (o *options) parse(only, callers string) error {
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if o.factor < 1 || o.months < 0 {
		return fmt.Errorf("--factor is %d and --months %d; they must be at least 1 and 0", o.factor, o.months)
	}
	for _, n := range strings.Split(callers, ",") {
		c, err := strconv.Atoi(n)
		if err != nil || c < 1 {
			return fmt.Errorf("--callers %q: must be numbers, as in 1,16,64,256", callers)
		}
		o.callers = append(o.callers, c)
	}
	return nil
}

// wants reports whether a figure is to be measured.
func (o *options) wants(name string) bool { return o.only.MatchString(name) }

func run(ctx context.Context, o options) error {
	go app.AdjustGC(ctx, 0) // as the server does
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "quartet-bench-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		o.dir = dir
	}
	var rows []row
	say := func(r row) {
		rows = append(rows, r)
		fmt.Println(r.plain())
	}
	for _, measure := range []func(context.Context, options, func(row)) error{
		measureQuartet, measureInstances,
		measureRivals, measureSteps, measureIdle, measureScale, measureTurns, measureAttacks, measureYears, measureYear,
		measureTokens,
	} {
		if err := measure(ctx, o, say); err != nil {
			return err
		}
	}
	if o.write == "" {
		return nil
	}
	return os.WriteFile(o.write, []byte(document(rows, o)), 0o644)
}

// row is the result of one figure.
type row struct {
	name    string
	callers int
	stats
	note string
	size *size // for a figure that is a size; otherwise nil
}

func (r row) plain() string {
	if r.size != nil {
		return fmt.Sprintf("%-60s %6d tokens   %s", r.name, r.size.tokens(), r.size.note)
	}
	if r.perSecond == 0 {
		return fmt.Sprintf("%-44s %s", r.name, r.note)
	}
	return fmt.Sprintf("%-44s %4d callers %10.0f/s   p50 %-9s p99 %-9s cpu %-7s %s",
		r.name, r.callers, r.perSecond, r.p50.Round(time.Microsecond), r.p99.Round(time.Microsecond),
		r.cpu.Round(time.Microsecond), r.note)
}

func find(rows []row, name string, callers int) (row, bool) {
	for _, r := range rows {
		if r.name == name && r.callers == callers {
			return r, true
		}
	}
	return row{}, false
}

// document returns the text of docs/benchmarks.md.
func document(rows []row, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\nWritten by `make bench ARGS=\"--write docs/benchmarks.md\"`: one run, %d cores, "+
		"%s per figure, every write\nfsynced, gRPC over loopback TCP with client and server sharing the cores. "+
		"Absolute\nfigures belong to that machine; the ratios are the point.\nFigures with the same number of "+
		"callers are measured in %d turns each, one after the other round and round,\nsince the speed of a machine "+
		"drifts; between two turns the system comes to rest. A ratio is the\nmedian of those of the rounds.\n\n",
		runtime.NumCPU(), o.span, turnsEach)
	b.WriteString("| figure | callers | per second | p50 | p99 | CPU each | note " +
		"|\n|---|---:|---:|---:|---:|---:|---|\n")
	for _, r := range rows {
		if r.perSecond == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %d | %.0f | %s | %s | %s | %s |\n", r.name, r.callers, r.perSecond,
			r.p50.Round(time.Microsecond), r.p99.Round(time.Microsecond), r.cpu.Round(time.Microsecond), r.note)
	}
	b.WriteString("\n## Ratios\n\nWhy a wake is compared with the same way with nothing behind it: [ADR " +
		"0025](adr/0025-measuring-wake-latency.md). What stands between a mutation and an echo is in [Where the time " +
		"of a mutation goes](benchmarks/time.md).\n\n| ratio | value | target |\n|---|---:|---:|\n")
	ratio := func(label, of string, ofN int, to string, toN int, target string) {
		a, ok1 := find(rows, of, ofN)
		z, ok2 := find(rows, to, toN)
		if ok1 && ok2 {
			fmt.Fprintf(&b, "| %s | %.2f | %s |\n", label, a.ratio(z.stats), target)
		}
	}
	for _, n := range o.callers {
		ratio(fmt.Sprintf("UpdateWorkItem / bare echo, %d callers", n), nameUpdate, n, nameEcho, n, targetOf(n))
	}
	ratio("CreateWorkItem / bare echo, 256 callers", nameCreate, 256, nameEcho, 256, "≥ 0.60")
	ratio("UpdateWorkItem / River's single inserts, 256 callers", nameUpdate, 256, nameRiver, 256, "≥ 4")
	ratio("UpdateWorkItem / asynq's single tasks, 256 callers", nameUpdate, 256, nameAsynq, 256, "—")
	ratio("board steps / River's jobs, claimed and completed, 32 workers", nameSteps, stepWorkers, nameRiverWork,
		stepWorkers, "> 1")
	ratio("board steps / River's jobs, claimed and completed, 2000 workers", nameSteps, manyWorkers, nameRiverWork,
		manyWorkers, "> 1")
	ratio("board steps / asynq's tasks, claimed and completed, 32 workers", nameSteps, stepWorkers, nameAsynqWork,
		stepWorkers, "> 1")
	ratio("UpdateWorkItem / one JetStream message per mutation, 256 callers", nameUpdate, 256, nameMessages, 256, "—")
	if u, ok := find(rows, nameUpdate, 1); ok {
		e, _ := find(rows, nameEcho, 1)
		f, _ := find(rows, nameFsync, 1)
		fmt.Fprintf(&b, "| UpdateWorkItem p50 / (echo p50 + fsync p50), one caller | %.2f | ≤ 3 |\n",
			float64(u.p50)/float64(e.p50+f.p50))
	}
	for _, name := range []string{nameMessage, nameHint} {
		if l, ok := find(rows, name, 1); ok {
			f, _ := find(rows, nameWay, 1)
			fmt.Fprintf(&b, "| p50 of %s / the same way with nothing behind it | %.2f | — |\n", name,
				float64(l.p50)/float64(f.p50))
		}
	}
	if a, ok := find(rows, nameAttacked, 1); ok {
		q, _ := find(rows, nameQuiet, 1)
		fmt.Fprintf(&b,
			"| p50 of %s / of a quiet server | %.2f | — |\n| p99 of %s / of a quiet server | %.2f | ≤ 3 |\n",
			nameAttacked, float64(a.p50)/float64(q.p50), nameAttacked, float64(a.p99)/float64(q.p99))
	}
	b.WriteString("\n## Size\n\n")
	for _, r := range rows {
		if r.perSecond == 0 && r.size == nil {
			fmt.Fprintf(&b, "- %s: %s\n", r.name, r.note)
		}
	}
	b.WriteString(yearsSection + yearSection)
	b.WriteString(tokenTable(rows))
	return b.String()
}

// anything matches every figure.
var anything = regexp.MustCompile("")

func targetOf(callers int) string {
	if callers == 256 {
		return "≥ 0.60"
	}
	return "—"
}
