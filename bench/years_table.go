package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// yearsSection is the section of docs/benchmarks.md about a long life. writeYears writes its figures.
const yearsSection = `
## A long life

What a server takes that has a million updates, a million completed items, or agents that sleep behind it: on disk, in memory, and at a start. [The figures](benchmarks/years.md), with those of before, are made again by
` + "`make bench ARGS=\"--years --only years: --year-dir docs/benchmarks\"`" + `, in half an hour.
`

// writeYears writes the table of long lives into a directory.
func writeYears(dir string, all []rested, snapshots []row) error {
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "years.md"),
		[]byte(yearsTable(all, snapshots)), 0o644))
}

// yearsTable returns the text of docs/benchmarks/years.md.
func yearsTable(all []rested, snapshots []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A long life\n\nWritten by `make bench ARGS=\"--years --only years: --year-dir "+
		"docs/benchmarks\"` on %d cores. Each history is made on a server of its own with default settings, a tenth "+
		"of it first and then the rest. The server\nrests, is killed and started %d times, and rests again. Calls "+
		"come from %d callers at once.\n\n", runtime.NumCPU(), starts, yearCallers)
	b.WriteString("| history | made at | on disk | of it EVENTS | RSS at rest | RSS when started again | RSS at rest " +
		"then | ready after SIGKILL | target for all |\n|---|---:|---:|---:|---:|---:|---:|---:|---|\n")
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %.0f/s | %d MB | %d MB | %d MB | %d MB | %d MB | %s | %s |\n", r.name, r.rate,
			r.disk/1e6, r.events/1e6, r.rss/1e6, r.loaded/1e6, r.later/1e6, r.ready.Round(10*time.Millisecond),
			r.target)
	}
	b.WriteString("\n")
	for _, r := range all {
		if r.then != "" {
			fmt.Fprintf(&b, "- %s, afterwards: %s\n", r.name, r.then)
		}
	}
	for _, r := range snapshots {
		fmt.Fprintf(&b, "- %s: %s\n", strings.TrimPrefix(r.name, yearsPrefix), r.note)
	}
	b.WriteString(yearsBefore)
	return b.String()
}

// yearsBefore has figures from before there were segments, snapshots, an archive and eviction, for comparison.
const yearsBefore = `
## Before

Measured on machines like this one.

| history | then |
|---|---|
| 500 000 updates of one item, without segments and snapshots | 330 MB on disk, 1.27 GB of memory, ready after 4.2 s |
| a completed item, before items were packed | 916 bytes of live heap each |
| 4 000 agents with 20 completed items each, before agents left memory | 276 MB when started again, ready after 7.6 s beside other work, message to turn held p99 27.4 ms |
`
