//go:build !nomodels

package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

// gpt implements Model with the Chat Completions API, which other servers have too.
type gpt struct {
	chat      openai.ChatCompletionService
	model     string
	maxTokens int64
}

// newOpenAI returns the Model of a server with OpenAI's API.
func newOpenAI(cfg Config, hc *http.Client) Model {
	// NewClient would read further settings and keys from the environment.
	return &gpt{model: cfg.Model, maxTokens: int64(cfg.MaxTokens), chat: openai.NewChatCompletionService(
		option.WithBaseURL(cfg.BaseURL), option.WithAPIKey(cfg.Key),
		option.WithHTTPClient(hc), option.WithMaxRetries(0), // the runner repeats calls itself
	)}
}

// Reply implements Model.
func (m *gpt) Reply(ctx context.Context, req Request, onText func(string)) (*Answer, error) {
	stream := m.chat.NewStreaming(ctx, m.params(req))
	defer func() { _ = stream.Close() }()
	out := &Answer{}
	var text strings.Builder
	finished := ""
	var arguments []*strings.Builder // of out.Calls
	at := map[int64]int{}            // position in out.Calls of the last call with this index
	for stream.Next() {
		chunk := stream.Current()
		if u := chunk.Usage; u.PromptTokens+u.CompletionTokens > 0 {
			out.InputTokens, out.OutputTokens = u.PromptTokens, u.CompletionTokens
		}
		for _, c := range chunk.Choices {
			if c.Index != 0 {
				continue
			}
			if part := c.Delta.Content + c.Delta.Refusal; part != "" {
				text.WriteString(part)
				onText(part)
			}
			for _, d := range c.Delta.ToolCalls {
				// Compatible servers repeat the id with every part, or count all
				// calls as the first one.
				i, known := at[d.Index]
				if !known || d.ID != "" && out.Calls[i].ID != "" && d.ID != out.Calls[i].ID {
					i = len(out.Calls)
					at[d.Index] = i
					out.Calls, arguments = append(out.Calls, Call{}), append(arguments, &strings.Builder{})
				}
				out.Calls[i].ID = cmp.Or(out.Calls[i].ID, d.ID)
				out.Calls[i].Name = cmp.Or(out.Calls[i].Name, d.Function.Name)
				_, _ = arguments[i].WriteString(d.Function.Arguments) // a strings.Builder does not fail
			}
			if c.FinishReason != "" {
				finished = c.FinishReason
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	switch finished {
	case "":
		return nil, errCut
	case "content_filter":
		return nil, errDeclined
	}
	out.Text, out.CutOff = text.String(), finished == "length"
	for i := range out.Calls {
		out.Calls[i].Arguments = json.RawMessage(arguments[i].String())
	}
	return out, nil
}

// params translates a request into one of the API.
func (m *gpt) params(req Request) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{
		Model: m.model, Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(req.System)},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	if m.maxTokens > 0 {
		p.MaxCompletionTokens = openai.Int(m.maxTokens)
	}
	for _, t := range req.Tools {
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: t.Name, Description: openai.String(t.Description), Parameters: t.Schema,
		}))
	}
	for _, e := range req.Entries {
		for _, r := range e.Results {
			p.Messages = append(p.Messages, openai.ToolMessage(r.Text, r.CallID))
		}
		if !e.Assistant {
			if e.Text != "" {
				p.Messages = append(p.Messages, openai.UserMessage(e.Text))
			}
			continue
		}
		message := &openai.ChatCompletionAssistantMessageParam{}
		if e.Text != "" {
			message.Content.OfString = openai.String(e.Text)
		}
		for _, c := range e.Calls {
			message.ToolCalls = append(message.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID: c.ID, Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
						Name: c.Name, Arguments: string(object(c.Arguments)),
					},
				},
			})
		}
		p.Messages = append(p.Messages, openai.ChatCompletionMessageParamUnion{OfAssistant: message})
	}
	return p
}
