package console

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// spawn creates an agent.
func (r *rig) spawn(id string) {
	r.Helper()
	r.call(http.MethodPost, "/v1/agents", map[string]any{"agentId": id, "preset": "PRESET_PUBLIC_NAMED"})
}

// say sends a message to an agent.
func (r *rig) say(id, text string) {
	r.Helper()
	r.call(http.MethodPost, "/v1/agents/"+id+"/messages", map[string]any{"text": text})
}

// turn is a turn that the test holds as a runner.
type turn struct {
	*rig
	agent, id, run, token string
	message               map[string]any
	round                 int
}

// text returns the text of the message that the turn took.
func (t *turn) text() string {
	text, _ := t.message["text"].(string)
	return text
}

// acquire takes a turn of an agent.
func (r *rig) acquire(agent string) *turn {
	r.Helper()
	a := r.call(http.MethodPost, "/v1/turns:acquire", map[string]any{
		"agentIds": []string{agent}, "runnerId": "test",
		"wait": "20s",
	})
	held, ok := a["turn"].(map[string]any)
	require.True(r, ok, "no turn: %v", a)
	message, _ := a["message"].(map[string]any)
	return &turn{
		rig: r, message: message, agent: agent, id: held["turnId"].(string), run: held["runId"].(string),
		token: a["runToken"].(string),
	}
}

// submit submits a round with tool calls, each with a name and arguments.
func (t *turn) submit(text string, calls ...map[string]any) map[string]any {
	t.Helper()
	status, answer := t.callAs(t.token, http.MethodPost, "/v1/agents/"+t.agent+"/turns/"+t.id+"/rounds",
		map[string]any{"runId": t.run, "roundIndex": t.round, "text": text, "toolCalls": calls, "usage": map[string]any{
			"inputTokens": 1200, "outputTokens": 80,
		}})
	require.Equal(t, http.StatusOK, status, "%v", answer)
	t.round++
	return answer
}

func TestG15_TheFleetByWhatItDoes(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"keeper", "reviewer", "sleeper"} {
		r.spawn(id)
	}
	r.say("keeper", "look after the release")
	r.call(http.MethodPost, "/v1/agents/sleeper:pause", map[string]any{"reason": "night"})
	page := r.signedIn()
	page.sees("3 agents")
	page.sees("1 message(s) queued, no runner has taken the turn")
	page.sees("it was paused by local: night")
	page.shot("fleet")
	page.press("paused")
	page.misses("reviewer")
	page.sees("sleeper")
	page.press("all")
	page.sees("reviewer")
	page.fill("Search agents", "keep")
	page.misses("reviewer")
	page.fill("Search agents", "nobody")
	page.sees("No agent")
	page.press("Show all")
	page.sees("reviewer")
	// It changes as things happen.
	r.call(http.MethodPost, "/v1/agents/reviewer:pause", map[string]any{"reason": "lunch"})
	page.sees("it was paused by local: lunch")

	page.press("New agent")
	page.fill("Id", "Not A Name")
	page.press("Create")
	page.sees("INVALID_ARGUMENT")
	page.fill("Id", "newcomer")
	page.press("Create")
	page.until("the new agent", `location.hash.startsWith("#/agents/newcomer")`)
	page.sees("nothing is open that it could do")
	// What messages say with names of methods, the console says with its own places.
	page.view("agents/ghost")
	page.sees(`agent "ghost" does not exist`)
	require.NotContains(t, value[string](page, "document.body.innerText"), "SpawnAgent", "a name of the API")
	page.sees("In the console: New agent, in Fleet.")
	r.call(http.MethodPost, "/v1/agents/reviewer:stop", map[string]any{"reason": "over"})
	page.view("agents/reviewer?tab=why")
	page.sees("In the console: Start, on the page of the agent.")
	require.NotContains(t, value[string](page, "document.body.innerText"), "StartAgent", "a name of the API")
	page.press("Start")
	page.misses("In the console:")
	page.sound()
}

func TestG15_AnAgentIsToldThingsAndControlled(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	page := r.signedIn()
	page.view("agents/keeper")
	page.sees("It has no work items.")

	page.fill("Message to keeper", "Prepare the release")
	page.press("Send")
	page.sees("operator prompt")
	turn := r.acquire("keeper")
	page.sees("running turn")
	page.view("agents/keeper?tab=transcript")
	turn.submit("I begin with the change log.", map[string]any{
		"callId": "c1", "name": "CreateWorkItem",
		"arguments": map[string]any{
			"objective": "Check the change log", "plan_status": "ready",
			"todo_list": []map[string]any{
				{"text": "read it", "state": "completed"},
				{"text": "compare with the commits", "state": "in_progress"},
			},
		},
	})
	page.sees("I begin with the change log.")
	page.sees("CreateWorkItem")
	page.sees("1,200 → 80 tokens")
	page.shot("transcript")

	page.fill("Message to keeper", "Stop at once")
	page.fill("When", "PRIORITY_INTERJECT")
	page.press("Send")
	page.until("that it was sent", `document.querySelector(".say textarea").value === ""`)
	answer := turn.submit("I go on.")
	require.NotEmpty(t, answer["interjections"], "the message reaches the running turn")
	page.press("Abort")
	page.fill("Reason", "wrong release")
	page.confirm("Abort")
	page.sees("wrong release")
	page.press("Resume")
	page.until("that it is not paused", `!document.querySelector(".reason").innerText.includes("wrong release")`)
	page.sees("operator aborted: wrong release")

	page.view("agents/keeper?tab=work")
	page.sees("Check the change log")
	page.press("Check the change log")
	page.sees("compare with the commits")
	page.shot("agent")
	page.press("New item")
	page.fill("Objective", "Write the announcement")
	page.fill("Plan", "One page.")
	page.fill("Todos", "draft\nreview")
	page.confirm("Create")
	page.sees("Write the announcement")
	page.press("Write the announcement")
	page.press("Plan")
	page.sees("One page.")
	page.press("Complete")
	page.sees("There is no way back")
	page.confirm("Complete")
	page.sees("Completed")

	page.view("agents/keeper?tab=why")
	page.sees("Candidates")
	page.sees("Decisions before")
	page.shot("why")
	page.press("Pause")
	page.fill("Reason", "lunch")
	page.confirm("Pause")
	page.sees("it was paused by local: lunch")
	page.press("Stop")
	page.confirm("Stop")
	page.sees("it was stopped by local")
	page.press("Start")
	page.misses("it was stopped by local")
	for _, tab := range []string{"waiting", "tasks", "boards", "children", "briefs"} {
		page.view("agents/keeper?tab=" + tab)
		page.until("the tab "+tab, `document.querySelector('[aria-selected="true"]')?.id === "tab-`+tab+
			`" && !document.body.innerText.includes("Loading")`)
	}
	page.sound()
}

func TestG15_EventsAsTheyHappen(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	page := r.signedIn()
	page.view("events")
	page.sees("Nothing happened since")
	r.say("keeper", "hello")
	page.sees("message queued")
	page.press("message queued")
	page.sees(`"text": "hello"`)
	page.shot("event")
	page.press("Close")
	page.press("Hold")
	r.call(http.MethodPost, "/v1/agents/keeper:pause", map[string]any{})
	page.until("what is held", `document.querySelector("h1").innerText.includes("received")`)
	page.press("Go on")
	page.sees("agent paused")
	page.fill("Plane", "work")
	page.misses("message queued")
	page.view("events?past=1")
	page.sees("agent spawned")
	page.shot("events")
	page.sound()
}
