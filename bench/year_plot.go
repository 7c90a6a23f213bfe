package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"quartet/bench/plot"
)

// writeYear writes the table and the plot of a year into a directory.
func writeYear(dir string, factor int, all []month) error {
	return errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "year.md"), []byte(yearTable(factor, all)), 0o644),
		os.WriteFile(filepath.Join(dir, "year.svg"), []byte(yearPlot(factor, all)), 0o644))
}

// yearSection is the section of docs/benchmarks.md about a year. Its figures are in the files that writeYear writes.
const yearSection = `
## A year

![Disk, memory and start over the months of a year](benchmarks/year.svg)

What an installation of 200 busy agents, which write 0.75 GB a day, takes at the end of each month, with what is written, segments, snapshots and EVENTS divided by one factor. Settings have
whole MiB: what would be less is 1 MiB. Agents are 200 at a factor of 44 and proportionally fewer at others, so that what is kept of each by number, as its newest 64 turns and 256 messages, is full in the
second month. Time is not divided: on the server's clock, which tests can move on, a day passes at once when its work is done, and history-days is 30.
[The figures](benchmarks/year.md) and the plot are made again by ` + "`make bench ARGS=\"--year --only year: " +
	"--year-dir docs/benchmarks\"`" + `, in half an hour; ` + "`--factor`" + ` is 440 by default.
`

// yearTable returns the text of docs/benchmarks/year.md.
func yearTable(factor int, all []month) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A year of %d busy agents\n\nWritten by `make bench ARGS=\"--year --only year: --factor %d "+
		"--year-dir docs/benchmarks\"` on %d cores: what the installation takes at the end of each month. Amounts "+
		"are divided\nby the factor, time is not: see [Benchmarks](../benchmarks.md#a-year). Sizes without a unit "+
		"are in MB. Month 0 is before the first turn.\n\n![Disk, memory and start over the months](year.svg)\n\n",
		yearAgents, factor, runtime.NumCPU())
	b.WriteString("| month | turns | written | on disk | journals | snapshots | archive | EVENTS | output | homes | " +
		"other | unused agents' file | RSS at rest | live heap | ready after SIGKILL | lived in " +
		"|\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, m := range all {
		fmt.Fprintf(&b, "| %d | %d | %d MB | %.1f MB |", m.n, m.turns, m.written/1e6, mb(m.total))
		for _, n := range []int64{m.journals, m.snapshots, m.archive, m.events, m.out, m.homes, m.other, m.cache} {
			fmt.Fprintf(&b, " %.1f |", mb(n))
		}
		fmt.Fprintf(&b, " %d MB | %.1f MB | %s | %s |\n", m.rss/1e6, mb(m.heap), m.ready.Round(10*time.Millisecond),
			m.took.Round(time.Second))
	}
	return b.String()
}

// yearPlot returns docs/benchmarks/year.svg: disk, memory and start, one below the other.
func yearPlot(factor int, all []month) string {
	of := func(name, class string, value func(m month) float64) plot.Line {
		l := plot.Line{Name: name, Class: class}
		for _, m := range all {
			l.Values = append(l.Values, value(m))
		}
		return l
	}
	panels := []plot.Panel{
		{Title: "Disk at the end of each month", Unit: "MB", Lines: []plot.Line{
			of("in all", "a", func(m month) float64 { return mb(m.total) }),
			of("archive", "b", func(m month) float64 { return mb(m.archive) }),
			of("journals", "c", func(m month) float64 { return mb(m.journals) }),
			of("snapshots", "d", func(m month) float64 { return mb(m.snapshots) }),
			of("homes", "f", func(m month) float64 { return mb(m.homes) }),
			of("EVENTS", "e", func(m month) float64 { return mb(m.events) }),
		}},
		{Title: "Memory at rest", Unit: "MB", Lines: []plot.Line{
			of("RSS", "a", func(m month) float64 { return mb(m.rss) }),
			of("live heap", "b", func(m month) float64 { return mb(m.heap) }),
		}},
		{Title: "Start after SIGKILL until ready, median of three", Unit: "s", Lines: []plot.Line{
			of("ready", "a", func(m month) float64 { return m.ready.Seconds() }),
		}},
	}
	return plot.SVG(
		fmt.Sprintf("A year of %d busy agents, amounts divided by %d: disk, memory and start over the months",
			yearAgents, factor), panels...)
}
