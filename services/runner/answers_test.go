//go:build !nomodels

package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/runner"
	"quartet/tests/dev"
)

// What becomes of a turn whose provider answers so.
type class int

const (
	passes        class = iota // asked again; in the end the message goes back to the lane
	overBound                  // baseline_over_budget, put aside
	unpaid                     // the message goes back without an attempt counted, and the runner ends
	denied                     // the same: the credential is the operator's, not the message's
	misconfigured              // the same: there is no such model, or no API
	refused                    // fatal, put aside
)

// answers are all of testdata/answers: whole HTTP responses as they come over
// the wire, in the formats that the providers document and that compatible
// servers answer in. Where a file ends, the connection does.
var answers = map[string]struct {
	class
	says  string  // what people read of it
	pause float64 // seconds that the provider asks for
}{
	"anthropic-400-credit": {class: unpaid, says: "credit balance is too low"},
	"anthropic-400-invalid": {class: refused, says: "400 Bad Request: invalid_request_error: max_tokens: " +
		"9999999 > 64000 (request req_0000000000000000000000a1)"},
	"anthropic-400-too-long":            {class: overBound, says: "203284 tokens > 200000"},
	"anthropic-400-too-long-with-reply": {class: overBound, says: "exceed context limit"},
	"anthropic-400-usage-limit":         {class: unpaid, says: "usage limits"},
	"anthropic-401-key": {class: denied, says: "401 Unauthorized: authentication_error: invalid " +
		"x-api-key"},
	"anthropic-402-billing":     {class: unpaid, says: "402 Payment Required: billing_error"},
	"anthropic-403-permission":  {class: denied, says: "may not use this model"},
	"anthropic-404-model":       {class: misconfigured, says: "not_found_error: model: test-model"},
	"anthropic-413-too-large":   {class: overBound, says: "exceeds the maximum size"},
	"anthropic-429-rate-limit":  {says: "429 Too Many Requests: rate_limit_error", pause: 1},
	"anthropic-429-spend-limit": {class: unpaid, says: "monthly spend limit"},
	"anthropic-500-api-error":   {says: "500 Internal Server Error: api_error"},
	"anthropic-529-overloaded": {says: "529: overloaded_error: Overloaded (request " +
		"req_0000000000000000000000a1)"},
	"anthropic-502-web-page": {says: "502 Bad Gateway: the answer is a web page"},
	"anthropic-200-web-page": {says: "the answer is a web page instead of the API's JSON"},
	"anthropic-200-overloaded-in-stream": {
		says: "overloaded_error: Overloaded (request req_0000000000000000000000a1)",
	},
	"anthropic-200-cut":           {says: "stream ended before the reply did"},
	"anthropic-200-cut-in-a-call": {says: "stream ended before the reply did"},
	"anthropic-200-malformed":     {says: "no complete reply was received: invalid character"},
	"openai-400-invalid":          {class: refused, says: "Invalid value for 'max_completion_tokens'"},
	"openai-400-llamacpp-too-long": {class: overBound, says: "exceed_context_size_error: the request exceeds the " +
		"available context size"},
	"openai-200-llamacpp-too-long": {class: overBound, says: "the request exceeds the available context size"},
	"openai-400-too-long":          {class: overBound, says: "130000 tokens"},
	"openai-400-vllm-too-long": {class: overBound, says: "400 Bad Request: This model's maximum context length " +
		"is 4096 tokens"},
	"openai-401-key":     {class: denied, says: "Incorrect API key provided"},
	"openai-403-country": {class: denied, says: "territory not supported"},
	"openai-403-moderation": {class: refused, says: "declined to forward the message: 403 Forbidden: The " +
		"chosen model requires moderation"},
	"openai-404-model": {class: misconfigured, says: "does not exist"},
	"openai-404-no-api": {class: misconfigured, says: "404 Not Found: 404 page not found; check --model " +
		"and --base-url"},
	"openai-404-ollama-model": {class: misconfigured, says: "404 Not Found: model 'test-model' not found, try " +
		"pulling it first; check --model"},
	"openai-429-quota":      {class: unpaid, says: "exceeded your current quota"},
	"openai-429-rate-limit": {says: "requests per min (RPM)", pause: 0.12},
	"openai-429-too-large":  {class: overBound, says: "Requested 36278"},
	"openai-500-server-error": {says: "server_error: The server had an error while processing your request " +
		"(request req_00000000000000b2)"},
	"openai-502-web-page":           {says: "502 Bad Gateway: the answer is a web page"},
	"openai-503-overloaded":         {says: "503 Service Unavailable: server_error: The engine"},
	"openai-200-cut":                {says: "stream ended before the reply did"},
	"openai-200-cut-in-a-call":      {says: "stream ended before the reply did"},
	"openai-200-done-too-early":     {says: "stream ended before the reply did"},
	"openai-200-error-in-stream":    {says: "server_error: The server had an error"},
	"openai-200-malformed":          {says: "no complete reply was received: invalid character"},
	"openai-200-too-long-in-stream": {class: overBound, says: "maximum context length is 128000 tokens"},
}

// replay sends a recorded answer, byte for byte, and ends the connection.
func replay(t *testing.T, w http.ResponseWriter, r *http.Request, recorded []byte) {
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	head, body, _ := bytes.Cut(recorded, []byte("\n\n"))
	// The client may be gone already, which is its right.
	_, _ = fmt.Fprintf(conn, "%s\r\nConnection: close\r\n\r\n%s", bytes.ReplaceAll(head, []byte("\n"), []byte("\r\n")),
		body)
	_ = conn.Close()
}

// fallible answers with a recording for the first times, then well.
func fallible(t *testing.T, kind string, recorded []byte, times int64) (p *provider, asked *atomic.Int64) {
	p, asked = newProvider(t, kind, func(int, ask) answer { return answer{text: "Done."} }), &atomic.Int64{}
	well := p.Config.Handler
	p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= times {
			replay(t, w, r, recorded)
			return
		}
		well.ServeHTTP(w, r)
	})
	return p, asked
}

// ask is asked, where a variable has that name.
type ask = asked

// SPEC A5, A6, C6: every answer that providers are known to give in trouble:
// whether it is asked again, what people read, what becomes of the turn and its
// message, and whether the runner goes on.
func TestC6_RecordedAnswers(t *testing.T) {
	files := must.Value(filepath.Glob(filepath.Join("testdata", "answers", "*.http")))(t)
	require.Len(t, files, len(answers), "each recording has its class in the table")
	r := newRig(t)
	for i, file := range files {
		if testing.Short() && i%5 > 0 {
			continue // go test -short tries some; make test tries all
		}
		name := strings.TrimSuffix(filepath.Base(file), ".http")
		t.Run(name, func(t *testing.T) {
			want, known := answers[name]
			require.True(t, known, "its class stands in the table")
			recorded := must.Value(os.ReadFile(file))(t)
			kind, _, _ := strings.Cut(name, "-")
			r.t, r.out = t, buffer{}
			agentID := strings.ReplaceAll(name, ".", "-")
			c := &recordedCase{rig: r, agentID: agentID, kind: kind, recorded: recorded}
			c.spawn()

			id := c.say("Try.")
			const attempts = 2
			asked, err := c.run(1000, attempts)
			turn := c.lastTurn()
			require.Zero(t, turn.GetRounds(), "nothing of a reply that did not come whole was submitted")
			switch want.class {
			case passes:
				require.NoError(t, err)
				require.EqualValues(t, attempts, asked)
				require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_RETRYABLE, turn.GetEndReason())
				require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, c.message(id))
				require.Len(t, r.events("retry"), attempts-1)
				require.Contains(t, r.events("retry")[0]["text"], want.says)
				require.GreaterOrEqual(t, r.events("retry")[0]["seconds"], want.pause)
			case unpaid, denied, misconfigured:
				require.ErrorContains(t, err, want.says, "the runner ends")
				if want.class == denied {
					require.ErrorContains(t, err, runner.KeyVariable(kind), "it says which key")
				}
				require.EqualValues(t, 1, asked, "asking again would cost nothing and bring nothing")
				require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_RELEASED, turn.GetEndReason())
				require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, c.message(id),
					"the message is not to blame")
				for range 4 { // however often it is started before somebody mends it
					_, err = c.run(1000, attempts)
					require.ErrorContains(t, err, want.says)
				}
				require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, c.message(id))
			case overBound:
				require.NoError(t, err)
				require.EqualValues(t, 1, asked,
					"there is nothing to drop yet, and the same again would not fit either")
				require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_BASELINE_OVER_BUDGET, turn.GetEndReason())
				require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, c.message(id))
			case refused:
				require.NoError(t, err)
				require.EqualValues(t, 1, asked)
				require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FATAL, turn.GetEndReason())
				require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, c.message(id))
			}
			ended := r.events("turn_ended")
			require.Contains(t, ended[len(ended)-1]["text"], want.says)
			require.NotContains(t, r.out.String(), "sk-secret-key")
			if c.message(id) == agentv1.MessageState_MESSAGE_STATE_QUARANTINED {
				require.Contains(t, c.failure(), want.says, "the operator is told (SPEC C3)")
				return
			}

			// The same once only: the next reply is taken as if nothing had been.
			asked, err = c.run(1, attempts)
			if want.class == unpaid || want.class == denied || want.class == misconfigured {
				require.Error(t, err)
				_, err = c.run(0, attempts) // somebody paid, or gave another key
			} else {
				require.EqualValues(t, 2, asked)
			}
			require.NoError(t, err)
			require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FINISHED, c.lastTurn().GetEndReason())
			require.EqualValues(t, 1, c.lastTurn().GetRounds())
			require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED, c.message(id))
		})
	}
}

// recordedCase is one recording, and an agent of its own.
type recordedCase struct {
	*rig
	agentID, kind string
	recorded      []byte
}

func (c *recordedCase) spawn() {
	must.Value(c.Agents.SpawnAgent(dev.Within(c.t), &agentv1.SpawnAgentRequest{
		AgentId: c.agentID,
		Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(c.t)
}

func (c *recordedCase) say(text string) string {
	return must.Value(c.Agents.EnqueueMessage(dev.Within(c.t), &agentv1.EnqueueMessageRequest{
		AgentId: c.agentID,
		Text:    text,
	}))(c.t).GetMessageId()
}

func (c *recordedCase) message(id string) agentv1.MessageState {
	resp, err := c.Agents.GetMessage(dev.Within(c.t), &agentv1.GetMessageRequest{AgentId: c.agentID, MessageId: id})
	require.NoError(c.t, err)
	return resp.GetMessage().GetState()
}

func (c *recordedCase) lastTurn() *agentv1.Turn {
	resp, err := c.Agents.ListTurns(dev.Within(c.t), &agentv1.ListTurnsRequest{AgentId: c.agentID, PageSize: 1})
	require.NoError(c.t, err)
	require.NotEmpty(c.t, resp.GetTurns())
	return resp.GetTurns()[0]
}

func (c *recordedCase) failure() string {
	resp := must.Value(c.Agents.ListBriefs(dev.Within(c.t), &agentv1.ListBriefsRequest{
		AgentId: c.agentID,
		Kind:    agentv1.BriefKind_BRIEF_KIND_FAILURE,
	}))(c.t)
	require.Len(c.t, resp.GetBriefs(), 1)
	return resp.GetBriefs()[0].GetText()
}

// run lets the provider answer with the recording for the first times, and gives
// how often it was asked in one turn.
func (c *recordedCase) run(times int64, attempts int) (int64, error) {
	p, asked := fallible(c.t, c.kind, c.recorded, times)
	run := must.Value(runner.New(runner.Config{
		AgentIDs: []string{c.agentID}, Provider: c.kind, Model: "test-model", BaseURL: p.base(), Key: "sk-secret-key",
		MaxTurns: 1, Attempts: attempts,
		Backoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond, Out: &c.out, JSON: true, Transport: c.transport,
	}, c.Client))(c.t)
	err := run.Run(dev.Within(c.t))
	return asked.Load(), err
}

// A provider that asks for patience gets it, and an abort does not wait for it
// (SPEC A7).
func TestC6_AnAbortDoesNotWaitForTheProvidersPause(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		p := newProvider(t, kind, func(int, asked) answer {
			return answer{status: http.StatusTooManyRequests, body: anthropic429, after: "86400"}
		})
		id := r.say("try", agentv1.Priority_PRIORITY_NORMAL)
		done := make(chan error, 1)
		go func() { done <- r.run(p, nil) }()
		require.Eventually(t, func() bool { return strings.Contains(r.out.String(), `"event":"retry"`) }, time.Minute,
			5*time.Millisecond)
		require.GreaterOrEqual(t, r.events("retry")[0]["seconds"], 86400.0)
		must.Value(r.Agents.AbortRun(context.Background(), &agentv1.AbortRunRequest{AgentId: "keeper"}))(t)
		require.NoError(t, <-done)
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_ABORTED, r.message(id).GetState())
		require.Len(t, p.all(), 1)
	})
}

// A provider that says nothing, before or in the middle of its reply, is given up
// and asked again: no turn hangs on a connection whose other end is gone.
func TestC6_ASilentProviderIsGivenUp(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		release := make(chan struct{})
		p := newProvider(t, kind, func(n int, _ asked) answer {
			switch n {
			case 0:
				<-release
				return answer{status: http.StatusBadGateway}
			case 1:
				return answer{text: "I was about to", hold: make(chan struct{})}
			}
			return answer{text: "Done."}
		})
		id := r.say("try", agentv1.Priority_PRIORITY_NORMAL)
		err := r.run(p, func(c *runner.Config) { c.Silence, c.Attempts = time.Second, 10 })
		close(release)
		require.NoError(t, err)
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED, r.message(id).GetState())
		retries := r.events("retry")
		require.GreaterOrEqual(t, len(retries), 2)
		for _, e := range retries {
			require.Contains(t, e["text"], "the provider sent nothing for 1s")
		}
	})
}

// Replies that are good, though not as the SDKs expect: what the model said and
// called arrives, once each. A reply that is not to be given fails for good.
func TestC6_RecordedReplies(t *testing.T) {
	replies := map[string]struct {
		text  string
		items []string // that the calls made
		calls int
		asked int64
		fails string
	}{
		"anthropic-context-exceeded":        {text: "I begin to", asked: 2},
		"anthropic-refusal":                 {fails: "declined to reply", asked: 1},
		"anthropic-thinking-and-new-events": {text: "Well.", calls: 1, asked: 2},
		"openai-comments":                   {text: "Well.", asked: 1},
		"openai-content-filter":             {fails: "declined to reply", asked: 1},
		"openai-id-with-every-part":         {items: []string{"One"}, calls: 1, asked: 2},
		"openai-index-always-0":             {items: []string{"One", "Two"}, calls: 2, asked: 2},
		"openai-no-ids":                     {items: []string{"One", "Two"}, calls: 2, asked: 2},
		"openai-plain-text":                 {text: "Well.", asked: 1},
		"openai-refusal":                    {text: "I will not do that.", asked: 1},
	}
	files := must.Value(filepath.Glob(filepath.Join("testdata", "replies", "*.http")))(t)
	require.Len(t, files, len(replies))
	r := newRig(t)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".http")
		t.Run(name, func(t *testing.T) {
			want, known := replies[name]
			require.True(t, known)
			recorded := must.Value(os.ReadFile(file))(t)
			kind, _, _ := strings.Cut(name, "-")
			r.t, r.out = t, buffer{}
			c := &recordedCase{rig: r, agentID: name, kind: kind, recorded: recorded}
			c.spawn()
			id := c.say("Try.")
			require.Equal(t, want.asked, must.Value(c.run(1, 2))(t))
			if want.fails != "" {
				require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FATAL, c.lastTurn().GetEndReason())
				require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, c.message(id))
				require.Contains(t, c.failure(), want.fails)
				return
			}
			require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FINISHED, c.lastTurn().GetEndReason())
			got, err := c.Agents.GetTurn(dev.Within(t), &agentv1.GetTurnRequest{AgentId: name, TurnId: c.lastTurn().
				GetTurnId()})
			require.NoError(t, err)
			first := got.GetRounds()[0]
			require.Equal(t, want.text, first.GetText())
			require.Len(t, first.GetToolCalls(), want.calls)
			var items []string
			for _, c := range first.GetToolCalls() {
				require.NotEmpty(t, c.GetCallId())
				if c.GetName() == "CreateWorkItem" {
					items = append(items, c.GetArguments().GetFields()["objective"].GetStringValue())
				}
			}
			require.Equal(t, want.items, items)
			for _, result := range first.GetToolResults() {
				require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, result.GetStatus(), result.GetSummaryText())
			}
		})
	}
}
