package console

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/attack"
)

var (
	loadTime = flag.Duration("load", 0, "measure the console for so long, on a quiet machine, and assert how long "+
		"interactions take and what a viewer costs; 0: for seconds, without")
	loadAgents = flag.Int("load-agents", 0, "agents of TestG15_TheConsoleUnderLoad; 0: 100000 with -load, else 2000")
	loadEvents = flag.Int("load-events", 500, "events a second of TestG15_TheConsoleUnderLoad")
	loadRounds = flag.Int("load-rounds", 0, "how often TestG15_TheConsoleUnderLoad measures each view; 0: 3 with "+
		"-load, else once")
	loadProfile = flag.String("pprof", "", "loopback address on which the server of TestG15_TheConsoleUnderLoad "+
		"serves profiles")
)

// The targets.
const (
	maxInteraction = 100.0 // milliseconds to the next paint
	maxHeap        = 200.0 // MiB after a collection
	maxViewer      = 2.0   // percent of a core
)

// looks are the views, with what says that they show something, and how many requests a second they may make however
// much happens.
var looks = []struct {
	name, path, until string
	requests          float64
}{
	{"Fleet", "fleet", `document.querySelectorAll(".row").length > 0`, 6},
	{"Inbox", "inbox", `document.querySelectorAll(".question").length > 0`, 6},
	{"Agent", "agents/" + busy, `document.querySelector("h1")?.innerText.startsWith("` + busy +
		`") && document.querySelector('[role="tab"]')`, 12},
	{"Transcript", "agents/" + busy + "?tab=transcript", `document.querySelectorAll(".turn").length > 0`, 12},
	{"Events", "events", `document.querySelectorAll(".row.event").length > 0`, 6},
	{"Past", "events?past=1", `document.querySelectorAll(".row.event").length > 0`, 6},
}

// counted returns the sum of a metric's samples, of those whose labels have a text.
func (r *rig) counted(metric, labels string) float64 {
	r.Helper()
	req := must.Value(http.NewRequestWithContext(r.soon(), http.MethodGet, r.base+"/metrics", nil))(r)
	req.Header.Set("Authorization", "Bearer "+r.token)
	resp := must.Value(http.DefaultClient.Do(req))(r)
	defer func() { _ = resp.Body.Close() }()
	text := must.Value(io.ReadAll(resp.Body))(r)
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+metric+`(\{[^}]*\})? (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(m[1], labels) {
			sum += must.Value(strconv.ParseFloat(m[2], 64))(r)
		}
	}
	return sum
}

// sample is what happened in a time.
type sample struct {
	events, requests float64
	cpu              float64 // percent of a core that the server used
}

// during samples the server for a time.
func (r *rig) during(d time.Duration) sample {
	r.Helper()
	_, cpu, err := attack.Cost(r.srv.PID())
	require.NoError(r, err)
	events, requests, began := r.counted("quartet_journal_events_total", ""), r.counted("quartet_http_requests_total",
		""), time.Now()
	<-time.After(d)
	_, after, err := attack.Cost(r.srv.PID())
	require.NoError(r, err)
	passed := time.Since(began).Seconds()
	return sample{
		events:   (r.counted("quartet_journal_events_total", "") - events) / passed,
		requests: (r.counted("quartet_http_requests_total", "") - requests - 1) / passed,
		cpu:      100 * (after - cpu).Seconds() / passed,
	}
}

// use does what a person does in the console, a round of it.
func (t *tab) use(of map[string]*took) {
	t.Helper()
	button := func(name string) string { return named(`button, a, [role="tab"]`, name) }
	t.interact(of, "show the Fleet", t.click(button("Fleet")), looks[0].until)
	t.interact(of, "filter by posture", t.click(button("waiting operator")),
		`[...document.querySelectorAll(".row .badge")].length > 0 && document.querySelectorAll(".row").length > 5 && [...document.querySelectorAll(".row")].every((x) => x.innerText.includes("waiting operator"))`)
	t.interact(of, "show all", t.click(button("all")), `document.querySelector(".row .id")?.innerText.includes("`+busy+
		`")`)
	t.do(`document.querySelector('[aria-label="Search agents"]').focus()`)
	for i, key := range "001234" {
		typed := "001234"[:i+1]
		t.interact(of, "type in the search", types(string(key)),
			`document.querySelector('[aria-label="Search agents"]').value === "`+typed+`"`)
	}
	t.interact(of, "find", types(""), `document.querySelectorAll(".row").length === 1`)
	t.interact(of, "open an agent", t.click(`document.querySelector("a.row, .row a")`),
		`document.querySelector("h1")?.innerText.startsWith("agent-001234")`)
	t.view("agents/" + busy)
	t.until("the busy agent", looks[2].until)
	for _, tab := range []string{"Transcript", "Why", "Waiting", "Work"} {
		t.interact(of, "show a tab", t.click(button(tab)),
			`document.querySelector('[aria-selected="true"]')?.id === "tab-`+strings.ToLower(tab)+`"`)
	}
	t.do(`document.querySelector(".say textarea").focus()`)
	for range 5 {
		t.interact(of, "type a message", types("a"), `true`)
	}
	t.interact(of, "show the Inbox", t.click(button("Inbox")), looks[1].until)
	t.do(`document.querySelector(".say textarea").focus()`)
	for range 5 {
		t.interact(of, "type an answer", types("b"), `true`)
	}
	t.interact(of, "show the Events", t.click(button("Events")), looks[4].until)
	t.do(`document.querySelector(".virtual").focus()`)
	for range 3 {
		t.interact(of, "scroll", types(kb.PageDown), `true`)
	}
	t.interact(of, "hold", t.click(button("Hold")), `!!(`+button("Go on")+`)`)
	t.interact(of, "open an event", t.click(`document.querySelectorAll(".row.event button")[3]`),
		`document.querySelector("dialog[open]")`)
	t.interact(of, "close it", t.click(button("Close")), `!document.querySelector("dialog[open]")`)
	t.interact(of, "go on", t.click(button("Go on")), `!!(`+button("Hold")+`)`)
	t.view("events?past=1")
	t.until("the past", looks[5].until)
	t.do(`document.querySelector('[aria-label="Agent"]').focus()`)
	for range 5 {
		t.interact(of, "type while the past is read", types("c"), `true`)
	}
}

// What a page may have at once, however many agents and events there are.
const (
	maxNodes   = 10_000
	maxRows    = 60
	maxRecords = 4_100 // twice what a view keeps: a batch may be on its way
)

// cost is what a view cost the server, and what it held.
type cost struct {
	sample
	viewer       []float64 // percent of a core more than without a viewer, by round
	nodes, rows  int
	records      int
	heap, script float64 // MiB; percent of the time that the page was busy
}

// measure measures a view for some rounds, each with the console closed and then open.
func (t *tab) measure(path, until string, rounds int, look time.Duration) cost {
	t.Helper()
	var c cost
	for range rounds {
		require.NoError(t, chromedp.Do(t.ctx, chromedp.Navigate("about:blank")))
		without := t.during(look)
		require.NoError(t, chromedp.Do(t.ctx, chromedp.Navigate(t.base+"/ui/#/"+path)))
		t.until(path, until)
		before := t.figures()
		c.sample = t.during(look)
		after := t.figures()
		// As many events as there were cost so much without it.
		c.viewer = append(c.viewer, c.cpu-without.cpu*c.events/without.events)
		c.script = 100 * (after["TaskDuration"] - before["TaskDuration"]) / (after["Timestamp"] - before["Timestamp"])
		c.nodes, c.heap = max(c.nodes, int(after["Nodes"])), max(c.heap, after["JSHeapUsedSize"]/(1<<20))
	}
	c.rows, c.records = value[int](t, `document.querySelectorAll(".row").length`),
		t.alive(`"eventId" in o && "payload" in o`)
	slices.Sort(c.viewer)
	return c
}

// lookedAt waits until the server has looked at all agents.
func (c *population) lookedAt() {
	c.Helper()
	deadline := time.NewTimer(10 * time.Minute)
	defer deadline.Stop()
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for c.call(http.MethodGet, "/v1/agents:count", nil)["incomplete"] == true {
		select {
		case <-deadline.C:
			require.FailNow(c, "the server has not looked at all agents")
		case <-every.C:
		}
	}
}

// The console with many agents to which much happens: what it keeps, draws and asks for is bounded, however many agents
// and events there are. The long form measures how long interactions take and what a viewer costs.
func TestG15_TheConsoleUnderLoad(t *testing.T) {
	long := *loadTime > 0
	agents, rounds, look := 2000, 1, 2*time.Second
	if long {
		agents, rounds, look = 100_000, 3, 15*time.Second
	}
	if *loadAgents > 0 {
		agents = *loadAgents
	}
	if *loadRounds > 0 {
		rounds = *loadRounds
	}
	var settings []string
	if *loadProfile != "" {
		settings = []string{"--pprof-addr", *loadProfile}
	}
	r := newRig(t, settings...)
	began := time.Now()
	c := r.newPopulation(agents)
	t.Logf("%d agents after %s", agents, time.Since(began).Round(time.Second))
	stop := c.traffic(*loadEvents)
	defer stop()
	p := r.signedIn()
	c.lookedAt()
	if long {
		<-time.After(30 * time.Second) // the server comes to rest from its start
	}
	var missed []string
	for _, v := range looks {
		m := p.measure(v.path, v.until, rounds, look)
		t.Logf("%-10s a viewer costs %.1f %% of a core (%.1f of all, %.0f events/s), %.1f requests/s; the page is "+
			"busy for %.0f %%, has %d nodes, %d rows, %d events, a heap of %.1f MiB",
			v.name, m.viewer[len(m.viewer)/2], m.cpu, m.events, m.requests, m.script, m.nodes, m.rows, m.records,
			m.heap)
		require.Less(t, m.nodes, maxNodes, v.name)
		require.Less(t, m.rows, maxRows, v.name)
		require.Less(t, m.records, maxRecords, v.name)
		require.LessOrEqual(t, m.requests, v.requests, v.name)
		require.Less(t, m.heap, maxHeap, v.name)
		if cost := m.viewer[len(m.viewer)/2]; cost > maxViewer {
			missed = append(missed, fmt.Sprintf("%s: a viewer costs %.1f %% of a core", v.name, cost))
		}
	}
	if !long {
		p.sound()
		return
	}
	of := map[string]*took{}
	p.view("fleet")
	for began := time.Now(); ; {
		p.use(of)
		if time.Since(began) > *loadTime {
			break
		}
	}
	f := p.figures()
	t.Logf("in the end a heap of %.1f MiB and %.0f nodes", f["JSHeapUsedSize"]/(1<<20), f["Nodes"])
	require.Less(t, f["JSHeapUsedSize"]/(1<<20), maxHeap)
	require.Less(t, f["Nodes"], float64(maxNodes))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		t.Logf("%-20s %4d times: %4.0f ms to the next paint at most (median %.0f), shown after %5.0f ms at most", name,
			len(of[name].paint), slices.Max(of[name].paint), of[name].median(), of[name].shown)
		if longest := slices.Max(of[name].paint); longest > maxInteraction {
			missed = append(missed, fmt.Sprintf("%s: %.0f ms", name, longest))
		}
	}
	t.Logf("tasks of the page longer than 50 ms: %s",
		value[string](p, `observed.long.length + ", the longest " + Math.round(Math.max(0, ...observed.long)) + " ms"`))
	t.Logf("%d calls were not made in time", c.behind.Load())
	p.sound()
	require.Empty(t, missed, "targets that depend on speed")
}
