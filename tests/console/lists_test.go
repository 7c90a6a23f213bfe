package console

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// messages is an expression for the texts of the lane, in the order in which the page shows them.
const messages = `[...document.querySelectorAll(".message .prose")].map((p) => p.innerText)`

func TestG15_ListsSayThatThereIsMore(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for i := range 70 {
		r.say("keeper", fmt.Sprintf("message %d", i))
	}
	for i := range 60 {
		r.call(http.MethodPost, "/v1/agents/keeper/timers", map[string]any{
			"description": fmt.Sprintf("timer %d", i),
			"after":       "3600s",
		})
		r.item("keeper", fmt.Sprintf("objective %d", i))
	}
	page := r.signedIn()
	page.view("agents/keeper")
	page.sees("50 of 70 messages are shown.")
	page.fill("Message to keeper", "the last one")
	page.press("Send")
	page.sees("what you sent, number 71")
	page.sees("… 20 messages between …")
	page.do(`document.querySelector(".message:last-of-type").scrollIntoView({ block: "center" })`)
	page.shot("lane")
	page.until("50 messages and that one", messages+`.length === 51 && `+messages+`.at(-1) === "the last one"`)
	page.do(`[...document.querySelectorAll(".more button")].at(-1).click()`)
	page.until("all of them", messages+`.length === 71`)
	page.until("no more to show", `!document.body.innerText.includes("messages are shown")`)
	// The order is that in which turns take them, and not that of their arrival.
	page.fill("Message to keeper", "before the others")
	page.fill("When", "PRIORITY_NEXT")
	page.press("Send")
	page.until("the next one first", messages+`[0] === "before the others"`)
	require.Equal(t, "before the others", r.acquire("keeper").text())

	page.until("the classes", `document.body.innerText.includes("of 60 items are shown")`)
	page.press("Show more")
	page.until("all items of the page", `document.querySelectorAll(".item").length >= 50`)
	page.press("Show more")
	page.until("all items", `document.querySelectorAll(".item").length === 60`)
	page.view("agents/keeper?tab=waiting")
	page.sees("50 timers are shown.")
	page.press("Show more")
	page.until("all timers", `document.querySelectorAll(".cards li").length === 60`)
	page.sound()
}

func TestG15_ALaneOfHundreds(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for i := range 520 {
		r.say("keeper", fmt.Sprintf("message %d", i))
	}
	page := r.signedIn()
	page.view("agents/keeper")
	page.sees("50 of 520 messages are shown.")
	page.sees("in the order in which they came")
	page.fill("Message to keeper", "the last one")
	page.press("Send")
	page.sees("what you sent")
	page.until("50 messages and that one", messages+`.length === 51 && `+messages+`.at(-1) === "the last one"`)
	for n := 100; n <= 500; n += 50 {
		page.press("Show more")
		page.sees(fmt.Sprintf("%d of 521 messages are shown.", n))
	}
	page.press("Show more")
	page.until("all of them", messages+`.length === 521`)
	page.sees("the next one first")
	page.sound()
}

func TestG15_ATaskThatFailedIsSeen(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.call(http.MethodPost, "/v1/agents/keeper/tasks:exec",
		map[string]any{"command": map[string]any{"cmd": "echo fine; echo wrong >&2; exit 3"}, "yieldTime": "10s"})
	page := r.signedIn()
	page.view("agents/keeper?tab=tasks")
	page.sees("No command of it is running.")
	page.sees("Ended of late")
	page.sees("exit code 3")
	page.until("that it failed", `document.querySelector(".cards .badge.bad")?.innerText === "failed"`)
	page.shot("tasks")
	page.do(`document.querySelector("input[type=checkbox]").click()`)
	page.misses("Ended of late")
	page.until("the choice in the address", `location.hash.includes("ended=1")`)
	require.NoError(t, chromedp.Do(page.ctx, chromedp.Reload()))
	page.until("the choice of before",
		`document.querySelector("input[type=checkbox]")?.checked && document.querySelectorAll(".cards li").length === 1`)

	page.press("echo fine; echo wrong >&2; exit 3")
	page.until("what it wrote to stderr, apart", `document.querySelector(".output .err")?.innerText === "wrong\n"`)
	page.until("both",
		`document.querySelector(".output").innerText === "fine\nwrong\n" || document.querySelector(".output").innerText === "wrong\nfine\n"`)
	page.shot("streams")
	page.fill("Which output", "out")
	page.until("output only", `document.querySelector(".output").innerText === "fine\n"`)
	page.sound()
}

func TestG15_WhatATurnFailedOf(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.say("keeper", "do it")
	page := r.signedIn()
	page.view("agents/keeper?tab=transcript")
	for i, outcome := range []string{"retryable", "fatal"} {
		held := r.acquire("keeper")
		if i == 0 {
			held.submit("I try.")
		}
		status, answer := r.callAs(held.token, http.MethodPost, "/v1/agents/keeper/turns/"+held.id+":finish",
			map[string]any{"runId": held.run, "outcome": outcome, "message": fmt.Sprintf("the model refuses %d", i)})
		require.Equal(t, 200, status, "%v", answer)
		page.until("the reason of the last turn",
			`[...document.querySelectorAll(".turn")].findIndex((x) => x.innerText.includes("the model refuses `+
				fmt.Sprint(i)+`")) === 0`)
	}
	page.until("the reason once",
		`document.querySelectorAll(".turn").length === 2 && document.querySelectorAll(".turn .note.bad").length === 1`)
	page.sees("No turn takes the message any more.")
	page.shot("failed-turn")
	page.sound()
}

func TestG15_WhatAnAgentWaitsFor(t *testing.T) {
	r := newRig(t)
	r.spawn("deaf")
	item := r.item("deaf", "Listen")
	made := r.call(http.MethodPost, "/v1/agents/deaf/triggers", map[string]any{"description": "CI"})
	trigger := made["trigger"].(map[string]any)["triggerId"].(string)
	r.call(http.MethodPost, "/v1/agents/deaf/waits:waitFor", map[string]any{
		"workItemId": item, "reason": "CI is green",
		"wake": "external", "resource": trigger,
	})
	page := r.signedIn()
	page.view("agents/deaf?tab=why")
	page.sees("waits for trigger")
	require.NotContains(t, value[string](page, "document.body.innerText"), "waits for waits")
	page.shot("why-waits")
	page.view("agents/deaf?tab=bogus")
	page.until("the first tab",
		`document.querySelector('[aria-selected="true"]').id === "tab-work" && document.querySelector("#tabpanel").innerText.includes("Listen")`)

	page.view("agents/deaf?tab=waiting")
	page.press("Cancel…")
	page.sees("the agent may take a turn about it")
	page.shot("cancel-wait")
	page.confirm("Keep it")
	page.sees("CI is green")
	page.press("Cancel…")
	page.confirm("Cancel the wait")
	page.sees("It waits for nothing.")
	page.sound()
}
