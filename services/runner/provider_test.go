//go:build !nomodels

package runner_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/services/runner"
)

// asked is what a provider was asked, in one shape for both.
type asked struct {
	system  string
	texts   []string // of the user's side, in order
	results []string // of tools, in order
	tools   []string
	key     string
}

// answer is a step of a script: what the model says, or how it fails.
type answer struct {
	text  string
	calls []toolCall
	// status answers with an error instead, with this body and header.
	status int
	body   string
	after  string
	// hold keeps the stream open after the text until the client leaves.
	hold chan<- struct{}
	// length says that the reply ended at the limit of tokens.
	length bool
}

type toolCall struct {
	name string
	args any
	raw  string // instead of args: what no JSON is
}

// provider is a server that speaks a provider's streaming wire format, and
// follows a script.
type provider struct {
	t    *testing.T
	kind string
	*httptest.Server
	script func(n int, a asked) answer

	mu   sync.Mutex
	asks []asked
}

func newProvider(t *testing.T, kind string, script func(n int, a asked) answer) *provider {
	p := &provider{t: t, kind: kind, script: script}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) all() []asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]asked(nil), p.asks...)
}

func (p *provider) base() string {
	if p.kind == runner.OpenAI {
		return p.URL + "/v1"
	}
	return p.URL
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := map[string]string{runner.Anthropic: "/v1/messages", runner.OpenAI: "/v1/chat/completions"}[p.kind]
	if r.URL.Path != want || r.Method != http.MethodPost {
		http.Error(w, "no such address: "+r.URL.Path, http.StatusNotFound)
		return
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a := p.parse(raw)
	a.key = r.Header.Get("X-Api-Key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	p.mu.Lock()
	n := len(p.asks)
	p.asks = append(p.asks, a)
	p.mu.Unlock()
	said := p.script(n, a)
	if said.status != 0 {
		if said.after != "" {
			w.Header().Set("Retry-After", said.after)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(said.status)
		io.WriteString(w, said.body)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if p.kind == runner.OpenAI {
		p.openai(w, r, said)
	} else {
		p.anthropic(w, r, said)
	}
}

// parse reads either provider's request.
func (p *provider) parse(raw []byte) asked {
	var body struct {
		Model    string
		Stream   bool
		System   []struct{ Text string }
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Name        string
			InputSchema map[string]any `json:"input_schema"`
			Function    struct {
				Name       string
				Parameters map[string]any
			}
		}
	}
	if err := json.Unmarshal(raw, &body); err != nil || !body.Stream || body.Model != "test-model" {
		p.t.Errorf("the request is not one: %v\n%s", err, raw)
	}
	var a asked
	for _, s := range body.System {
		a.system += s.Text
	}
	for _, t := range body.Tools {
		a.tools = append(a.tools, t.Name+t.Function.Name)
		if t.InputSchema["type"] != "object" && t.Function.Parameters["type"] != "object" {
			p.t.Errorf("tool %s%s has no schema of an object", t.Name, t.Function.Name)
		}
	}
	for _, m := range body.Messages {
		var text string
		var blocks []struct {
			Type, Text string
			Content    json.RawMessage
		}
		if json.Unmarshal(m.Content, &text) != nil {
			_ = json.Unmarshal(m.Content, &blocks)
		}
		switch m.Role {
		case "system":
			a.system = text
		case "tool":
			a.results = append(a.results, text)
		case "user":
			if text != "" {
				a.texts = append(a.texts, text)
			}
			for _, b := range blocks {
				if b.Type == "tool_result" {
					a.results = append(a.results, string(b.Content))
				} else {
					a.texts = append(a.texts, b.Text)
				}
			}
		}
	}
	return a
}

func send(w http.ResponseWriter, format string, args ...any) {
	fmt.Fprintf(w, format, args...)
	w.(http.Flusher).Flush()
}

func (c toolCall) json() string {
	if c.raw != "" {
		return c.raw
	}
	raw, _ := json.Marshal(c.args)
	if c.args == nil {
		return "{}"
	}
	return string(raw)
}

func quoted(s string) string {
	raw, _ := json.Marshal(s)
	return string(raw)
}

// anthropic streams as the Messages API does.
func (p *provider) anthropic(w http.ResponseWriter, r *http.Request, said answer) {
	event := func(name, data string) { send(w, "event: %s\ndata: %s\n\n", name, data) }
	event("message_start",
		`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"test-model","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":20,"cache_read_input_tokens":5,"output_tokens":1}}}`)
	event("ping", `{"type":"ping"}`)
	index := 0
	if said.text != "" {
		event("content_block_start",
			`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
		for _, part := range halves(said.text) {
			event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+
				quoted(part)+`}}`)
		}
		if said.hold != nil {
			close(said.hold)
			<-r.Context().Done()
			return
		}
		event("content_block_stop", `{"type":"content_block_stop","index":0}`)
		index++
	}
	stop := "end_turn"
	for i, c := range said.calls {
		stop = "tool_use"
		event("content_block_start",
			fmt.Sprintf(
				`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"toolu_%d_%d","name":%s,"input":{}}}`, index, len(p.all()), i, quoted(c.name)))
		for _, part := range halves(c.json()) {
			event("content_block_delta",
				fmt.Sprintf(
					`{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%s}}`,
					index, quoted(part)))
		}
		event("content_block_stop", fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index))
		index++
	}
	if said.length {
		stop = "max_tokens"
	}
	event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"`+stop+
		`","stop_sequence":null},"usage":{"output_tokens":15}}`)
	event("message_stop", `{"type":"message_stop"}`)
}

// openai streams as the Chat Completions API does.
func (p *provider) openai(w http.ResponseWriter, r *http.Request, said answer) {
	chunk := func(delta, finish string) {
		send(w, "data: %s\n\n",
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":`+delta+`,"finish_reason":`+finish+`}]}`)
	}
	chunk(`{"role":"assistant","content":""}`, "null")
	if said.text != "" {
		for _, part := range halves(said.text) {
			chunk(`{"content":`+quoted(part)+`}`, "null")
		}
	}
	if said.hold != nil {
		close(said.hold)
		<-r.Context().Done()
		return
	}
	stop := "stop"
	for i, c := range said.calls {
		stop = "tool_calls"
		chunk(fmt.Sprintf(
			`{"tool_calls":[{"index":%d,"id":"call_%d_%d","type":"function","function":{"name":%s,"arguments":""}}]}`,
			i, len(p.all()), i, quoted(c.name)), "null")
		for _, part := range halves(c.json()) {
			chunk(fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, i, quoted(part)), "null")
		}
	}
	if said.length {
		stop = "length"
	}
	chunk(`{}`, `"`+stop+`"`)
	send(w, "data: %s\n\n",
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[],"usage":{"prompt_tokens":25,"completion_tokens":15,"total_tokens":40}}`)
	send(w, "data: [DONE]\n\n")
}

func halves(s string) []string {
	r := []rune(s)
	return []string{string(r[:len(r)/2]), string(r[len(r)/2:])}
}

// lines returns the events of -o json.
func lines(t *testing.T, out *bytes.Buffer) []map[string]any {
	var all []map[string]any
	for _, l := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &e), l)
		all = append(all, e)
	}
	return all
}
