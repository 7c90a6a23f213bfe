package console

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// forget is a script after which the answers of the server are those of one that removed old history: lists have the
// newest entry alone and end there, and boards have neither steps nor a log.
const forget = `void (() => {
	const real = window.fetch;
	window.fetch = async (url, init) => {
		const path = new URL(url).pathname;
		if (/\/boards\/[^:/]+$/.test(path)) return new Response(JSON.stringify({ error: { reason: "HISTORY_REMOVED", message: "it was removed" } }), { status: 400, headers: { "Content-Type": "application/json" } });
		const resp = await real(url, init);
		const list = { rounds: "rounds", briefs: "briefs", conversation: "utterances" }[path.split("/").at(-1)];
		if (!list && !path.endsWith(":inspect")) return resp;
		const answer = await resp.json();
		if (list) Object.assign(answer, { [list]: (answer[list] ?? []).slice(0, 1), nextPageToken: "", historyRemoved: true });
		else answer.timeline = [];
		return new Response(JSON.stringify(answer), { status: resp.status, headers: { "Content-Type": "application/json" } });
	};
})()`

// TestG15_HistoryThatWasRemoved: where older entries were removed a list says so and since when it has them, and a
// board whose log was removed is shown with what is left.
func TestG15_HistoryThatWasRemoved(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.board("keeper", "build")
	for i := range 2 {
		r.say("keeper", fmt.Sprintf("question %d", i))
		held := r.acquire("keeper")
		held.submit(fmt.Sprintf("answer %d", i), map[string]any{"callId": "c", "name": "Nonsense"})
		if i == 1 {
			held.submit("and now", map[string]any{"callId": "w", "name": "WaitFor", "arguments": map[string]any{
				"reason": "Which one?", "wake": "operator_input",
			}})
			break
		}
		status, answer := r.callAs(held.token, http.MethodPost, "/v1/agents/keeper/turns/"+held.id+":finish",
			map[string]any{"runId": held.run, "outcome": "TURN_OUTCOME_COMPLETED"})
		require.Equal(t, http.StatusOK, status, "%v", answer)
	}
	const why = " were removed: they are older than history is kept (history-days)."
	page := r.signedIn()
	page.view("agents/keeper?tab=transcript")
	page.sees("answer 0")
	page.until("nothing that was removed", `!document.body.innerText.includes("removed")`)

	page.do(forget)
	page.view("agents/keeper?tab=briefs")
	page.until("since when there are briefs",
		`/Briefs before \d\d:\d\d:\d\d were removed/.test(document.body.innerText)`)
	page.view("agents/keeper?tab=transcript")
	page.until("since when there are rounds",
		`/Rounds before \d\d:\d\d:\d\d were removed: they are older than history is kept/.test(document.body.innerText)`)
	page.sees("question 0")
	page.sees("1 round removed")
	page.misses("answer 0")
	page.shot("removed")

	page.view("inbox")
	page.press("Conversation")
	page.until("since when there are words", `/Words before \d\d:\d\d:\d\d were removed/.test(document.body.innerText)`)

	page.view("agents/keeper/boards/build")
	page.sees("The steps and the log of this board" + why)
	page.sees("Build the release")
	page.press("Timeline")
	page.sees("The steps and the log of this board" + why)
	page.misses("Nothing happened yet.")
	page.press("Dispatches")
	page.misses("were removed")

	page.view("events?past=1")
	page.sees("What was removed because it is older than history is kept (history-days) is not among these.")
	page.sound()
}
