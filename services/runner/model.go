package runner

import (
	"context"
	"encoding/json"
)

// Model is a provider's API. Reply requests one reply and calls onText with each part of
// its text. It returns the complete answer or an error; a stream that ends early is an
// error.
type Model interface {
	Reply(ctx context.Context, req Request, onText func(string)) (*Answer, error)
}

// Request is the input of a model.
type Request struct {
	System  string
	Entries []Entry
	Tools   []Tool
}

// Entry is one message of the conversation: text and calls of the model, or results and
// text for it.
type Entry struct {
	Assistant bool // of the model; otherwise for it
	Text      string
	Calls     []Call
	Results   []Result
}

// Tool is the description of a tool for the model.
type Tool struct {
	Name, Description string
	Schema            map[string]any // JSON Schema of the arguments
}

// Call is a tool call as the model wrote it.
type Call struct {
	ID, Name  string
	Arguments json.RawMessage
}

// Result is the result of a call as the model reads it.
type Result struct {
	CallID, Text string
	Failed       bool // Text is an error
}

// Answer is a complete reply.
type Answer struct {
	Text                      string
	Calls                     []Call
	InputTokens, OutputTokens int64
	// CutOff is true if the reply was ended by the limit of tokens.
	CutOff bool
}

// object returns raw if it is a JSON object, otherwise an empty object: providers demand
// an object even if the model wrote none.
func object(raw json.RawMessage) json.RawMessage {
	var o map[string]any
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return json.RawMessage("{}")
	}
	return raw
}
