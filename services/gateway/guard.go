package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// A page of any site in a browser can reach loopback. Callers need a credential there too, which a
// page does not have, unless the server accepts calls without one. Two checks refuse pages
// in any case: of the header Host, which prevents DNS rebinding, and of the headers Origin and
// Sec-Fetch-Site, which browsers set and pages cannot change.

// hosts refuses requests that name a host which is not this server's. It is for pages to which other sites may link.
func (g *Service) hosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.refusedHost(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

// refusedHost reports whether it has refused a request because of its host. If the gateway is bound to loopback, a host
// must be a loopback one, an allowed one, or that of an allowed origin. Elsewhere credentials are required, and any
// name is accepted.
func (g *Service) refusedHost(w http.ResponseWriter, r *http.Request) bool {
	host := hostOnly(r.Host)
	if !g.loopback || isLoopbackHost(host) || slices.Contains(g.cfg.AllowedHosts, host) || g.allowedOriginHost(host) {
		return false
	}
	refuseAs(w, r, fault.PermissionDenied.New("this server listens on loopback and does not answer to this "+
		"Host; allow the host to change that", "host", host), http.StatusMisdirectedRequest)
	return true
}

// origins does what hosts does, and refuses requests of pages whose origin is not this server's own or allowed, before
// their credential is checked and their body read. It answers preflight requests of allowed origins. Requests that no
// page sent pass, such as those of programs and of a browser's address line.
func (g *Service) origins(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.refusedHost(w, r) {
			return
		}
		w.Header().Add("Vary", "Origin, Sec-Fetch-Site")
		if err := g.checkPage(r); err != nil {
			refuse(w, r, err)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Access-Control-Expose-Headers", "ETag, Idempotent-Replayed, Retry-After")
			if r.Method == http.MethodOptions {
				w.Header().Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
				w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, "+
					"If-Match, Last-Event-ID, Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name")
				w.Header().Set("Access-Control-Max-Age", "600")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// checkPage returns the refusal of a request that a page of another origin caused, nil for other
// requests. Browsers send Origin with all requests but some GET and HEAD, for
// which Sec-Fetch-Site tells whose page it was; same-site is another port of the same host.
func (g *Service) checkPage(r *http.Request) error {
	if origins, given := r.Header["Origin"]; given {
		if len(origins) == 1 && g.allowedOrigin(origins[0], r) {
			return nil
		}
		origin := strings.Join(origins, ", ")
		return fault.PermissionDenied.New("web pages of other origins may not call this server; its own origin is "+
			"the scheme, host and port of its address", "origin", origin[:min(len(origin), maxOrigin)])
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "none", "same-origin":
		return nil
	default:
		return fault.PermissionDenied.New("web pages of other origins may not call this server; enter its address in "+
			"the browser itself", "sec_fetch_site", site[:min(len(site), maxOrigin)])
	}
}

// maxOrigin is how much of an origin a refusal repeats, in bytes.
const maxOrigin = 255

// allowedOrigin reports whether pages of an origin may call: it is configured, or it is the scheme, host
// and port to which the request was sent. On loopback the host was checked already.
func (g *Service) allowedOrigin(origin string, r *http.Request) bool {
	from, err := canonicalOrigin(origin)
	if err != nil {
		return false // for example "null"
	}
	own := "http://" + r.Host
	if r.TLS != nil {
		own = "https://" + r.Host
	}
	return slices.ContainsFunc(append([]string{own}, g.cfg.AllowedOrigins...), func(allowed string) bool {
		allowed, err := canonicalOrigin(allowed)
		return err == nil && from == allowed
	})
}

// allowedOriginHost reports whether a host, without its port, is that of a configured origin.
func (g *Service) allowedOriginHost(host string) bool {
	return slices.ContainsFunc(g.cfg.AllowedOrigins, func(origin string) bool {
		from, err := originHost(origin)
		return err == nil && hostOnly(from) == host
	})
}

// authenticated calls next for requests with a valid credential or a session of the console, with the actor in their
// context. It refuses the credentials of services, and requests of a namespace beyond its limit, and waits until
// the request may run (see rpc.Admission). The context of the request ends when the credential does, or the
// session.
func (g *Service) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Find the credential. An empty header is an error, unlike a missing one.
		bearer, sessionEnds := bearerOf(r), time.Time{}
		_, given := r.Header["Authorization"]
		if given && bearer == "" {
			g.refuseCaller(w, r, fault.Unauthenticated.New("the Authorization header must be: Bearer <token>"))
			return
		}
		if !given && g.deps.Console != nil {
			bearer, sessionEnds = g.deps.Console.Bearer(r)
		}

		// Authenticate the caller.
		actor, err := g.deps.Auth.Authenticate(r.Context(), bearer)
		if err == nil && actor.Role == rpc.RoleService {
			// The planes would take it for a call of this gateway, with its certificate.
			err = fault.Unauthenticated.New("services speak gRPC; their credentials are not taken here")
		}
		if err != nil {
			g.refuseCaller(w, r, err)
			return
		}
		proven(r)

		// Count the request, and wait for its turn.
		if err := g.deps.Admission.Request(actor.Namespace); err != nil {
			refuse(w, r, err)
			return
		}
		ctx, turn, err := g.enter(rpc.WithActor(r.Context(), actor), actor)
		if err != nil {
			refuse(w, r, err)
			return
		}
		defer turn.Leave()

		// End the context with the credential.
		if !sessionEnds.IsZero() {
			held, release := context.WithDeadlineCause(ctx, sessionEnds,
				fault.Unauthenticated.New("the session of the console has ended; sign in again"))
			defer release()
			ctx = held
		}
		if holder, ok := g.deps.Auth.(rpc.Holder); ok && bearer != "" {
			held, release := holder.Hold(ctx, bearer)
			defer release()
			ctx = held
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// bearerOf returns the credential in the Authorization header of a request, "" if it has none in this form, or several
// headers.
func bearerOf(r *http.Request) string {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return ""
	}
	return rpc.BearerOf(values[0])
}

type turnKey struct{}

// enter waits until a request of an actor may run. The caller must call Leave on the turn when the request has ended.
func (g *Service) enter(ctx context.Context, a rpc.Actor) (context.Context, *admission.Turn, error) {
	turn, err := g.deps.Admission.Enter(ctx, a)
	return context.WithValue(ctx, turnKey{}, turn), turn, err
}

// leaveSoon is called for a request that now waits for something to happen: its turn ends in a moment.
func leaveSoon(ctx context.Context) {
	if turn, ok := ctx.Value(turnKey{}).(*admission.Turn); ok {
		turn.LeaveSoon()
	}
}

// canonicalOrigin returns an http or https origin in lower case and with its port.
func canonicalOrigin(origin string) (string, error) {
	host, err := originHost(origin)
	if err != nil {
		return "", err
	}
	scheme, _, _ := strings.Cut(strings.ToLower(origin), ":")
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), map[string]string{"http": "80", "https": "443"}[scheme])
	}
	return scheme + "://" + strings.ToLower(host), nil
}

// originHost returns the host of an http or https origin, with its port if it names one.
func originHost(origin string) (host string, err error) {
	u, err := url.Parse(origin)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || !strings.EqualFold(origin, u.Scheme+"://"+u.Host) {
		return "", errors.New("must be a scheme and a host, such as https://console.example.com")
	}
	return u.Host, nil
}

// hostOnly returns a host in lower case, without port and brackets.
func hostOnly(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// isLoopbackHost reports whether a host, as hostOnly returns it, is localhost or a loopback address.
func isLoopbackHost(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// isLoopback reports whether a listener's address is a loopback one.
func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
