//go:build !nomodels

package runner

import (
	"errors"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// newModel returns the API of the provider, which New has validated. The error is nil in this build; see nomodels.go.
func newModel(cfg Config, hc *http.Client) (Model, error) {
	if cfg.Provider == OpenAI {
		return newOpenAI(cfg, hc), nil
	}
	return newAnthropic(cfg, hc), nil
}

// streamError returns the JSON of the error event of a stream that err wraps; ok is false if it wraps none. An answer
// with an error status is never an *anthropic.Error here: the HTTP client returns a *refusal in its place.
func streamError(err error) (event string, ok bool) {
	var a *anthropic.Error
	var o *ssestream.StreamError
	switch {
	case errors.As(err, &a):
		return a.RawJSON(), true
	case errors.As(err, &o):
		return string(o.Event.Data), true
	}
	return "", false
}
