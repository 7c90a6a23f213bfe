package console

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

func TestG15_NoRunnerIsThere(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"keeper", "reviewer"} {
		r.spawn(id)
		r.say(id, "hello")
	}
	page := r.signedIn()
	page.sees("1 message(s) queued")
	page.view("admin")
	page.sees("Everything is served.")
	page.view("inbox")
	// Two minutes later.
	page.do(`(() => { const now = Date.now; Date.now = () => now() + 120000; })()`)
	for _, view := range []string{"fleet", "admin"} {
		page.view(view)
		page.sees("2 agents have queued messages, and no runner asks for a turn of keeper, whose message has waited " +
			"for 2 minutes.")
		page.sees("No turn was taken in the last minute")
		page.shot("unserved-" + view)
		require.NotContains(t, value[string](page, "document.body.innerText"), "healthy")
		page.view("inbox")
	}
	r.acquire("keeper")
	r.acquire("reviewer")
	page.view("admin")
	page.sees("Everything is served.")
	page.misses("no runner asks")
	page.sound()
}

func TestG15_ABoardThatNobodyWorksOn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.call(http.MethodPost, "/v1/sessions/keeper/boards", map[string]any{
		"boardId": "build", "walName": "build", "title": "Build", "defaultWorkerPoolId": "default",
		"steps": []any{
			map[string]any{"stepId": "fetch", "title": "Fetch", "workerPoolId": "go"},
			map[string]any{"stepId": "ship", "title": "Ship", "dependsOnStepIds": []string{"fetch"}},
		},
	})
	page := r.signedIn()
	page.view("agents/keeper/boards/build")
	page.sees("1 step is ready for the pool go. No dispatch for it is open")
	page.press("Dispatch")
	page.fill("Pool", "Not A Pool")
	page.press("Dispatch")
	page.sees(`worker pool id "Not A Pool" must be lower-case letters, digits, - and _`)
	page.press("Back")
	page.press("Dispatch")
	page.until("the pool of the step that is ready", `document.querySelector("dialog input[list]")?.value === "go"`)
	page.confirm("Dispatch")
	page.sees("1 step is ready for the pool go. No worker of it is connected")
	page.shot("stalled-board")
	page.press("Steps")
	page.press("Fetch")
	page.until("the same about the step",
		`document.querySelector("dialog[open]")?.innerText.includes("No worker of it is connected")`)
	page.press("Close")
	page.press("Dispatches")
	page.until("the tab in the address", `location.hash.endsWith("?tab=dispatches")`)
	require.NoError(t, chromedp.Do(page.ctx, chromedp.Reload()))
	page.sees("0 of 4 running")
	page.view("agents/keeper/boards/build?tab=bogus")
	page.until("the first tab", `document.querySelector('[aria-selected="true"]').id === "tab-graph"`)
	r.step("keeper", "build", "fetch", "completed", "abc123")
	page.sees("1 step is ready for the pool default. No dispatch for it is open")
	page.sound()
}

func TestG15_AfterTheServerWasKilled(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	page := r.signedIn()
	page.view("agents/keeper")
	page.sees("nothing is open that it could do")
	page.until("the stream", `document.querySelector(".live").innerText === "live"`)
	require.NoError(t, r.srv.Kill())
	page.sees("reconnecting")
	r.start()
	r.say("keeper", "are you there?")
	page.sees("1 message(s) queued")
	page.until("the stream", `document.querySelector(".live").innerText === "live"`)
	page.fill("Message to keeper", "and again")
	page.press("Send")
	page.sees("2 message(s) queued")
	page.misses("cannot be reached")
}
