package console

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/sealed"
)

const (
	// Header must be on every request that uses the cookie of a session. Pages of other origins cannot
	// send it, because the gateway allows it to none, so that the cookie alone does nothing (SPEC G13.1).
	Header = "X-Quartet-Console"
	// SessionTerm is how long a session lasts, unless its credential ends before.
	SessionTerm = 12 * time.Hour
	// maxCookie bounds the value of the cookie. Browsers keep 4 096 bytes with its name and attributes.
	maxCookie = 3800
)

// Purposes of what is sealed: what was sealed for one of them is not accepted for another.
const (
	sessionPurpose = "console session"
	codePurpose    = "console code"
)

// ticket is what is sealed: the credential, and until when.
type ticket struct {
	Credential string `json:"c"`
	Ends       int64  `json:"e"` // seconds since 1970
	ID         string `json:"i"` // random; no two tickets have the same
}

// fromConsole refuses a request without Header.
func fromConsole(r *http.Request) error {
	if r.Header.Get(Header) == "" {
		return fault.PermissionDenied.New("sessions are for the pages of the console, which send the header " + Header + "; programs send Authorization: Bearer KEY")
	}
	return nil
}

// seal encrypts a ticket for a purpose under the installation's active key, whose id is in the text.
func (c *Console) seal(purpose string, t ticket) (string, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return "", fault.Internal(err)
	}
	key := c.deps.Keys().Active()
	box, err := sealed.Seal(key.Derive(purpose), purpose, string(text))
	if err != nil {
		return "", fault.Internal(err)
	}
	return key.ID + "." + base64.RawURLEncoding.EncodeToString(box), nil
}

// errTicket is why a text is no ticket: it was changed, sealed for another purpose or installation, or is over.
var errTicket = errors.New("console: no valid ticket")

// open returns the ticket that seal made for a purpose, if it has not ended.
func (c *Console) open(purpose, text string) (ticket, error) {
	var t ticket
	id, box, ok := strings.Cut(text, ".")
	key, known := c.deps.Keys().Find(id)
	if !ok || id == "" || !known {
		return t, errTicket
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(box)
	if err != nil {
		return t, errTicket
	}
	plain, err := sealed.Open(key.Derive(purpose), purpose, raw)
	if err != nil || json.Unmarshal([]byte(plain), &t) != nil || !c.deps.Clock.Now().Before(time.Unix(t.Ends, 0)) {
		return ticket{}, errTicket
	}
	return t, nil
}

// ticketOf returns a ticket for a credential that ends after term.
func (c *Console) ticketOf(credential string, term time.Duration) ticket {
	return ticket{Credential: credential, Ends: c.deps.Clock.Now().Add(term).Unix(), ID: rand.Text()}
}

// cookie returns the cookie of a new session.
func (c *Console) cookie(r *http.Request, credential string) (*http.Cookie, error) {
	value, err := c.seal(sessionPurpose, c.ticketOf(credential, SessionTerm))
	if err != nil {
		return nil, err
	}
	if len(value) > maxCookie {
		return nil, fault.TooLarge.Newf("the credential has %d bytes, which with its encryption is more than a browser keeps in a cookie; use an API key", len(credential))
	}
	return cookieOf(r, value, int(SessionTerm.Seconds())), nil
}

// cookieOf returns the cookie of a session. Scripts cannot read it, and browsers send it with requests of the console's own
// site only. A browser removes a cookie whose maxAge is negative.
func cookieOf(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure where the browser uses TLS: over plain HTTP it would not send a secure cookie
		Name: cookieName(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: overTLS(r), SameSite: http.SameSiteStrictMode,
	}
}

// cookieName returns the name of the cookie. Cookies of a host are shared by its ports, so it has the port,
// for several servers on one machine. Over TLS it begins with __Host-: the browser then takes it from
// this host only.
func cookieName(r *http.Request) string {
	name := "quartet-console"
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		name += "-" + port
	}
	if overTLS(r) {
		return "__Host-" + name
	}
	return name
}

// overTLS reports whether the browser uses https, also to a proxy that speaks http to this server: then the
// origin, which was checked (SPEC G4.1) and which browsers send with every request but GET, says so.
func overTLS(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// Bearer returns the credential of the session of a request, and when the session ends. It is "" if the
// request has no session, or one that ended, or lacks Header: then the cookie counts for nothing.
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
