package signin

import (
	"context"
	"crypto/rand"
	"errors"
	"html"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"quartet/pkg/fault"
)

const (
	failedPurpose = "console sign-in failed"
	// failedTerm is how long the reason of a failure is kept in the browser's cookie.
	failedTerm = time.Minute
	// maxMessage bounds the message of a failure in the cookie, in bytes.
	maxMessage = 1 << 10
)

// failure is why a sign-in failed. It contains nothing of the request.
type failure struct {
	Status  int    `json:"s"` // the HTTP status
	Reason  string `json:"r"` // from docs/errors.md
	Message string `json:"m"`
	Retry   int    `json:"t,omitempty"` // seconds after which it may succeed
	Ends    int64  `json:"e"`           // seconds since 1970
	ID      string `json:"i"`           // random; no two failures have the same
}

// failureOf returns the failure for an error. For an error that is UNAUTHENTICATED it also calls Deps.Refused.
func (f *Flow) failureOf(ctx context.Context, err error) failure {
	if errors.Is(err, fault.Unauthenticated) && f.deps.Refused != nil {
		f.deps.Refused(ctx)
	}
	e := fault.From(err)
	message := strings.ToValidUTF8(e.Message(), "\uFFFD")
	out := failure{
		Status: fault.HTTPStatus(e), Reason: string(e.Reason()),
		Message: message[:min(len(message), maxMessage)], Ends: f.deps.Clock.Now().Add(failedTerm).Unix(),
		ID: rand.Text(),
	}
	if out.Status == http.StatusTooManyRequests || out.Status == http.StatusServiceUnavailable {
		out.Retry = int(math.Ceil(max(e.RetryAfter(), time.Second).Seconds()))
	}
	return out
}

// leave redirects the browser from the callback to FailedPath, so that the address that the browser shows does not
// have the provider's code. It puts the failure into the browser's cookie, in place of the sign-in.
func (f *Flow) leave(w http.ResponseWriter, r *http.Request, why failure) {
	value, err := SealTicket(f.deps.Keys(), failedPurpose, why)
	if err != nil || len(value) > maxCookie {
		f.show(w, why) // cannot happen: a failure is JSON of a few fields, of bounded size
		return
	}
	http.SetCookie(w, cookieOf(r, value, int(failedTerm.Seconds()), f.overTLS(r)))
	w.Header().Set("Location", "failed")
	w.WriteHeader(http.StatusSeeOther)
}

// failed shows the failure in the browser's cookie, and removes the cookie. Without a failure it redirects the
// browser to the sign-in page.
func (f *Flow) failed(w http.ResponseWriter, r *http.Request) {
	var why failure
	cookie, err := f.cookie(r)
	if err != nil || len(cookie.Value) > maxCookie || OpenTicket(f.deps.Keys(), failedPurpose, cookie.Value, &why) !=
		nil || !f.deps.Clock.Now().Before(time.Unix(why.Ends, 0)) {
		w.Header().Set("Location", "../")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	http.SetCookie(w, cookieOf(r, "", -1, f.overTLS(r)))
	f.show(w, why)
}

// page is the page of a failure, in which show replaces {{message}} and {{reason}}. It has no script.
const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sign-in failed – Quartet</title>
<style>body{font:16px/1.6 system-ui,sans-serif;max-width:36rem;margin:4rem auto;padding:0 1rem;color:#222;background:#fff}
code{background:#f2f2f2;padding:.1em .3em;border-radius:3px}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#2a2a2a}a{color:#8ab4f8}}</style>
<main><h1>Sign-in failed</h1>
<p role="alert">{{message}}</p>
<p><code>{{reason}}</code></p>
<p><a href="../">Back to the sign-in page</a></p></main>
</html>
`

// show responds with the page of a failure.
func (f *Flow) show(w http.ResponseWriter, why failure) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action "+
		"'none'; frame-ancestors 'none'")
	if why.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(why.Retry))
	}
	w.WriteHeader(why.Status)
	// the client may have left
	_, _ = io.WriteString(w, strings.NewReplacer("{{message}}", html.EscapeString(why.Message), "{{reason}}",
		html.EscapeString(why.Reason)).Replace(page))
}
