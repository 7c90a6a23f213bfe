package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"
)

// errForeignHost: something led away from the provider's address.
var errForeignHost = errors.New("the request would leave the provider's host")

// refusal is a provider's answer that is no stream of a reply. The SDKs make
// errors of their own of some, and lose the status of those that are not worded
// as they expect: pages of proxies, errors of compatible servers.
type refusal struct {
	status int // 0: the answer calls itself good
	header http.Header
	body   string
}

// refusalMax bounds what is read of one.
const refusalMax = 64 << 10

func (e *refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", e.status, http.StatusText(e.status), e.body)
}

// tether lets requests go to one host only, redirects included: a key must not
// leave for anywhere else.
type tether struct {
	scheme, host string
	silence      time.Duration
	next         http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t tether) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != t.scheme || r.URL.Host != t.host {
		return nil, fmt.Errorf("%w: %s://%s is not %s://%s", errForeignHost, r.URL.Scheme, r.URL.Host, t.scheme, t.host)
	}
	resp, err := t.patient(r)
	if err != nil || !refuses(resp) {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, refusalMax)) // what came of it is what there is
	e := &refusal{header: resp.Header, body: string(body)}
	if resp.StatusCode >= http.StatusBadRequest {
		e.status = resp.StatusCode
	}
	return nil, e
}

// patient gives a call up once nothing came for too long. A connection whose
// other end is gone may stay open for ever, and the turn's lease with it.
func (t tether) patient(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("the provider said nothing for %s", t.silence)
	b := &patientBody{ctx: ctx, cancel: cancel, silence: t.silence}
	b.timer = time.AfterFunc(t.silence, func() { cancel(silent) })
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, b.end(err)
	}
	b.timer.Reset(t.silence)
	b.body, resp.Body = resp.Body, b
	return resp, nil
}

// patientBody is a body that may not be silent for too long.
type patientBody struct {
	body    io.ReadCloser
	ctx     context.Context //nolint:containedctx // of the call, which ends with its body
	cancel  context.CancelCauseFunc
	silence time.Duration
	timer   *time.Timer
}

// Read implements io.Reader.
func (b *patientBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if n > 0 {
		b.timer.Reset(b.silence)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.end(err)
	}
	return n, err
}

// end gives the reason where the call was given up, and frees what it held.
func (b *patientBody) end(err error) error {
	if cause := context.Cause(b.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	b.timer.Stop()
	b.cancel(context.Canceled)
	return err
}

// Close implements io.Closer.
func (b *patientBody) Close() error {
	_ = b.end(nil)
	return b.body.Close()
}

// refuses says whether an answer is none that a reply is streamed in. A redirect
// is followed, and judged where it leads. Compatible servers call their streams
// many things; a document and a page they are not.
func refuses(r *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.StatusCode >= http.StatusBadRequest ||
		r.StatusCode < http.StatusMultipleChoices && (kind == "application/json" || kind == "text/html")
}

// providerClient is an HTTP client that is bound to base.
func providerClient(base string, silence time.Duration, transport http.RoundTripper) (*http.Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("base-url %q must be an address such as https://api.example.com/v1", base)
	}
	return &http.Client{Transport: tether{u.Scheme, u.Host, silence, transport}}, nil
}
