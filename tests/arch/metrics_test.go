package arch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"quartet/pkg/must"
)

// root is the repository.
var root = filepath.Join("..", "..")

// metric is a metric as the code makes it.
type metric struct {
	name, kind, help string
	labels           []string
}

// metrics returns all calls of pkg/meter.
func metrics(t *testing.T) []metric {
	found := map[string]metric{}
	for _, dir := range []string{"pkg", "services"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir),
			func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
					strings.HasSuffix(path, ".pb.go") {
					return err
				}
				file := must.Value(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)
				ast.Inspect(file, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					sel, ok := call.Fun.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					of, ok := sel.X.(*ast.Ident)
					after := map[string]int{"Counter": 3, "Gauge": 3, "Histogram": 4}[sel.Sel.Name]
					if !ok || of.Name != "meter" || after == 0 {
						return true
					}
					m := metric{
						name: literal(t, path, call.Args[1]), kind: strings.ToLower(sel.Sel.Name),
						help: literal(t, path, call.Args[2]),
					}
					for _, label := range call.Args[after:] {
						m.labels = append(m.labels, literal(t, path, label))
					}
					require.NotContains(t, found, m.name, "%s makes a metric that is made elsewhere as well", path)
					found[m.name] = m
					return true
				})
				return nil
			}))
	}
	return slices.SortedFunc(maps.Values(found), func(a, b metric) int { return strings.Compare(a.name, b.name) })
}

func literal(t *testing.T, path string, e ast.Expr) string {
	if sum, ok := e.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		return literal(t, path, sum.X) + literal(t, path, sum.Y)
	}
	lit, ok := e.(*ast.BasicLit)
	require.True(t, ok, "%s: names, help and labels of metrics are written out, so that they can be documented", path)
	return must.Value(strconv.Unquote(lit.Value))(t)
}

// units by the end of a name.
var units = [][2]string{{"_seconds", "seconds"}, {"_bytes", "bytes"}, {"_info", "—"}}

const metricsBegin, metricsEnd = "<!-- metrics: written by REWRITE=1 go test ./tests/arch -->\n",
	"<!-- end of metrics -->"

func TestMetricsAreDocumented(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n")
	for _, m := range metrics(t) {
		unit := "1"
		for _, u := range units {
			if strings.HasSuffix(m.name, u[0]) {
				unit = u[1]
			}
		}
		labels := ""
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, labels, unit, m.help)
	}
	b.WriteString("\n")
	path := filepath.Join(root, "docs", "metrics.md")
	raw := must.Value(os.ReadFile(path))(t)
	before, rest, ok := strings.Cut(string(raw), metricsBegin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, metricsEnd)
	require.True(t, ok)
	want := before + metricsBegin + b.String() + metricsEnd + after
	if os.Getenv("REWRITE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(raw), "REWRITE=1 go test ./tests/arch writes it anew")
}

// What dashboards and rules ask for is there, under the labels that it has.
func TestDashboardsAskForWhatIsThere(t *testing.T) {
	known := map[string][]string{}
	for _, m := range metrics(t) {
		known[m.name] = m.labels
		if m.kind == "histogram" {
			known[m.name+"_bucket"] = append(slices.Clone(m.labels), "le")
			known[m.name+"_sum"], known[m.name+"_count"] = m.labels, m.labels
		}
	}
	// Those of the Go runtime and of the process, and Prometheus' own.
	for _, name := range []string{
		"go_goroutines", "go_gc_duration_seconds_sum", "go_memstats_heap_inuse_bytes", "process_cpu_seconds_total",
		"process_resident_memory_bytes",
		"process_open_fds", "process_max_fds", "process_start_time_seconds", "up",
	} {
		known[name] = nil
	}
	boards := must.Value(filepath.Glob(filepath.Join(root, "deploy", "grafana", "dashboards", "*.json")))(t)
	require.Len(t, boards, 2)
	for _, path := range boards {
		raw := must.Value(os.ReadFile(path))(t)
		var board struct {
			Title         string `json:"title"`
			UID           string `json:"uid"`
			SchemaVersion int    `json:"schemaVersion"`
			Panels        []struct {
				ID      int            `json:"id"`
				Title   string         `json:"title"`
				Type    string         `json:"type"`
				GridPos map[string]int `json:"gridPos"`
				Targets []struct {
					Expr string `json:"expr"`
				} `json:"targets"`
			} `json:"panels"`
			Templating struct {
				List []struct {
					Query json.RawMessage `json:"query"`
				} `json:"list"`
			} `json:"templating"`
		}
		require.NoError(t, json.Unmarshal(raw, &board), path)
		require.NotEmpty(t, board.Title)
		require.NotEmpty(t, board.UID)
		require.GreaterOrEqual(t, board.SchemaVersion, 39, "Grafana 11 and later")
		ids := map[int]bool{}
		asked := 0
		for _, p := range board.Panels {
			require.False(t, ids[p.ID], "%s: two panels have the id %d", path, p.ID)
			ids[p.ID] = true
			require.LessOrEqual(t, p.GridPos["x"]+p.GridPos["w"], 24, p.Title)
			if p.Type != "row" {
				require.NotEmpty(t, p.Targets, "%s: %s", path, p.Title)
			}
			for _, target := range p.Targets {
				asked++
				asksForWhatIsThere(t, known, p.Title, target.Expr)
			}
		}
		require.Greater(t, asked, 10, path)
	}
}

// The rules for alerts ask for metrics that are there, and say what to do.
func TestAlertsAskForWhatIsThere(t *testing.T) {
	known := map[string][]string{}
	for _, m := range metrics(t) {
		known[m.name] = append(slices.Clone(m.labels), "job")
	}
	raw := must.Value(os.ReadFile(filepath.Join(root, "deploy", "prometheus", "alerts.yml")))(t)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	require.Len(t, file.Groups, 1)
	seen := map[string]bool{}
	for _, r := range file.Groups[0].Rules {
		require.False(t, seen[r.Alert], r.Alert)
		seen[r.Alert] = true
		require.True(t, strings.HasPrefix(r.Alert, "Quartet"), r.Alert)
		require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		asksForWhatIsThere(t, known, r.Alert, r.Expr)
		for _, label := range labelled.FindAllStringSubmatch(r.Annotations["summary"], -1) {
			require.Contains(t, groups.FindStringSubmatch(r.Expr)[1], label[1], "%s: its expression has no such label",
				r.Alert)
		}
	}
	require.GreaterOrEqual(t, len(seen), 8)
	for name := range known {
		require.True(t, !strings.HasSuffix(name, "_failed") || bytes.Contains(raw, []byte("("+name+")")),
			"no rule asks for %s, which says that something does not work", name)
	}
}

// labelled finds the labels that a text of an alert shows.
var labelled = regexp.MustCompile(`\$labels\.(\w+)`)

var (
	series = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?`)
	within = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)`)
	groups = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	quoted = regexp.MustCompile(`"[^"]*"`)
	spans  = regexp.MustCompile(`\[[^\]]*\]`)
)

// words of PromQL that are no series.
var words = map[string]bool{
	"sum": true, "rate": true, "increase": true, "max": true, "min": true, "avg": true, "count": true,
	"histogram_quantile": true, "clamp_min": true, "topk": true,
	"or": true, "and": true, "unless": true, "time": true, "bool": true, "vector": true, "label_replace": true,
	"on": true, "by": true, "without": true, "ignoring": true,
}

func asksForWhatIsThere(t *testing.T, known map[string][]string, title, expr string) {
	// Prometheus adds the first two, and the scrape configuration the others.
	free := map[string]bool{"job": true, "instance": true, "service": true}
	labels := map[string]bool{}
	plain := spans.ReplaceAllString(groups.ReplaceAllString(expr, ""), "")
	some := false
	for _, m := range series.FindAllStringSubmatch(quoted.ReplaceAllString(plain, `""`), -1) {
		if words[m[1]] || m[1] == "e" {
			continue
		}
		_, ok := known[m[1]]
		require.True(t, ok, "%s asks for %s, which nothing serves: %s", title, m[1], expr)
		some = true
		for _, l := range known[m[1]] {
			labels[l] = true
		}
		for _, l := range within.FindAllStringSubmatch(m[2], -1) {
			require.True(t, free[l[1]] || slices.Contains(known[m[1]], l[1]), "%s: %s has no label %s", title, m[1],
				l[1])
		}
	}
	require.True(t, some, "%s asks for nothing: %s", title, expr)
	for _, g := range groups.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.Split(g[1], ",") {
			l = strings.TrimSpace(l)
			require.True(t, l == "" || free[l] || labels[l], "%s groups by %s, which none of its metrics has: %s",
				title, l, expr)
		}
	}
}
