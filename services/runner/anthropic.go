//go:build !nomodels

package runner

import (
	"context"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// defaultMaxTokens limits a reply. The provider demands a limit.
const defaultMaxTokens = 8192

// claude implements Model with the Messages API.
type claude struct {
	client    anthropic.Client
	model     string
	maxTokens int64
}

// newAnthropic returns the Model of Anthropic's API.
func newAnthropic(cfg Config, hc *http.Client) Model {
	m := &claude{model: cfg.Model, maxTokens: int64(cfg.MaxTokens)}
	if m.maxTokens <= 0 {
		m.maxTokens = defaultMaxTokens
	}
	m.client = anthropic.NewClient(
		option.WithoutEnvironmentDefaults(), option.WithBaseURL(cfg.BaseURL), option.WithAPIKey(cfg.Key),
		option.WithHTTPClient(hc), option.WithMaxRetries(0), // the runner repeats calls itself
	)
	return m
}

// Reply implements Model.
func (m *claude) Reply(ctx context.Context, req Request, onText func(string)) (*Answer, error) {
	stream := m.client.Messages.NewStreaming(ctx, m.params(req))
	defer func() { _ = stream.Close() }()
	var message anthropic.Message
	stopped := false
	for stream.Next() {
		event := stream.Current()
		if err := message.Accumulate(event); err != nil {
			return nil, err
		}
		switch e := event.AsAny().(type) {
		case anthropic.ContentBlockDeltaEvent:
			if e.Delta.Type == "text_delta" {
				onText(e.Delta.Text)
			}
		case anthropic.MessageStopEvent:
			stopped = true
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if !stopped {
		return nil, errCut
	}
	if message.StopReason == anthropic.StopReasonRefusal {
		return nil, errDeclined
	}
	// A reply that reaches the end of the context window is treated like one that reaches
	// the limit of tokens; the next request then does not fit.
	out := &Answer{
		InputTokens: message.Usage.InputTokens + message.Usage.CacheReadInputTokens +
			message.Usage.CacheCreationInputTokens,
		OutputTokens: message.Usage.OutputTokens, CutOff: message.StopReason == anthropic.StopReasonMaxTokens ||
			message.StopReason == anthropic.StopReasonModelContextWindowExceeded,
	}
	for _, b := range message.Content {
		switch b.Type {
		case "text":
			out.Text += b.Text
		case "tool_use":
			out.Calls = append(out.Calls, Call{ID: b.ID, Name: b.Name, Arguments: b.Input})
		}
	}
	return out, nil
}

// params translates a request into one of the API.
func (m *claude) params(req Request) anthropic.MessageNewParams {
	p := anthropic.MessageNewParams{
		Model: m.model, MaxTokens: m.maxTokens,
		// The tools and the system text do not change within a turn, so they are cached.
		System: []anthropic.TextBlockParam{{Text: req.System, CacheControl: anthropic.NewCacheControlEphemeralParam()}},
	}
	for _, t := range req.Tools {
		schema := anthropic.ToolInputSchemaParam{Properties: t.Schema["properties"], ExtraFields: map[string]any{}}
		for k, v := range t.Schema {
			if k != "properties" && k != "type" {
				schema.ExtraFields[k] = v
			}
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{
			Name: t.Name, Description: anthropic.String(t.Description), InputSchema: schema,
		}})
	}
	for _, e := range req.Entries {
		var blocks []anthropic.ContentBlockParamUnion
		for _, r := range e.Results {
			blocks = append(blocks, anthropic.NewToolResultBlock(r.CallID, r.Text, r.Failed))
		}
		if e.Text != "" {
			blocks = append(blocks, anthropic.NewTextBlock(e.Text))
		}
		for _, c := range e.Calls {
			blocks = append(blocks, anthropic.NewToolUseBlock(c.ID, object(c.Arguments), c.Name))
		}
		if e.Assistant {
			p.Messages = append(p.Messages, anthropic.NewAssistantMessage(blocks...))
		} else {
			p.Messages = append(p.Messages, anthropic.NewUserMessage(blocks...))
		}
	}
	return p
}
