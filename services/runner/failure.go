package runner

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"quartet/pkg/utf8cut"
)

// errCut is the error of a stream that ended before its reply was complete.
var errCut = errors.New("the provider's stream ended before the reply did")

// errDeclined is the error of a reply that the model or a filter of the provider refused.
var errDeclined = errors.New("the model, or its provider's filter, declined to reply to this")

// class determines what the runner does about a provider's failure.
type class int

const (
	temporary     class = iota // retry after a pause
	tooLong                    // the context is too long for the model
	unpaid                     // the account has no credit: every turn fails until somebody pays
	denied                     // the credential is invalid: every turn fails
	misconfigured              // there is no such model or API: every turn fails
	refused                    // the request is invalid and will never succeed
	declined                   // the model or a filter declined to reply
)

// failure is a provider's error with its class.
type failure struct {
	class class
	after time.Duration // the pause that the provider demands; 0: none
	text  string        // for people; no header, no key
}

const overloadedStatus = 529 // Anthropic's status for "overloaded"

// classify returns the class of the error of a call to a provider, by the HTTP status of the answer and
// by phrases in its body or in an error event of its stream. Without a status and a known phrase, such
// as after a lost connection or for an incomplete stream, the class is temporary. errForeignHost is
// refused and errDeclined is declined.
func classify(err error) failure {
	r := &refusal{header: http.Header{}, body: err.Error()}
	event, inStream := streamError(err)
	switch {
	case errors.As(err, &r):
	case inStream:
		r.body = event
	// a lost connection, or a stream that is not JSON
	case !errors.Is(err, errCut) && !errors.Is(err, errDeclined) && !errors.Is(err, errForeignHost):
		r.body = "no complete reply was received: " + r.body
	}
	f := failure{text: r.text(), after: retryAfter(r.header)}
	text := strings.ToLower(r.body)
	switch status := r.status; {
	// the check of an SDK
	case errors.Is(err, errForeignHost), strings.Contains(err.Error(), "must match the configured base URL"):
		f.class = refused
	case errors.Is(err, errDeclined):
		f.class = declined
	case status == http.StatusPaymentRequired, status < http.StatusInternalServerError && contains(text, unpaidPhrases):
		f.class = unpaid
	case status == http.StatusForbidden && contains(text, declinedPhrases):
		f.class = declined
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.class = denied
	case status == http.StatusNotFound:
		f.class = misconfigured
	case status == http.StatusRequestEntityTooLarge, contains(text, tooLongPhrases):
		f.class = tooLong
	case status == 0, status == http.StatusRequestTimeout, status == http.StatusConflict,
		status == http.StatusTooManyRequests,
		status == overloadedStatus, status >= http.StatusInternalServerError:
		f.class = temporary
	default:
		f.class = refused
	}
	return f
}

// Phrases in the providers' errors, in lower case, for what the status does not tell.
var (
	// tooLongPhrases are those of Anthropic, of OpenAI and vLLM, of llama.cpp, and of other
	// compatible servers. OpenAI answers a request that is larger than the account's limit
	// per minute with 429, although waiting does not help; some servers answer 5xx.
	tooLongPhrases = []string{
		"prompt is too long", "exceed context limit",
		"context_length_exceeded", "maximum context length", "context window", "request too large for",
		"exceed_context_size_error", "available context size", "model token limit",
	}
	// declinedPhrases are in answers with 403 of providers that moderate requests:
	// this message is refused, but the key is valid.
	declinedPhrases = []string{"moderation", "was flagged", "content policy", "content_policy"}
	// unpaidPhrases are in answers with 400 and 429, although neither waiting nor another request
	// helps.
	unpaidPhrases = []string{
		"enforced_spend_limit_reached", "credit balance is too low", "specified api usage limits", "billing_error",
		"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached",
	}
)

// contains reports whether text contains one of the phrases.
func contains(text string, phrases []string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(text, p) })
}

// text describes the answer for people: the provider's message if there is one, and the
// request id, which its support needs.
func (e *refusal) text() string {
	text := e.body
	var answer struct {
		Error     json.RawMessage `json:"error"`
		Message   string          `json:"message"`
		RequestID string          `json:"request_id"`
	}
	if json.Unmarshal([]byte(e.body), &answer) == nil {
		var inner struct {
			Message string `json:"message"`
			Type    string `json:"type"`
		}
		var plain string
		switch {
		case json.Unmarshal(answer.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
			if inner.Type != "" {
				text = inner.Type + ": " + text
			}
		case json.Unmarshal(answer.Error, &plain) == nil && plain != "":
			text = plain
		case answer.Message != "":
			text = answer.Message
		}
	} else if kind, _, _ := mime.ParseMediaType(e.header.Get("Content-Type")); kind == "text/html" {
		text = "the answer is a web page instead of the API's JSON; check --base-url, and proxies on the way"
	}
	if e.status != 0 {
		text = strings.TrimSpace(fmt.Sprintf("%d %s", e.status, http.StatusText(e.status))) + ": " + text
	}
	text = brief(text)
	if id := cmp.Or(answer.RequestID, e.header.Get("Request-Id"), e.header.Get("X-Request-Id")); id != "" {
		text += " (request " + brief(id) + ")"
	}
	return text
}

// retryAfter returns the pause that an answer demands in Retry-After-Ms or Retry-After
// (seconds or a date), 0 if it demands none.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// pause returns the pause before the nth repetition of a request, n from 1. It doubles each
// time up to MaxBackoff, is partly random, so that many runners do not retry at the same time,
// and is at least what the provider demands.
func (c Config) pause(n int, demanded time.Duration) time.Duration {
	d := c.Backoff
	for range n - 1 {
		if d >= c.MaxBackoff {
			break
		}
		d *= 2
	}
	d = min(d, c.MaxBackoff)
	d = d/2 + rand.N(d/2+1) //nolint:gosec // a pause is no secret
	return max(d, demanded)
}

// brief shortens text to one line, cut after 500 bytes; an ellipsis is added where it is cut.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	const maxBytes = 500
	if len(text) > maxBytes {
		text = strings.ToValidUTF8(utf8cut.Bytes(text, maxBytes), "") + "…"
	}
	return text
}
