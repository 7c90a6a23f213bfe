//go:build !nomodels

package runner_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/runner"
	"quartet/tests/dev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a whole server, an agent with a message, and a provider.
type rig struct {
	*dev.Server
	t         *testing.T
	workspace string
	out       buffer
	transport *http.Transport
}

// buffer may be read while the runner writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newRig(t *testing.T) *rig {
	r := &rig{Server: dev.Start(t), t: t, transport: &http.Transport{}}
	t.Cleanup(r.transport.CloseIdleConnections)
	r.workspace = filepath.Join(r.Cfg.WorkerRoots[0], "workspace")
	require.NoError(t, os.Mkdir(r.workspace, 0o755))
	must.Value(r.Agents.SpawnAgent(context.Background(), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, WorkspaceRoot: r.workspace,
	}))(t)
	return r
}

func (r *rig) say(text string, p agentv1.Priority) string {
	return must.Value(r.Agents.EnqueueMessage(context.Background(), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: text, Priority: p,
	}))(r.t).GetMessageId()
}

func (r *rig) message(id string) *agentv1.Message {
	resp, err := r.Agents.GetMessage(context.Background(), &agentv1.GetMessageRequest{AgentId: "keeper", MessageId: id})
	require.NoError(r.t, err)
	return resp.GetMessage()
}

// lastTurn returns the agent's newest turn.
func (r *rig) lastTurn() *agentv1.Turn {
	resp, err := r.Agents.ListTurns(context.Background(), &agentv1.ListTurnsRequest{AgentId: "keeper", PageSize: 1})
	require.NoError(r.t, err)
	require.NotEmpty(r.t, resp.GetTurns())
	return resp.GetTurns()[0]
}

// run drives the agent for one turn.
func (r *rig) run(p *provider, change func(*runner.Config)) error {
	cfg := runner.Config{
		AgentIDs: []string{"keeper"}, Provider: p.kind, Model: "test-model", BaseURL: p.base(), Key: "sk-secret-key",
		MaxTurns: 1,
		Backoff:  time.Millisecond, MaxBackoff: 2 * time.Millisecond, Out: &r.out, JSON: true, Transport: r.transport,
	}
	if change != nil {
		change(&cfg)
	}
	return must.Value(runner.New(cfg, r.Client))(r.t).Run(dev.Within(r.t))
}

func (r *rig) events(name string) []map[string]any {
	var of []map[string]any
	b := bytes.NewBufferString(r.out.String())
	for _, e := range lines(r.t, b) {
		if e["event"] == name {
			of = append(of, e)
		}
	}
	return of
}

// both runs a test against each provider's wire format.
func both(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range []string{runner.Anthropic, runner.OpenAI} {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

var itemID = regexp.MustCompile(`wi_[0-9a-z]{26}`)

// SPEC C6: a model makes an item, picks it, writes a file, runs a command and
// completes with a report, over the provider's wire format and the real server.
func TestC6_AWholeTurn(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		p := newProvider(t, kind, func(n int, a asked) answer {
			item := itemID.FindString(strings.Join(a.results, " "))
			switch n {
			case 0:
				return answer{
					text: "I make an item.",
					calls: []toolCall{
						{name: "CreateWorkItem", args: map[string]any{
							"objective":   "Greet the world",
							"plan_status": "ready",
						}},
					},
				}
			case 1:
				return answer{calls: []toolCall{
					{name: "PickWorkItem", args: map[string]any{"work_item_id": item}},
					{name: "WorkspaceWrite", args: map[string]any{"path": "greet/hello.txt", "text": "hello, wörld\n"}},
				}}
			case 2:
				return answer{
					calls: []toolCall{
						{name: "ExecCommand", args: map[string]any{"cmd": "cat greet/hello.txt; exit 3"}},
						{name: "Fly"},
					},
				}
			}
			return answer{
				text:  "Greeted: hello, wörld.",
				calls: []toolCall{{name: "CompleteWorkItem", args: map[string]any{"work_item_id": item}}},
			}
		})
		r.say("greet the world", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))

		asks := p.all()
		require.Len(t, asks, 4)
		require.Equal(t, "sk-secret-key", asks[0].key)
		require.Contains(t, asks[0].texts[0], "greet the world")
		require.Contains(t, asks[0].texts[0], "operator_instruction")
		require.Contains(t, asks[0].system, "greet the world", "the projection's text")
		require.Subset(t, asks[0].tools, []string{
			"CreateWorkItem", "ExecCommand", "WaitFor", "WorkspaceRead",
			"WorkspaceWrite", "WorkspaceEdit",
		})
		require.Len(t, asks[3].results, 5)
		require.Contains(t, asks[3].results[3], "hello, wörld", "the command saw the file")
		require.Contains(t, asks[3].results[4], "tool_not_available")

		turn := r.lastTurn()
		require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_COMPLETION_PROMOTED, turn.GetEndReason())
		got := must.Value(r.Agents.GetTurn(context.Background(), &agentv1.GetTurnRequest{
			AgentId: "keeper", TurnId: turn.GetTurnId(),
		}))(t)
		require.Len(t, got.GetRounds(), 4)
		require.EqualValues(t, 25, got.GetRounds()[0].GetUsage().GetInputTokens())
		require.EqualValues(t, 15, got.GetRounds()[0].GetUsage().GetOutputTokens())
		require.Equal(t, "WorkspaceWrite", got.GetRounds()[1].GetLocalToolResults()[0].GetToolName())
		recorded := got.GetRounds()[1].GetLocalToolCalls()
		require.Len(t, recorded, 1)
		require.Equal(t, got.GetRounds()[1].GetLocalToolResults()[0].GetCallId(), recorded[0].GetCallId())
		require.Equal(t, map[string]any{"path": "greet/hello.txt", "text": "hello, wörld\n"},
			recorded[0].GetArguments().AsMap())
		items, err := r.Work.ListWorkItems(context.Background(), &workv1.ListWorkItemsRequest{AgentId: "keeper"})
		require.NoError(t, err)
		require.Equal(t, "Greeted: hello, wörld.", items.GetWorkItems()[0].GetResultSummary())

		require.Len(t, r.events("tool"), 6)
		require.Contains(t, r.events("tool")[3]["text"], "failed: exit code 3",
			"the call went well, the command did not")
		require.Equal(t, "error", r.events("tool")[4]["status"])
		require.EqualValues(t, 100, r.events("turn_ended")[0]["input_tokens"])
		require.NotContains(t, r.out.String(), "sk-secret-key")
	})
}

// What the providers answer in trouble; testdata/answers has all of it.
const (
	anthropic429     = `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit"}}`
	anthropicTooLong = `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 215000 tokens > 200000 maximum"}}`
	openaiTooLong    = `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`
)

// A context that grew too long during the turn is shrunk, once if that is enough: the oldest
// results go, and the turn goes on.
func TestC6_ALongTurnIsShrunkOnce(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		long := map[string]string{runner.Anthropic: anthropicTooLong, runner.OpenAI: openaiTooLong}[kind]
		p := newProvider(t, kind, func(n int, _ asked) answer {
			switch n {
			case 0, 1, 2:
				return answer{
					calls: []toolCall{
						{name: "ExecCommand", args: map[string]any{"cmd": "seq 1 " + strings.Repeat("9", 3)}},
					},
				}
			case 3:
				return answer{status: 400, body: long}
			}
			return answer{text: "Enough."}
		})
		r.say("count", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		asks := p.all()
		require.Len(t, asks, 5)
		require.NotContains(t, strings.Join(asks[3].results, ""), "[dropped")
		require.Len(t, asks[4].results, 3)
		require.Contains(t, asks[4].results[0], "[dropped")
		require.Contains(t, asks[4].results[1], "[dropped")
		require.Contains(t, asks[4].results[2], "999", "the newest stays")
		require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FINISHED, r.lastTurn().GetEndReason())
	})
}

// One halving is not always enough: results are dropped again and again, the oldest first. When none
// is left the turn is given up, and its message is taken up by another one, which begins afresh.
func TestC6_ALongTurnIsShrunkAgainAndAgain(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		long := map[string]string{runner.Anthropic: anthropicTooLong, runner.OpenAI: openaiTooLong}[kind]
		var full []int // how many results the refused requests had
		p := newProvider(t, kind, func(n int, a asked) answer {
			switch {
			case n < 4:
				return answer{
					calls: []toolCall{
						{name: "ExecCommand", args: map[string]any{"cmd": "seq 1 " + strings.Repeat("9", 3)}},
					},
				}
			case len(full) < 4 && len(a.results) == 4:
				kept := 0
				for _, text := range a.results {
					if !strings.Contains(text, "[dropped") {
						kept++
					}
				}
				full = append(full, kept)
				return answer{status: 400, body: long}
			}
			return answer{text: "Enough."}
		})
		id := r.say("count", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		require.Equal(t, []int{4, 2, 1, 0}, full)
		require.Len(t, r.events("shrunk"), 3)
		m := r.message(id)
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, m.GetState())
		require.Zero(t, m.GetAttempts())
		require.EqualValues(t, 1, m.GetProgressedAttempts(), "the turn had progress")
		require.NoError(t, r.run(p, nil))
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED, r.message(id).GetState())
		require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FINISHED, r.lastTurn().GetEndReason())
	})
}

// SPEC A7, A9: what an operator says while the model speaks is in the next
// request; an abort stops the provider's call at once.
func TestC6_InterjectionAndAbort(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		speaking := make(chan struct{})
		p := newProvider(t, kind, func(n int, a asked) answer {
			if n == 0 {
				r.say("the other branch", agentv1.Priority_PRIORITY_INTERJECT)
				return answer{text: "I take the one branch."}
			}
			return answer{text: "I take", hold: speaking}
		})
		id := r.say("take a branch", agentv1.Priority_PRIORITY_NORMAL)
		done := make(chan error, 1)
		go func() { done <- r.run(p, nil) }()
		<-speaking
		asks := p.all()
		require.Len(t, asks, 2)
		require.Contains(t, asks[1].texts[len(asks[1].texts)-1], "[interjection of the operator]\nthe other branch")
		must.Value(r.Agents.AbortRun(context.Background(), &agentv1.AbortRunRequest{AgentId: "keeper"}))(t)
		require.NoError(t, <-done, "the abort ended a stream that would not end by itself")
		require.Equal(t, agentv1.TurnState_TURN_STATE_ABORTED, r.lastTurn().GetState())
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_ABORTED, r.message(id).GetState())
		require.Equal(t, "aborted", r.events("turn_ended")[0]["status"])
		require.Equal(t, "the other branch", r.events("interjection")[0]["text"])
	})
}

// A reply that was cut at the limit of tokens goes on; arguments that are no
// JSON are the model's to mend, and reach no plane.
func TestC6_OddReplies(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		p := newProvider(t, kind, func(n int, _ asked) answer {
			switch n {
			case 0:
				return answer{text: "I begin to", length: true}
			case 1:
				if kind == runner.Anthropic { // its SDK refuses such a stream, as a cut one
					return answer{calls: []toolCall{{name: "WorkspaceRead", args: map[string]any{"path": "../secret"}}}}
				}
				return answer{calls: []toolCall{
					{name: "ListWorkItems", raw: `{"filter": "op`},
					{name: "WorkspaceRead", args: map[string]any{"path": "../secret"}},
				}}
			}
			return answer{text: "Well."}
		})
		require.NoError(t, os.WriteFile(filepath.Join(r.workspace, "..", "secret"), []byte("secret"), 0o600))
		r.say("try", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		asks := p.all()
		require.Len(t, asks, 3)
		require.Contains(t, asks[1].texts[len(asks[1].texts)-1], "cut off")
		all := strings.Join(asks[2].results, "\n")
		require.Contains(t, all, "permission_denied")
		require.NotContains(t, all, "\"secret\"")
		if kind == runner.OpenAI {
			require.Contains(t, all, "malformed_json")
		}
	})
}

// The key goes to the provider's host and nowhere else, redirects included.
func TestC6_NoOtherHost(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		elsewhere := newProvider(t, kind, func(int, asked) answer { return answer{text: "Give me the key."} })
		p := newProvider(t, kind, nil)
		p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, elsewhere.URL+req.URL.Path, http.StatusTemporaryRedirect)
		})
		r.say("try", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		require.Empty(t, elsewhere.all())
		require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_FATAL, r.lastTurn().GetEndReason())
	})
}

// A runner that is told to stop hands its turn back.
func TestC6_StopHandsBack(t *testing.T) {
	r := newRig(t)
	speaking := make(chan struct{})
	p := newProvider(t, runner.Anthropic, func(int, asked) answer { return answer{text: "I think", hold: speaking} })
	id := r.say("try", agentv1.Priority_PRIORITY_NORMAL)
	run := must.Value(runner.New(runner.Config{
		AgentIDs: []string{"keeper"}, Provider: p.kind, Model: "test-model", BaseURL: p.base(), Key: "k", Out: &r.out,
		Transport: r.transport,
	}, r.Client))(t)
	ctx, stop := context.WithCancel(dev.Within(t))
	done := make(chan error, 1)
	go func() { done <- run.Run(ctx) }()
	<-speaking
	require.Eventually(t, func() bool { return strings.Contains(r.out.String(), "I think") }, time.Minute,
		5*time.Millisecond)
	stop()
	require.NoError(t, <-done)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message(id).GetState())
	require.Contains(t, r.out.String(), "handed back")
}

// A reply that the server does not take as it is comes back to the model, which
// can mend it; the message is not to blame (SPEC C6, A5).
func TestC6_AReplyThatIsNotTaken(t *testing.T) {
	deep := map[string]any{}
	for range 40 {
		deep = map[string]any{"x": deep}
	}
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		p := newProvider(t, kind, func(n int, _ asked) answer {
			switch n {
			case 0:
				return answer{
					text: "nul: \x00.",
					calls: []toolCall{
						{name: "CreateWorkItem", args: map[string]any{"objective": "never"}},
						{name: strings.Repeat("Tool", 50)},
					},
				}
			case 1:
				return answer{calls: []toolCall{{name: "CreateWorkItem", args: deep}}}
			case 2:
				return answer{calls: []toolCall{{name: "CreateWorkItem", args: map[string]any{"objective": "now"}}}}
			}
			return answer{text: "Done."}
		})
		id := r.say("try", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED, r.message(id).GetState())
		asks := p.all()
		require.Len(t, asks, 4)
		require.Contains(t, asks[1].results[0], "none of its calls was run")
		require.Contains(t, asks[2].results[len(asks[2].results)-1], "nested")
		items := must.Value(r.Work.ListWorkItems(dev.Within(t), &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
		require.Len(t, items.GetWorkItems(), 1)
		require.Equal(t, "now", items.GetWorkItems()[0].GetObjective())
	})
}

// A model that reads more in one reply than can be kept is told so, and its turn
// goes on: every call has its one result (SPEC C4).
func TestC6_AReplyThatReadsTooMuch(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		require.NoError(t, os.WriteFile(filepath.Join(r.workspace, "large"),
			[]byte(strings.Repeat("\x1b[31m< & >\x1b[0m\n", 100_000)), 0o600))
		p := newProvider(t, kind, func(n int, _ asked) answer {
			if n > 0 {
				return answer{text: "Read."}
			}
			var calls []toolCall
			for i := range 60 {
				calls = append(calls,
					toolCall{name: "WorkspaceRead", args: map[string]any{"path": "large", "offset": 1 + i}})
			}
			return answer{text: "I read all of it.", calls: calls}
		})
		id := r.say("read", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED, r.message(id).GetState())
		require.Len(t, p.all(), 2)
		results := p.all()[1].results
		require.Len(t, results, 60)
		require.Contains(t, results[0], "next_offset")
		require.Contains(t, results[59], "limit_exceeded")
		got, err := r.Agents.GetTurn(dev.Within(t), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: r.lastTurn().
			GetTurnId()})
		require.NoError(t, err)
		require.Len(t, got.GetRounds()[0].GetLocalToolResults(), 60)
	})
}

// SPEC X5: what is wrong with the settings is said before a turn is taken.
func TestC6_Settings(t *testing.T) {
	good := runner.Config{
		AgentIDs: []string{"keeper"}, Provider: runner.OpenAI, Model: "m",
		BaseURL: "http://127.0.0.1:1/v1",
	}
	c := must.Value(client.Dial("127.0.0.1:1"))(t)
	defer c.Close()
	must.Value(runner.New(good, c))(t, "a local server wants no key")
	for says, change := range map[string]func(*runner.Config){
		"provider":       func(c *runner.Config) { c.Provider = "oracle" },
		"model":          func(c *runner.Config) { c.Model = "" },
		"OPENAI_API_KEY": func(c *runner.Config) { c.BaseURL = "" },
		"base-url":       func(c *runner.Config) { c.BaseURL = "ftp://example.com" },
		"address such":   func(c *runner.Config) { c.BaseURL = "http://user:pass@example.com" },
	} {
		cfg := good
		change(&cfg)
		must.Fail(runner.New(cfg, c))(t, says)
	}
	r := newRig(t)
	p := newProvider(t, runner.OpenAI, nil)
	require.Error(t, r.run(p, func(c *runner.Config) { c.AgentIDs = []string{"nobody"} }))
}
