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
)

// errCut: a stream ended before its reply did.
var errCut = errors.New("the provider's stream ended before the reply did")

// errDeclined: the reply ended because it was not to be given.
var errDeclined = errors.New("the model, or its provider's filter, declined to reply to this")

// class is what to do about a provider's failure.
type class int

const (
	passing  class = iota // try again after a while
	tooLong               // the context does not fit
	unpaid                // the account has no money left: nothing goes better until somebody pays
	denied                // the credential is not good: no other turn would go better
	misset                // there is no such model or API: neither would it there
	refused               // the request will never be good
	declined              // the model does not want to
)

// failure is a provider's error, judged.
type failure struct {
	class class
	after time.Duration // that the provider asks to wait; 0: it does not say
	text  string        // for people; no header, no key
}

const overloadedStatus = 529 // Anthropic's own

// judge sorts an error of a provider. What is no answer of its API (a cut
// stream, a lost connection, an error event in mid-stream that does not say
// otherwise) passes.
func judge(err error) failure {
	r := &refusal{header: http.Header{}, body: err.Error()}
	event, inStream := streamError(err)
	switch {
	case errors.As(err, &r):
	case inStream:
		r.body = event
	case !errors.Is(err, errCut) && !errors.Is(err, errDeclined) && !errors.Is(err, errForeignHost): // a lost connection, a stream that is no JSON
		r.body = "no whole reply came: " + r.body
	}
	f := failure{text: r.text(), after: retryAfter(r.header)}
	said := strings.ToLower(r.body)
	switch status := r.status; {
	case errors.Is(err, errForeignHost), strings.Contains(err.Error(), "must match the configured base URL"): // an SDK's own guard
		f.class = refused
	case errors.Is(err, errDeclined):
		f.class = declined
	case status == http.StatusPaymentRequired, status < http.StatusInternalServerError && contains(said, unpaidWords):
		f.class = unpaid
	case status == http.StatusForbidden && contains(said, declinedWords):
		f.class = declined
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.class = denied
	case status == http.StatusNotFound:
		f.class = misset
	case status == http.StatusRequestEntityTooLarge, contains(said, tooLongWords):
		f.class = tooLong
	case status == 0, status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooManyRequests,
		status == overloadedStatus, status >= http.StatusInternalServerError:
		f.class = passing
	default:
		f.class = refused
	}
	return f
}

// The providers' words, in lower case, for what a status alone does not tell.
var (
	// tooLongWords: Anthropic, OpenAI and vLLM, llama.cpp, others that are
	// compatible. OpenAI answers a request that is larger than what the account
	// may send in a minute with 429, as if waiting helped; some answer 5xx.
	tooLongWords = []string{
		"prompt is too long", "exceed context limit",
		"context_length_exceeded", "maximum context length", "context window", "request too large for",
		"exceed_context_size_error", "available context size", "model token limit",
	}
	// declinedWords come with 403 from providers that moderate what they pass on:
	// this message is refused, and the key is good.
	declinedWords = []string{"moderation", "was flagged", "content policy", "content_policy"}
	// unpaidWords come with 400 and 429, as if waiting or another request helped.
	unpaidWords = []string{
		"enforced_spend_limit_reached", "credit balance is too low", "specified api usage limits", "billing_error",
		"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached",
	}
)

func contains(text string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// text is what the provider said, for people: its message where it has one, and
// the id that its support asks for.
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
		text = "a web page came instead of the API's answer; is --base-url right, and a proxy in between well?"
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

// retryAfter reads Retry-After: seconds, or a date.
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

// pause before attempt n (1 for the second one): what the provider asks for, at
// least, else twice as long each time; with a part left to chance, so that many
// runners do not come back as one.
func (c Config) pause(n int, asked time.Duration) time.Duration {
	d := min(c.Backoff<<(n-1), c.MaxBackoff)
	d = d/2 + rand.N(d/2+1)
	return max(d, asked)
}

// brief cuts text for one line.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	const most = 500
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
