package runner

import (
	"context"
	"encoding/json"
)

// Model is a provider's API. Reply streams one reply: onText hears its text as
// it comes. The answer is whole or there is an error; a stream that ends early
// is an error.
type Model interface {
	Reply(ctx context.Context, req Request, onText func(string)) (*Answer, error)
}

// Request is what a model is asked.
type Request struct {
	System  string
	Entries []Entry
	Tools   []Tool
}

// Entry is one side's part of the conversation: the model's text and calls, or
// results and text for the model.
type Entry struct {
	Assistant bool
	Text      string
	Calls     []Call
	Results   []Result
}

// Tool is described to the model as the server describes it.
type Tool struct {
	Name, Description string
	Schema            map[string]any
}

// Call is a tool call as the model wrote it.
type Call struct {
	ID, Name  string
	Arguments json.RawMessage
}

// Result is what a model is told of its call.
type Result struct {
	CallID, Text string
	Failed       bool
}

// Answer is a whole reply.
type Answer struct {
	Text                      string
	Calls                     []Call
	InputTokens, OutputTokens int64
	// CutOff: the reply ends at the limit of tokens.
	CutOff bool
}

// object gives arguments back as they may be sent: providers want an object,
// also where the model wrote none.
func object(raw json.RawMessage) json.RawMessage {
	var o map[string]any
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return json.RawMessage("{}")
	}
	return raw
}
