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

// errForeignHost is the error of a request to another host than the provider's.
var errForeignHost = errors.New("the request would leave the provider's host")

// refusal is an answer of a provider that is not the stream of a reply. It is read here
// because the SDKs lose the status of errors that have another format than they expect:
// pages of proxies, errors of compatible servers.
type refusal struct {
	status int // 0: the status is a success
	header http.Header
	body   string
}

// refusalMax limits what is read of a refusal.
const refusalMax = 64 << 10

// Error implements error.
func (e *refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", e.status, http.StatusText(e.status), e.body)
}

// hostTransport sends requests to one host only, redirects included, because a key must
// not be sent anywhere else.
type hostTransport struct {
	scheme, host string
	silence      time.Duration // see withSilenceLimit
	next         http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It returns errForeignHost for a request to another host,
// and an answer that isRefusal accepts as an error, a *refusal.
func (t hostTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != t.scheme || r.URL.Host != t.host {
		return nil, fmt.Errorf("%w: %s://%s is not %s://%s", errForeignHost, r.URL.Scheme, r.URL.Host, t.scheme, t.host)
	}
	resp, err := t.withSilenceLimit(r)
	if err != nil || !isRefusal(resp) {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, refusalMax)) // a partial body is used
	e := &refusal{header: resp.Header, body: string(body)}
	if resp.StatusCode >= http.StatusBadRequest {
		e.status = resp.StatusCode
	}
	return nil, e
}

// withSilenceLimit cancels a request when nothing was received for t.silence. A
// connection whose other end has ended may stay open indefinitely, and would keep the
// turn's lease.
func (t hostTransport) withSilenceLimit(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("the provider sent nothing for %s", t.silence)
	b := &limitedBody{ctx: ctx, cancel: cancel, silence: t.silence}
	b.timer = time.AfterFunc(t.silence, func() { cancel(silent) })
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, b.end(err)
	}
	b.timer.Reset(t.silence)
	b.body, resp.Body = resp.Body, b
	return resp, nil
}

// limitedBody is a body whose request is cancelled when it is silent for too long.
type limitedBody struct {
	body    io.ReadCloser
	ctx     context.Context //nolint:containedctx // the context of the request, which ends with its body
	cancel  context.CancelCauseFunc
	silence time.Duration
	timer   *time.Timer
}

// Read implements io.Reader. Received bytes restart the time of silence after which the request is cancelled.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if n > 0 {
		b.timer.Reset(b.silence)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.end(err)
	}
	return n, err
}

// end releases the timer and the context. It returns the cause if the request was
// cancelled, otherwise err.
func (b *limitedBody) end(err error) error {
	if cause := context.Cause(b.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	b.timer.Stop()
	b.cancel(context.Canceled)
	return err
}

// Close implements io.Closer.
func (b *limitedBody) Close() error {
	_ = b.end(nil)
	return b.body.Close()
}

// isRefusal reports whether an answer is something else than the stream of a reply or a redirect,
// which the client follows. Compatible servers use many content types for streams, but not those
// of JSON documents and web pages.
func isRefusal(r *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.StatusCode >= http.StatusBadRequest ||
		r.StatusCode < http.StatusMultipleChoices && (kind == "application/json" || kind == "text/html")
}

// providerClient returns an HTTP client that only calls the host of base, with transport, and
// cancels a request after the given silence.
func providerClient(base string, silence time.Duration, transport http.RoundTripper) (*http.Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("base-url %q must be an address such as https://api.example.com/v1", base)
	}
	return &http.Client{Transport: hostTransport{u.Scheme, u.Host, silence, transport}}, nil
}
