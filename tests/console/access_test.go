package console

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// finding is what axe found.
type finding struct {
	ID     string `json:"id"`
	Impact string `json:"impact"`
	Help   string `json:"help"`
	Nodes  []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

// findings runs axe on the page, and returns what is serious or critical.
func (t *tab) findings(axe string) []finding {
	t.Helper()
	if !value[bool](t, "!!window.axe") {
		t.do(axe)
	}
	raw := value[string](t,
		`axe.run(document, { resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }).then((r) => JSON.stringify(r.violations))`)
	var all, bad []finding
	require.NoError(t, json.Unmarshal([]byte(raw), &all))
	for _, f := range all {
		if f.Impact == "serious" || f.Impact == "critical" {
			bad = append(bad, f)
		}
	}
	return bad
}

// wide reports how far the page is wider than the window, in pixels.
const wide = `Math.max(document.documentElement.scrollWidth, document.querySelector("main").scrollWidth) - innerWidth`

func TestG15_EverybodyCanUseIt(t *testing.T) {
	r := newRig(t)
	path := filepath.Join("..", "..", "services", "console", "ui", "node_modules", "axe-core", "axe.min.js")
	axe := must.Value(os.ReadFile(path))(t, "make browser installs it")
	for _, id := range []string{"keeper", "sleeper"} {
		r.spawn(id)
	}
	r.call(http.MethodPost, "/v1/agents/sleeper:pause", map[string]any{"reason": "night"})
	r.say("keeper", "hello")
	r.say("keeper", "and a second one")
	held := r.acquire("keeper")
	held.submit("I look.", map[string]any{"callId": "c", "name": "ListWorkItems", "arguments": map[string]any{}})
	item := r.item("keeper", "Publish the release")
	r.call(http.MethodPost, "/v1/agents/keeper/waits:waitFor",
		map[string]any{"workItemId": item, "reason": "Which version is it?", "wake": "operator_input"})
	r.board("keeper", "build")

	p := r.signedIn()
	// The tool evaluates scripts, which the page's own policy forbids.
	_, err := chromedp.Call(p.ctx, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true})
	require.NoError(t, err)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Reload()))
	views := map[string]string{
		"fleet": "sleeper", "inbox": "Which version", "events?past=1": "agent spawned", "admin": "Everything is served",
		"admin?tab=keys": "There are no keys",
		"agents/keeper":  "Publish the release", "agents/keeper?tab=transcript": "I look.",
		"agents/keeper?tab=waiting": "Which version", "agents/keeper?tab=why": "Candidates",
		"agents/keeper/boards/build": "Vet",
	}
	look := func(view, scheme string) {
		p.do(`void (document.documentElement.dataset.theme = ` + quoted(scheme) + `)`)
		p.view(view)
		p.sees(views[view])
		require.Empty(t, p.findings(string(axe)), "%s, %s", view, scheme)
		p.shot(scheme + "-" + strings.NewReplacer("/", "-", "?", "-", "=", "-").Replace(view))
	}
	for view := range views {
		look(view, "light")
	}
	for _, view := range []string{"fleet", "inbox", "agents/keeper?tab=transcript", "agents/keeper/boards/build"} {
		look(view, "dark")
	}
	p.press("Dispatch")
	p.until("the dialog", `document.querySelector("dialog[open]")`)
	require.Empty(t, p.findings(string(axe)), "a dialog")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Escape)))
	p.until("no dialog after Escape", `!document.querySelector("dialog[open]")`)

	// On a phone nothing is wider than the screen.
	require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(390, 844)))
	for view, text := range views {
		p.view(view)
		p.sees(text)
		require.LessOrEqual(t, value[float64](p, wide), 0.0, view)
		p.shot("phone-" + strings.NewReplacer("/", "-", "?", "-", "=", "-").Replace(view))
	}
	p.view("fleet")
	p.sees("it was paused by local: night")
	p.sees("1 queued")
	p.until("the whole row",
		`(() => { const r = [...document.querySelectorAll(".row.agent")].find((x) => x.innerText.includes("it was paused")); const box = r.getBoundingClientRect(); return [...r.children].every((c) => { const b = c.getBoundingClientRect(); return b.top >= box.top && b.bottom <= box.bottom; }); })()`)
	p.view("agents/keeper?tab=why")
	p.until("the chosen tab",
		`(() => { const b = document.querySelector("#tab-why")?.getBoundingClientRect(); return b && b.left >= 0 && b.right <= innerWidth; })()`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.ResetViewport()))
	p.until("tabs without a scrollbar of their own",
		`(() => { const t = document.querySelector(".tabs"); return t.scrollHeight === t.clientHeight; })()`)

	// By keys alone: to the search of the fleet, then into the list.
	p.view("fleet")
	p.sees("sleeper")
	p.do(`document.querySelector(".skip").focus()`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Enter)))
	p.until("the content has the focus", `document.activeElement?.id === "main"`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Tab)))
	p.until("the search has the focus", `document.activeElement?.type === "search"`)
	p.view("agents/keeper")
	p.sees("Publish the release")
	p.do(`document.querySelector('[role="tab"][aria-selected="true"]').focus()`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.ArrowRight)))
	p.until("the next tab",
		`document.querySelector('[aria-selected="true"]').id === "tab-transcript" && document.activeElement.id === "tab-transcript"`)
	p.view("agents/keeper/boards/build")
	p.until("the graph", `document.querySelectorAll(".node").length === 4`)
	p.do(`document.querySelector(".graph").focus()`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Tab)))
	p.until("the first step has the focus",
		`document.activeElement.classList.contains("node") && document.activeElement.textContent.includes("Fetch")`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Enter)))
	p.until("the step", `document.querySelector("dialog[open]")?.innerText.includes("Fetch the sources")`)
	// Who holds the key does not press what is in the window.
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Enter)))
	require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Tab)))
	p.until("the step still, and its first button",
		`document.activeElement?.closest("dialog[open]")?.innerText.includes("Fetch the sources") && document.activeElement.tagName === "BUTTON"`)
	p.sound()
}

// hostile is what an agent, a person or an outside system may write.
var hostile = []string{
	`<img src=x onerror="window.owned=1">`, `<script>window.owned=1</script>`, `"><svg onload=window.owned=1>`,
	`javascript:window.owned=1`, `{{constructor.constructor("window.owned=1")()}}`,
	"\u202Etxt.exe\u202C and \u0000\u0007\u200B", strings.Repeat("w", 1500), strings.Repeat("𝔘̈", 300),
	"line\r\n\n\n\tline",
}

func TestG15_HostileTextIsText(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	clean := func(s string) string { return strings.ReplaceAll(s, "\u0000", "") }
	steps := []any{}
	for i, text := range hostile {
		text = clean(text)
		id := r.item("keeper", text)
		r.call(http.MethodPost, "/v1/agents/keeper/waits:waitFor", map[string]any{
			"workItemId": id, "reason": text,
			"wake": "operator_input",
		})
		r.say("keeper", text)
		r.call(http.MethodPost, "/v1/agents/keeper/timers", map[string]any{"description": text, "after": "3600s"})
		r.call(http.MethodPost, "/v1/agents/keeper/triggers", map[string]any{"description": text})
		steps = append(steps, map[string]any{
			"stepId": "s" + string(rune('a'+i)), "title": text[:min(len(text), 900)],
			"summary": text,
		})
	}
	for i := range steps { // titles are one line
		s := steps[i].(map[string]any)
		s["title"] = strings.Join(strings.Fields(strings.ToValidUTF8(s["title"].(string), "")), " ")
	}
	r.call(http.MethodPost, "/v1/sessions/keeper/boards", map[string]any{
		"boardId": "b", "walName": "b",
		"title": hostile[0], "summary": hostile[1], "defaultWorkerPoolId": "go", "steps": steps,
	})
	turn := r.acquire("keeper")
	for _, text := range hostile {
		turn.submit(clean(text), map[string]any{"callId": "c", "name": "CreateWorkItem", "arguments": map[string]any{
			"objective": clean(text),
		}})
	}
	r.call(http.MethodPost, "/v1/agents/keeper:pause", map[string]any{"reason": hostile[0]})
	p := r.signedIn()
	for _, view := range []string{
		"fleet", "inbox", "events?past=1", "agents/keeper", "agents/keeper?tab=transcript", "agents/keeper?tab=waiting",
		"agents/keeper?tab=why", "agents/keeper?tab=boards", "agents/keeper/boards/b",
		"agents/%3Cimg%20src=x%20onerror=window.owned=1%3E", "agents/%E0%A4%A", "events?agent=%3Cscript%3E",
	} {
		p.view(view)
		p.until("the view "+view,
			`!document.body.innerText.includes("Loading") && document.querySelector("main").innerText.length > 10`)
		for _, scheme := range []string{"open"} {
			p.do(`void document.querySelectorAll("main details").forEach((d) => (d.` + scheme + ` = true))`)
		}
		require.False(t,
			value[bool](p,
				`"owned" in window || !!document.querySelector("main img, main script, main iframe, main a[href^=javascript]")`), view)
		require.LessOrEqual(t, value[float64](p, wide), 0.0, view)
	}
	p.view("agents/keeper?tab=transcript")
	p.sees(hostile[0])
	p.sees(hostile[1])
	p.shot("hostile")
	p.sound()
}
