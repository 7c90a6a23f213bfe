package console

import (
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/services/console/signin"
)

const (
	// Header is the name of a header that every request with the cookie of a session must have. Pages of other
	// origins cannot send it, because the gateway's CORS responses never allow it. So a request with the cookie
	// alone has no credential (SPEC G13.1).
	Header = "X-Quartet-Console"
	// SessionTerm is how long a session lasts, unless its credential ends before.
	SessionTerm = 12 * time.Hour
	// maxCookie bounds the value of the cookie. Browsers keep 4 096 bytes with its name and attributes.
	maxCookie = 3800
)

// The purposes for which tickets are sealed. A ticket that was sealed for one of them is not valid for another.
const (
	sessionPurpose = "console session"
	codePurpose    = "console code"
)

// held is the content of a ticket, which is the encrypted text that a browser has in place of a credential (see
// signin.SealTicket). It says which credential that is, and until when the ticket is valid.
type held struct {
	Credential string `json:"c"`
	Ends       int64  `json:"e"` // seconds since 1970
	ID         string `json:"i"` // random; no two tickets have the same
}

// fromConsole returns PERMISSION_DENIED for a request without Header.
func fromConsole(r *http.Request) error {
	if r.Header.Get(Header) == "" {
		return fault.PermissionDenied.New("sessions are for the pages of the console, which send the header " + Header +
			"; programs send Authorization: Bearer KEY")
	}
	return nil
}

// seal encrypts a session or code for a purpose under the installation's active key.
func (c *Console) seal(purpose string, t held) (string, error) {
	text, err := signin.SealTicket(c.deps.Keys(), purpose, t)
	if err != nil {
		return "", fault.Internal(err)
	}
	return text, nil
}

// open returns what seal sealed for a purpose, or ticket.ErrInvalid if text is not such a ticket or has ended.
func (c *Console) open(purpose, text string) (held, error) {
	var t held
	if err := signin.OpenTicket(c.deps.Keys(), purpose, text, &t); err != nil {
		return held{}, err
	}
	if !c.deps.Clock.Now().Before(time.Unix(t.Ends, 0)) {
		return held{}, signin.ErrInvalidTicket
	}
	return t, nil
}

// ticketOf returns the content of a new ticket with a credential. The ticket is valid for term from now.
func (c *Console) ticketOf(credential string, term time.Duration) held {
	return held{Credential: credential, Ends: c.deps.Clock.Now().Add(term).Unix(), ID: rand.Text()}
}

// cookie returns the cookie of a new session that lasts for term. secure says that the browser uses https.
func (c *Console) cookie(r *http.Request, credential string, term time.Duration, secure bool) (*http.Cookie, error) {
	value, err := c.seal(sessionPurpose, c.ticketOf(credential, term))
	if err != nil {
		return nil, err
	}
	if len(value) > maxCookie {
		return nil, fault.TooLarge.Newf("the credential has %d bytes, which with its encryption is more than a "+
			"browser keeps in a cookie; use an API key, or let the identity provider put fewer claims into its tokens",
			len(credential))
	}
	return cookieOf(r, value, int(term.Seconds()), secure), nil
}

// cookieOf returns the cookie of a session. Scripts cannot read it, and browsers send it with requests of the console's
// own site only. A browser removes a cookie whose maxAge is negative.
func cookieOf(r *http.Request, value string, maxAge int, secure bool) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure where the browser uses TLS: over plain HTTP it would not send a secure cookie
		Name: signin.CookieName("quartet-console", r.Host, secure), Value: value, Path: "/", MaxAge: maxAge,
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	}
}

// cookieName returns the name of the session's cookie on requests like r.
func cookieName(r *http.Request) string {
	return signin.CookieName("quartet-console", r.Host, overTLS(r))
}

// overTLS reports whether the browser uses https. If a proxy speaks http to this server, only the header Origin shows
// that; the gateway has checked it (SPEC G4.1), and browsers send it with every request but GET.
func overTLS(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// Bearer returns the credential of the session of a request, and when the session ends. It returns "" if the request
// has no session that is valid now, or if it lacks Header.
func (c *Console) Bearer(r *http.Request) (credential string, ends time.Time) {
	if r.Header.Get(Header) == "" {
		return "", time.Time{}
	}
	for _, name := range []string{cookieName(r), "__Host-" + cookieName(r)} {
		cookie, err := r.Cookie(name)
		if err != nil || len(cookie.Value) > maxCookie {
			continue
		}
		if t, err := c.open(sessionPurpose, cookie.Value); err == nil {
			return t.Credential, time.Unix(t.Ends, 0)
		}
	}
	return "", time.Time{}
}
