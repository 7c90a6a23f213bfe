// Package plot draws the figures of months as an SVG image.
package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Line is a line of a panel, with a value for each month. Class is the name of its colour, a to f.
type Line struct {
	Name, Class string
	Values      []float64
}

// Panel is one diagram of a plot, with the months on its horizontal axis.
type Panel struct {
	Title, Unit string
	Lines       []Line
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

// plotStyle is the style of a plot: its colours can be distinguished on light and on dark backgrounds.
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

// SVG returns an image with the panels one below the other. All lines of a panel must have the same number of values,
// at least one.
func SVG(title string, panels ...Panel) string {
	height := plotTop + len(panels)*(panelHeight+panelGap)
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "+
		"role=\"img\">\n<title>%s</title>\n", plotWidth, height, plotWidth, height, title)
	b.WriteString(plotStyle)
	for i, p := range panels {
		p.draw(&b, float64(plotTop+i*(panelHeight+panelGap)))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw writes a panel whose upper edge is at top.
func (p Panel) draw(b *strings.Builder, top float64) {
	months := len(p.Lines[0].Values)
	most := 0.0
	for _, l := range p.Lines {
		for _, v := range l.Values {
			most = max(most, v)
		}
	}
	step := stepOf(most)
	upper := max(math.Ceil(most/step), 1) * step
	x := func(month int) float64 {
		return plotLeft + float64(month)*(plotWidth-plotLeft-plotRight)/float64(max(months-1, 1))
	}
	y := func(v float64) float64 { return top + panelHeight*(1-v/upper) }
	fmt.Fprintf(b, "<text class=\"title\" x=\"%d\" y=\"%.0f\">%s</text>\n", plotLeft, top-12, p.Title)
	for n := 0.0; n <= upper/step+0.5; n++ {
		v := n * step
		fmt.Fprintf(b, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "+
			"text-anchor=\"end\">%g %s</text>\n",
			plotLeft, plotWidth-plotRight, y(v), y(v), plotLeft-8, y(v)+4, math.Round(v*1000)/1000, p.Unit)
	}
	for m := range months {
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>\n", x(m), top+panelHeight+16, m)
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\">month</text>\n", plotWidth-plotRight+14, top+panelHeight+16)
	// The names are placed beside the ends of their lines, and do not overlap.
	at := labels(p.Lines, y)
	for i, l := range p.Lines {
		var points []string
		for m, v := range l.Values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(m), y(v)))
		}
		fmt.Fprintf(b, "<polyline class=\"%s\" points=\"%s\"/>\n", l.Class, strings.Join(points, " "))
		fmt.Fprintf(b, "<text class=\"%s\" x=\"%d\" y=\"%.1f\">%s</text>\n", l.Class, plotWidth-plotRight+14, at[i]+4,
			l.Name)
	}
}

// stepOf returns the distance of the grid lines for values up to most: 1, 2 or 5 times a power of ten, so that
// there are about three to six lines.
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

// labels returns the vertical positions of the names of lines: beside the ends of the lines, but with a distance of
// at least 14 units between two names, and not below the panel.
func labels(lines []Line, y func(v float64) float64) []float64 {
	order := make([]int, len(lines))
	at := make([]float64, len(lines))
	for i, l := range lines {
		order[i], at[i] = i, y(l.Values[len(l.Values)-1])
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[b], at[a]) })
	lowest := y(0)
	for _, i := range order { // from below, since most lines end there
		at[i] = min(at[i], lowest)
		lowest = at[i] - 14
	}
	return at
}
