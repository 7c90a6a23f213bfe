package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/rpc"
	"quartet/services/console/signin"
)

// Paths of the console, all of them below Path.
const (
	// Path is the path of the console.
	Path = "/ui"
	// SessionPath is the path of the requests that begin and end sessions.
	SessionPath = "/ui/session"
	// CodePath is the path of the request for a one-time code.
	CodePath = "/ui/code"
)

// Deps is what the console needs of its process.
type Deps struct {
	// Auth authenticates the credential with which a session begins.
	Auth rpc.Authenticator
	// Keys returns the keys of the installation.
	Keys func() keyfile.Ring
	// Clock determines when sessions and codes end; nil: the machine's clock.
	Clock clock.Clock
	// SignIn is the sign-in with an identity provider; nil: there is none.
	SignIn *signin.Flow
	// Version is the version of the build.
	Version string
}

// Console serves the console.
type Console struct {
	deps  Deps
	files map[string]*file // by path below Path; "" is index.html

	mu   sync.Mutex           // guards used
	used map[string]time.Time // ids of one-time codes that were used, and when the codes end
}

// New returns a Console. It returns an error if the console's files were not built into the binary.
func New(deps Deps) (*Console, error) {
	if deps.Auth == nil || deps.Keys == nil {
		return nil, errors.New("console: Deps needs Auth and Keys")
	}
	deps.Clock = cmp.Or(deps.Clock, clock.System())
	files, err := load(bundle)
	if err != nil {
		return nil, err
	}
	return &Console{deps: deps, files: files, used: map[string]time.Time{}}, nil
}

// Refuse responds to a request with an error, in the form of the REST API.
type Refuse = func(w http.ResponseWriter, r *http.Request, err error)

// maxBody bounds the body of a request for a session, in bytes: a credential or a code.
const maxBody = 20 << 10

// Sessions returns the handler of SessionPath and CodePath. It calls refuse to respond to requests that it
// refuses. The caller must have checked that no page of another origin sent the request (SPEC G4.1, G13.1).
func (c *Console) Sessions(refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		var err error
		switch {
		case r.URL.Path == CodePath && r.Method == http.MethodPost:
			err = c.makeCode(w, r)
		case r.URL.Path == SessionPath && r.Method == http.MethodPost:
			err = c.begin(w, r)
		case r.URL.Path == SessionPath && r.Method == http.MethodDelete:
			err = c.end(w, r)
		default:
			w.Header().Set("Allow", "POST, DELETE")
			err = fault.InvalidArgument.Newf("%s takes POST, to begin a session, and DELETE, to end it; %s takes POST",
				SessionPath, CodePath)
		}
		if err != nil {
			refuse(w, r, err)
		}
	})
}

// beginRequest is the body of POST /ui/session: exactly one of its fields is set.
type beginRequest struct {
	Key  string `json:"key"`  // a credential: an API key, or a token that the server accepts
	Code string `json:"code"` // a one-time code of POST /ui/code
}

// begin begins a session: it checks the credential, which the request or its one-time code has, and sets the cookie.
func (c *Console) begin(w http.ResponseWriter, r *http.Request) error {
	if err := fromConsole(r); err != nil {
		return err
	}
	var req beginRequest
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	body.DisallowUnknownFields()
	if err := body.Decode(&req); err != nil {
		return fault.InvalidArgument.New("the body must be a JSON object with key or code: " + err.Error())
	}
	if (req.Key == "") == (req.Code == "") {
		return fault.InvalidArgument.New(
			"give key, a credential, or code, which quartet console makes; exactly one of them")
	}
	credential := req.Key
	if req.Code != "" {
		var err error
		if credential, err = c.redeem(req.Code); err != nil {
			return err
		}
	}
	actor, err := c.deps.Auth.Authenticate(r.Context(), credential)
	if err != nil {
		return err
	}
	if actor.Role == rpc.RoleService {
		return fault.Unauthenticated.New("services have no sessions; use an API key of a person")
	}
	cookie, err := c.cookie(r, credential, SessionTerm, overTLS(r))
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// end ends a session: the browser removes the cookie.
func (c *Console) end(w http.ResponseWriter, r *http.Request) error {
	if err := fromConsole(r); err != nil {
		return err
	}
	http.SetCookie(w, cookieOf(r, "", -1, overTLS(r)))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// SignIn returns the handler of signin.Path and the paths below it; see signin.Flow.Handler for refuse. The caller
// must have checked that no page of another origin sent the request, except for signin.CallbackPath and
// signin.FailedPath.
func (c *Console) SignIn(refuse Refuse) http.Handler {
	return c.deps.SignIn.Handler(func(w http.ResponseWriter, r *http.Request, credential string, ends time.Time,
		secure bool,
	) error {
		term := min(SessionTerm, ends.Sub(c.deps.Clock.Now()).Truncate(time.Second))
		if term <= 0 {
			return fault.Unauthenticated.New("the identity provider's token has ended already; compare the clocks of " +
				"the provider and of this server")
		}
		cookie, err := c.cookie(r, credential, term, secure)
		if err != nil {
			return err
		}
		http.SetCookie(w, cookie)
		return nil
	}, refuse)
}
