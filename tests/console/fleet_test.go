package console

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// many is how many agents TestG16_ManyAgents creates.
var many = flag.Int("agents", 1500, "agents of TestG16_ManyAgents")

// search returns the ids of the agents that a filter selects, in order, and how many there are in all.
func (r *rig) search(filter string) (ids []string, total float64) {
	r.Helper()
	token := ""
	for {
		page := r.call(http.MethodGet, "/v1/agents:search?page_size=2"+filter+"&page_token="+token, nil)
		found, _ := page["agents"].([]any)
		for _, a := range found {
			ids = append(ids, a.(map[string]any)["agentId"].(string))
		}
		total, _ = page["total"].(float64)
		if token, _ = page["nextPageToken"].(string); token == "" {
			return ids, total
		}
	}
}

// finds waits until a filter selects these agents.
func (r *rig) finds(filter string, want ...string) {
	r.Helper()
	var got []string
	var total float64
	require.True(r, eventually(func() bool {
		got, total = r.search(filter)
		return strings.Join(got, " ") == strings.Join(want, " ") && int(total) == len(want)
	}), "%s: want %v, got %v of %v", filter, want, got, total)
}

func TestG16_AgentsByWhatTheyDo(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"asking", "deaf", "idle", "keeper", "queued"} {
		r.spawn(id)
	}
	r.say("queued", "hello")
	r.call(http.MethodPost, "/v1/agents/asking/waits:waitFor", map[string]any{
		"workItemId": r.item("asking", "Ask"),
		"reason":     "Which one?", "wake": "operator_input",
	})
	r.finds("", "asking", "deaf", "idle", "keeper", "queued")
	r.finds("&postures=idle", "deaf", "idle", "keeper")
	r.finds("&postures=queued_input&postures=waiting_operator", "asking", "queued")
	r.finds("&attentions=question", "asking")
	r.finds("&contains=ee", "keeper")
	r.finds("&contains=nobody")

	// What changes is found within seconds.
	r.call(http.MethodPost, "/v1/agents/deaf/waits:waitFor", map[string]any{
		"workItemId": r.item("deaf", "Listen"),
		"reason":     "CI", "wake": "external",
	})
	r.board("keeper", "build")
	r.call(http.MethodPatch, "/v1/sessions/keeper/boards/build",
		map[string]any{"operations": []any{map[string]any{"op": "block_board", "reason": "freeze"}}})
	r.say("asking", "the first")
	r.call(http.MethodDelete, "/v1/agents/idle", nil)
	r.finds("&attentions=weak_wait", "deaf")
	r.finds("&attentions=stalled_board", "keeper")
	r.finds("&contains=idle")
	held := r.acquire("queued")
	held.submit("I look.")
	status, _ := r.callAs(held.token, http.MethodPost, "/v1/agents/queued/turns/"+held.id+":finish",
		map[string]any{"runId": held.run, "outcome": "fatal"})
	require.Equal(t, 200, status)
	r.finds("&attentions=quarantined", "queued")

	var counts map[string]any
	require.True(t, eventually(func() bool {
		counts = r.call(http.MethodGet, "/v1/agents:count", nil)
		return counts["turnsLastMinute"] == 1.0 && counts["inputTokensLastMinute"] == "1200"
	}), "%v", counts)
	require.Equal(t, 4.0, counts["agents"])
	require.NotContains(t, counts, "incomplete")
	require.Equal(t, "80", counts["outputTokensLastMinute"])
	require.Contains(t, fmt.Sprint(counts["attentions"]), "ATTENTION_QUARANTINED")

	for filter, field := range map[string]string{
		"postures=7777": "postures[0]", "attentions=unspecified": "attentions[0]", "contains=" +
			strings.Repeat("x", 129): "contains", "page_size=501": "page_size",
	} {
		status, answer := r.callAs(r.token, http.MethodGet, "/v1/agents:search?"+filter, nil)
		require.Equal(t, 400, status, filter)
		require.Contains(t, fmt.Sprint(answer), field)
	}
	status, _ = r.callAs(r.token, http.MethodGet, "/v1/agents:search?page_token=xyz", nil)
	require.Equal(t, 400, status)
}

func TestG16_ManyAgents(t *testing.T) {
	r := newRig(t)
	var group sync.WaitGroup
	ids := make(chan int)
	failed := make(chan error, 16)
	for range 16 {
		group.Go(func() {
			var err error
			for i := range ids {
				if err == nil {
					err = r.spawnQuietly(fmt.Sprintf("agent-%06d", i))
				}
			}
			failed <- err
		})
	}
	for i := range *many {
		ids <- i
	}
	close(ids)
	group.Wait()
	for range 16 {
		require.NoError(t, <-failed)
	}
	p := r.signedIn()
	p.until("all of them", `document.querySelector("h1").innerText.replaceAll(",", "").includes("`+fmt.Sprint(*many)+
		` agents") && !document.body.innerText.includes("still being looked at")`)
	// The count and the list are two requests.
	p.until("rows", `document.querySelectorAll(".virtual .row").length > 0`)
	require.Less(t, value[int](p, `document.querySelectorAll(".row").length`), 60, "only what is seen is drawn")
	scroll := `(async () => {
		const list = document.querySelector(".virtual");
		const began = performance.now();
		list.scrollTop = list.scrollHeight;
		await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
		return performance.now() - began;
	})()`
	for range 5 {
		took := value[float64](p, scroll)
		t.Logf("a screen further down takes %.0f ms", took)
		require.Less(t, value[int](p, `document.querySelectorAll(".row").length`), 60, "only what is seen is drawn")
	}
	p.until("further agents", `document.querySelector(".row .id").innerText > "agent-000100"`)
	p.fill("Search agents", fmt.Sprintf("%06d", *many-1))
	p.until("the last one", `document.querySelectorAll(".row").length === 1`)
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Evaluate[chromedp.Void](`globalThis.gc?.()`)))
	heap := value[float64](p, `performance.memory.usedJSHeapSize / 1048576`)
	t.Logf("%d agents, a heap of %.1f MiB", *many, heap)
	require.Less(t, heap, 200.0)
	p.sound()
}

// spawnQuietly creates an agent, for goroutines of a test.
func (r *rig) spawnQuietly(id string) error {
	body, err := json.Marshal(map[string]any{"agentId": id, "preset": "PRESET_PUBLIC_NAMED"})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), http.MethodPost, r.base+"/v1/agents",
		strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s: %s", id, resp.Status))
	}
	return errors.Join(err, resp.Body.Close())
}
