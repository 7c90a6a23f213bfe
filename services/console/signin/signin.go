package signin

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/oauth2"

	"quartet/pkg/clock"
	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
)

// Paths of the sign-in.
const (
	// Path is the path at which a page asks whether there is a sign-in with a provider. The other paths are below it.
	Path = "/ui/oidc"
	// StartPath is the path of the request that begins a sign-in.
	StartPath = Path + "/start"
	// CallbackPath is the path to which the provider sends the browser back.
	CallbackPath = Path + "/callback"
	// FailedPath is the path of the page that shows why a sign-in failed.
	FailedPath = Path + "/failed"
)

const (
	// FlowTerm is how long a sign-in may take, from its start to the callback.
	FlowTerm = 10 * time.Minute
	// exchangeTime bounds how long a request waits for the provider.
	exchangeTime = 15 * time.Second
	// perSecond and atOnce are the rate and the burst of the requests of a source address that begin or end a
	// sign-in.
	perSecond, atOnce = 2, 30
	// maxWaiting bounds the requests of a process that wait for the provider.
	maxWaiting = 16
	// maxUsed bounds the sign-ins that are remembered as succeeded. A sign-in succeeds only with a token of the
	// provider.
	maxUsed = 10_000
)

// Provider is the identity provider with the verifier of its tokens.
type Provider interface {
	// Endpoint returns the provider's addresses for authorization and for tokens, and how a client sends its
	// secret. It returns NOT_READY while the provider's discovery document cannot be read.
	Endpoint(ctx context.Context) (oauth2.Endpoint, error)
	// Accept verifies an ID token as the tokens of callers are verified, except that its audience must be the client,
	// and that it must have nonce. It returns a credential for a session, which the installation's authenticator
	// accepts until ends.
	// Errors: UNAUTHENTICATED for a token that is not valid, PERMISSION_DENIED for one whose claims give no
	// namespace or no role, NOT_READY if the provider cannot be reached.
	Accept(ctx context.Context, idToken, nonce string) (credential string, ends time.Time, err error)
	// Client returns the HTTP client for the provider's token endpoint. Its responses are bounded in size and time,
	// and it follows no redirects.
	Client() *http.Client
}

// Deps is what a Flow needs of its process.
type Deps struct {
	Provider Provider
	// Issuer is the provider's address, which the sign-in page shows.
	Issuer string
	// Keys returns the keys of the installation.
	Keys func() keyfile.Ring
	// Refused is called for each sign-in that is refused as UNAUTHENTICATED. Optional.
	Refused func(ctx context.Context)
	// Clock determines when sign-ins end; nil: the machine's clock.
	Clock  clock.Clock
	Logger *zap.Logger
}

// Flow signs people in. The handler of a nil Flow says that there is no sign-in with a provider. A Flow is safe for
// concurrent use.
type Flow struct {
	cfg   Config
	deps  Deps
	rates *connlimit.Rates
	slots chan struct{} // one for each request that waits for the provider

	mu   sync.Mutex           // guards used
	used map[string]time.Time // states of sign-ins that succeeded, and when the sign-ins end
}

// New returns a Flow, or nil and no error if cfg has no client id. It returns an error if cfg is not valid or the
// client's secret cannot be read.
func New(cfg Config, deps Deps) (*Flow, error) {
	if err := cfg.Check(); err != nil || cfg.ClientID == "" {
		return nil, err
	}
	if deps.Provider == nil || deps.Keys == nil {
		return nil, errors.New("signin: Deps needs Provider and Keys")
	}
	if _, err := cfg.secret(); err != nil {
		return nil, err
	}
	deps.Clock = cmp.Or(deps.Clock, clock.System())
	deps.Logger = cmp.Or(deps.Logger, zap.NewNop())
	return &Flow{
		cfg: cfg, deps: deps, rates: connlimit.NewRates(perSecond, atOnce),
		slots: make(chan struct{}, maxWaiting), used: map[string]time.Time{},
	}, nil
}

// Begin sets the cookie of a session of the console with a credential. secure says that the browser uses https.
type Begin = func(w http.ResponseWriter, r *http.Request, credential string, ends time.Time, secure bool) error

// Refuse responds to a request with an error, in the form of the REST API.
type Refuse = func(w http.ResponseWriter, r *http.Request, err error)

// Handler returns the handler of Path and the paths below it. It calls begin when a sign-in has succeeded. It calls
// refuse to respond to requests for unknown paths, and for all paths but Path if f is nil. It shows the error of a
// sign-in as a page.
func (f *Flow) Handler(begin Begin, refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer") // the address of the callback has the code
		switch {
		case r.URL.Path == Path:
			f.offer(w)
		case f == nil:
			refuse(w, r, fault.NotFound.New("this server has no sign-in with an identity provider; sign in with a "+
				"key at /ui/, or set oidc-client-id", "path", r.URL.Path))
		case r.URL.Path == FailedPath:
			f.failed(w, r)
		case r.URL.Path == StartPath && r.Method == http.MethodGet:
			if err := f.limited(r, f.start, w); err != nil {
				f.show(w, f.failureOf(r.Context(), err))
			}
		case r.URL.Path == CallbackPath && r.Method == http.MethodGet:
			err := f.limited(r, func(w http.ResponseWriter, r *http.Request) error { return f.callback(w, r, begin) },
				w)
			if err != nil {
				f.leave(w, r, f.failureOf(r.Context(), err))
			}
		default:
			refuse(w, r, fault.NotFound.New("the sign-in has no such page; it begins with GET "+StartPath, "path",
				r.URL.Path))
		}
	})
}

// limited calls next with a context that ends after exchangeTime. It returns RATE_LIMITED if the source of the
// request begins and ends too many sign-ins, and OVERLOADED if maxWaiting requests wait for the provider.
func (f *Flow) limited(r *http.Request, next func(http.ResponseWriter, *http.Request) error,
	w http.ResponseWriter,
) error {
	if wait := f.rates.Take(connlimit.SourceOf(r.Context())); wait > 0 {
		return fault.RateLimited.Newf("too many sign-ins of this address: %d at once and %d requests per second are "+
			"accepted; repeat it in a moment", atOnce, perSecond).WithRetryAfter(wait)
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return fault.Overloaded.Newf(
			"%d requests wait for the identity provider already; repeat the sign-in in a moment", maxWaiting).
			WithRetryAfter(time.Second)
	}
	ctx, cancel := context.WithTimeout(r.Context(), exchangeTime)
	defer cancel()
	return next(w, r.WithContext(ctx))
}

// CookieName returns the name of a cookie of this server. It contains the port of host, because all ports of a host
// share its cookies and several servers may run on one machine. If secure is set it begins with __Host-: a browser
// accepts such a cookie only from the host itself, and not from a subdomain or over http.
func CookieName(name, host string, secure bool) string {
	if _, port, err := net.SplitHostPort(host); err == nil {
		name += "-" + port
	}
	if secure {
		return "__Host-" + name
	}
	return name
}
