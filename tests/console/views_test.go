package console

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// item creates a work item of an agent and returns its id.
func (r *rig) item(agent, objective string) string {
	r.Helper()
	made := r.call(http.MethodPost, "/v1/agents/"+agent+"/work-items", map[string]any{
		"objective":  objective,
		"planStatus": "ready",
	})
	return made["workItem"].(map[string]any)["workItemId"].(string)
}

func TestG15_TheInboxTakesAnswers(t *testing.T) {
	r := newRig(t)
	page := r.signedIn()
	page.view("inbox")
	page.sees("Nothing waits for a person.")
	for _, id := range []string{"keeper", "failing", "deaf"} {
		r.spawn(id)
	}
	item := r.item("keeper", "Publish the release")
	r.call(http.MethodPost, "/v1/agents/keeper/waits:waitFor",
		map[string]any{"workItemId": item, "reason": "Which version is it?", "wake": "operator_input"})
	r.call(http.MethodPost, "/v1/agents/deaf/waits:waitFor", map[string]any{
		"workItemId": r.item("deaf", "Listen"),
		"reason":     "CI is green", "wake": "external",
	})
	r.say("failing", "do the impossible")
	failing := r.acquire("failing")
	status, answer := r.callAs(failing.token, http.MethodPost, "/v1/agents/failing/turns/"+failing.id+":finish",
		map[string]any{"runId": failing.run, "outcome": "fatal", "message": "the model refuses"})
	require.Equal(t, 200, status, "%v", answer)

	page.sees("Which version is it?")
	page.sees("do the impossible")
	page.sees("Nothing can end this: the agent has no live trigger.")
	page.shot("inbox")
	page.fill("Message to keeper", "0.1.0")
	page.until("how many need a person", `document.querySelector("nav").innerText.includes("3")`)
	page.press("Send")
	page.misses("Which version is it?")
	page.sees("Your answer to keeper was sent.")
	page.until("the focus at the title", `document.activeElement.tagName === "H1"`)
	waits := r.call(http.MethodGet, "/v1/agents/keeper/waits", nil)
	require.Empty(t, waits["waits"], "the answer ended the wait")
	page.sound()
}

// board creates a board with a diamond of steps.
func (r *rig) board(agent, id string) {
	r.Helper()
	step := func(id, title string, after ...string) map[string]any {
		return map[string]any{"stepId": id, "title": title, "dependsOnStepIds": after}
	}
	r.call(http.MethodPost, "/v1/sessions/"+agent+"/boards", map[string]any{
		"boardId": id, "walName": id, "title": "Build the release", "summary": "All packages.",
		"defaultWorkerPoolId": "go",
		"steps": []any{
			step("fetch", "Fetch the sources"), step("vet", "Vet", "fetch"), step("test", "Test", "fetch"),
			step("ship", "Ship it", "vet", "test"),
		},
	})
}

// step sets the status of a step.
func (r *rig) step(agent, board, id, status, result string) {
	r.Helper()
	r.call(http.MethodPatch, "/v1/sessions/"+agent+"/boards/"+board+"/steps/"+id,
		map[string]any{"status": status, "resultSummary": result})
}

func TestG15_ABoardAsItRuns(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.board("keeper", "build")
	page := r.signedIn()
	page.view("agents/keeper?tab=boards")
	page.press("Build the release")
	node := func(title, class string) string {
		return `[...document.querySelectorAll(".node")].some((n) => n.textContent.includes(` + quoted(title) +
			`) && n.classList.contains(` + quoted(class) + `))`
	}
	page.until("a step that is ready", node("Fetch the sources", "wait"))
	page.until("edges", `document.querySelectorAll(".edge").length === 4`)
	r.step("keeper", "build", "fetch", "completed", "abc123")
	page.until("the step completed", node("Fetch the sources", "good"))
	page.until("the next one ready", node("Vet", "wait"))
	page.shot("board")
	page.press("Dispatch")
	page.fill("Runs at a time", "2")
	page.confirm("Dispatch")
	page.press("Dispatches")
	page.sees("0 of 2 running")
	page.press("Close")
	page.sees("No pool may claim steps yet.")
	page.press("Block")
	page.fill("Reason", "freeze")
	page.confirm("Block")
	page.sees("freeze")
	page.press("Reopen")
	page.press("Steps")
	page.sees("abc123")
	page.press("Vet")
	page.confirm("Cancel the step")
	page.press("Timeline")
	page.until("lines", `document.querySelectorAll(".log li").length >= 4`)
	page.until("why it cannot be completed",
		`[...document.querySelectorAll("button")].some((b) => b.innerText === "Complete" && b.disabled && b.title.includes("Not completed yet"))`)
	page.press("Cancel")
	page.confirm("Keep it")
	page.press("Cancel")
	page.confirm("Cancel the board")
	page.sees("cancelled")
	page.sound()
}

func TestG15_ALargeBoardIsCollapsed(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	steps := []any{map[string]any{"stepId": "root", "title": "root"}}
	for i := range 600 {
		steps = append(steps, map[string]any{
			"stepId": "leaf-" + string(rune('a'+i%26)) + "-" + string(rune('a'+i/26)),
			"title":  "leaf", "dependsOnStepIds": []string{"root"},
		})
	}
	r.call(http.MethodPost, "/v1/sessions/keeper/boards", map[string]any{
		"boardId": "wide", "walName": "wide",
		"title": "Wide", "defaultWorkerPoolId": "go", "steps": steps,
	})
	page := r.signedIn()
	page.view("agents/keeper/boards/wide")
	page.sees("600 steps pending")
	page.until("two nodes", `document.querySelectorAll(".node").length === 2`)
	page.sound()
}

func TestG15_ATaskWithItsOutput(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	made := r.call(http.MethodPost, "/v1/agents/keeper/tasks:exec", map[string]any{
		"command": map[string]any{
			"cmd":          "echo ready; read line; echo got $line; exec sleep 600",
			"acceptsInput": true,
		},
		"yieldTime": "0s",
	})
	id := made["handle"].(map[string]any)["taskId"].(string)
	page := r.signedIn()
	page.view("agents/keeper?tab=tasks")
	page.press("echo ready; read line; echo got $line; exec sleep 600")
	page.until("output", `document.querySelector(".output")?.innerText.includes("ready")`)
	page.fill("Input", "blue")
	page.press("Send")
	page.until("the answer", `document.querySelector(".output").innerText.includes("got blue")`)
	page.shot("task")
	page.press("Stop")
	page.confirm("Stop the task")
	page.sees("cancelled")
	page.sees("It has ended and takes no input.")
	require.Equal(t, "TASK_STATE_CANCELLED", r.call(http.MethodGet, "/v1/agents/keeper/tasks/"+id, nil)["task"].(map[string]any)["state"])
	page.sound()
}

func TestG15_TheInstallation(t *testing.T) {
	r := newRig(t, "--quota-agents", "77")
	page := r.signedIn()
	page.view("admin")
	page.sees("Everything is served.")
	page.sees("scheduler")
	page.shot("admin")
	page.press("Usage")
	page.sees("77")
	page.press("Keys")
	page.sees("There are no keys.")
	page.press("New key")
	page.fill("Name", "ann")
	page.press("Create")
	page.sees("It is shown only now.")
	secret := value[string](page, `document.querySelector(".secret").innerText`)
	status, who := r.callAs(secret, http.MethodGet, "/v1/whoami", nil)
	require.Equal(t, 200, status)
	require.Equal(t, "ROLE_OPERATOR", who["role"])
	page.confirm("Done")
	page.press("Revoke")
	page.confirm("Revoke")
	page.sees("There are no keys.")
	status, _ = r.callAs(secret, http.MethodGet, "/v1/whoami", nil)
	require.Equal(t, 401, status)
	page.press("Workers")
	page.sees("No worker of boards is connected.")
	page.sound()
}
