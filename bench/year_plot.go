package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// writeYear writes the table and the plot of a year into a directory.
func writeYear(dir string, factor int, all []month) error {
	return errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "year.md"), []byte(yearTable(factor, all)), 0o644),
		os.WriteFile(filepath.Join(dir, "year.svg"), []byte(yearPlot(factor, all)), 0o644))
}

// yearSection is what docs/benchmarks.md has about a year, of which writeYear writes the figures.
const yearSection = `
## A year

![Disk, memory and start over the months of a year](benchmarks/year.svg)

What an installation of 200 busy agents, which write 0.75 GB a day, takes at the end of each month, with what is written, segments, snapshots and EVENTS divided by one factor. Settings have
whole MiB: what would be less is 1 MiB. Agents are 200 at a factor of 44 and proportionally fewer at others, so that what is kept of each by number, as its newest 64 turns and 256 messages, is full in the
second month. Time is not divided: on the server's clock, which tests can move on, a day passes at once when its work is done, and history-days is 30.
[The figures](benchmarks/year.md) and the plot are made again by ` + "`make bench ARGS=\"--year --only year: --year-dir docs/benchmarks\"`" + `, in half an hour; ` + "`--factor`" + ` is 440 by default.
`

// yearTable returns the text of docs/benchmarks/year.md.
func yearTable(factor int, all []month) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A year of %d busy agents\n\nWritten by `make bench ARGS=\"--year --only year: --factor %d --year-dir docs/benchmarks\"` on %d cores: what the installation takes at the end of each month. Amounts are divided\nby the factor, time is not: see [Benchmarks](../benchmarks.md#a-year). Sizes without a unit are in MB. Month 0 is before the first turn.\n\n![Disk, memory and start over the months](year.svg)\n\n", yearAgents, factor, runtime.NumCPU())
	b.WriteString("| month | turns | written | on disk | journals | snapshots | archive | EVENTS | output | homes | other | unused agents' file | RSS at rest | live heap | ready after SIGKILL | lived in |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, m := range all {
		fmt.Fprintf(&b, "| %d | %d | %d MB | %.1f MB |", m.n, m.turns, m.written/1e6, mb(m.total))
		for _, n := range []int64{m.journals, m.snapshots, m.archive, m.events, m.out, m.homes, m.other, m.cache} {
			fmt.Fprintf(&b, " %.1f |", mb(n))
		}
		fmt.Fprintf(&b, " %d MB | %.1f MB | %s | %s |\n", m.rss/1e6, mb(m.heap), m.ready.Round(10*time.Millisecond), m.took.Round(time.Second))
	}
	return b.String()
}

// line is a line of a panel: a value for each month.
type line struct {
	name, class string
	values      []float64
}

// panel is one diagram of a plot, over the months.
type panel struct {
	title, unit string
	lines       []line
}

// The measures of a plot, in its own units.
const (
	plotWidth   = 760
	panelHeight = 200
	panelGap    = 56
	plotLeft    = 64
	plotRight   = 150 // room for the names of the lines
	plotTop     = 40
)

// plotStyle has colours that can be told apart, and read on light and on dark backgrounds.
const plotStyle = `<style>
text{font:12px system-ui,sans-serif;fill:#57606a}
.title{font-weight:600;font-size:13px}
.grid{stroke:#8b949e;stroke-opacity:.3}
polyline{fill:none;stroke-width:2}
.a{stroke:#0969da}.b{stroke:#bc4c00}.c{stroke:#1a7f37}.d{stroke:#8250df}.e{stroke:#9a6700}.f{stroke:#cf222e}
text.a{fill:#0969da;stroke:none}text.b{fill:#bc4c00;stroke:none}text.c{fill:#1a7f37;stroke:none}text.d{fill:#8250df;stroke:none}text.e{fill:#9a6700;stroke:none}text.f{fill:#cf222e;stroke:none}
@media (prefers-color-scheme:dark){text{fill:#9198a1}
.a{stroke:#58a6ff}.b{stroke:#f0883e}.c{stroke:#3fb950}.d{stroke:#bc8cff}.e{stroke:#d29922}.f{stroke:#ff7b72}
text.a{fill:#58a6ff}text.b{fill:#f0883e}text.c{fill:#3fb950}text.d{fill:#bc8cff}text.e{fill:#d29922}text.f{fill:#ff7b72}}
</style>
`

// yearPlot returns docs/benchmarks/year.svg: disk, memory and start, one below the other.
func yearPlot(factor int, all []month) string {
	of := func(name, class string, value func(m month) float64) line {
		l := line{name: name, class: class}
		for _, m := range all {
			l.values = append(l.values, value(m))
		}
		return l
	}
	panels := []panel{
		{title: "Disk at the end of each month", unit: "MB", lines: []line{
			of("in all", "a", func(m month) float64 { return mb(m.total) }),
			of("archive", "b", func(m month) float64 { return mb(m.archive) }),
			of("journals", "c", func(m month) float64 { return mb(m.journals) }),
			of("snapshots", "d", func(m month) float64 { return mb(m.snapshots) }),
			of("homes", "f", func(m month) float64 { return mb(m.homes) }),
			of("EVENTS", "e", func(m month) float64 { return mb(m.events) }),
		}},
		{title: "Memory at rest", unit: "MB", lines: []line{
			of("RSS", "a", func(m month) float64 { return mb(m.rss) }),
			of("live heap", "b", func(m month) float64 { return mb(m.heap) }),
		}},
		{title: "Start after SIGKILL until ready, median of three", unit: "s", lines: []line{
			of("ready", "a", func(m month) float64 { return m.ready.Seconds() }),
		}},
	}
	height := plotTop + len(panels)*(panelHeight+panelGap)
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n<title>A year of %d busy agents, amounts divided by %d: disk, memory and start over the months</title>\n", plotWidth, height, plotWidth, height, yearAgents, factor)
	b.WriteString(plotStyle)
	for i, p := range panels {
		p.draw(&b, float64(plotTop+i*(panelHeight+panelGap)), len(all))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw writes a panel whose upper edge is at top.
func (p panel) draw(b *strings.Builder, top float64, months int) {
	most := 0.0
	for _, l := range p.lines {
		for _, v := range l.values {
			most = max(most, v)
		}
	}
	step := stepOf(most)
	upper := max(math.Ceil(most/step), 1) * step
	x := func(month int) float64 {
		return plotLeft + float64(month)*(plotWidth-plotLeft-plotRight)/float64(max(months-1, 1))
	}
	y := func(v float64) float64 { return top + panelHeight*(1-v/upper) }
	fmt.Fprintf(b, "<text class=\"title\" x=\"%d\" y=\"%.0f\">%s</text>\n", plotLeft, top-12, p.title)
	for n := 0.0; n <= upper/step+0.5; n++ {
		v := n * step
		fmt.Fprintf(b, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g %s</text>\n",
			plotLeft, plotWidth-plotRight, y(v), y(v), plotLeft-8, y(v)+4, math.Round(v*1000)/1000, p.unit)
	}
	for m := range months {
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>\n", x(m), top+panelHeight+16, m)
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\">month</text>\n", plotWidth-plotRight+14, top+panelHeight+16)
	// Names stand beside the ends of their lines, from above to below, and never on one another.
	at := labels(p.lines, y)
	for i, l := range p.lines {
		var points []string
		for m, v := range l.values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(m), y(v)))
		}
		fmt.Fprintf(b, "<polyline class=\"%s\" points=\"%s\"/>\n", l.class, strings.Join(points, " "))
		fmt.Fprintf(b, "<text class=\"%s\" x=\"%d\" y=\"%.1f\">%s</text>\n", l.class, plotWidth-plotRight+14, at[i]+4, l.name)
	}
}

// stepOf returns the distance of the lines of a grid: 1, 2 or 5 times a power of ten, so that there are three to six of them.
func stepOf(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/3)))
	for _, n := range []float64{5, 2} {
		if most/(n*power) >= 3 {
			return n * power
		}
	}
	return power
}

// labels returns where the names of lines stand: beside their ends, and 14 units below one another at least, without leaving the panel below.
func labels(lines []line, y func(v float64) float64) []float64 {
	order := make([]int, len(lines))
	at := make([]float64, len(lines))
	for i, l := range lines {
		order[i], at[i] = i, y(l.values[len(l.values)-1])
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[b], at[a]) })
	lowest := y(0)
	for _, i := range order { // from below, since most lines end there
		at[i] = min(at[i], lowest)
		lowest = at[i] - 14
	}
	return at
}
