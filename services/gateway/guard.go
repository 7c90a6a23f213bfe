package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// A page of any site in a browser can reach loopback, where callers need no credential.
// Two checks refuse it: of the header Host, which also prevents DNS rebinding, and of the
// header Origin, which browsers set and pages cannot change.

// hosts refuses requests that name another host than loopback, the allowed hosts
// and those of the allowed origins, if the gateway is bound to loopback. Elsewhere
// credentials are required, and any name is accepted.
func (g *Service) hosts(loopback bool, next http.Handler) http.Handler {
	if !loopback {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOnly(r.Host)
		if !isLoopbackHost(host) && !slices.Contains(g.cfg.AllowedHosts, host) && !g.allowedOriginHost(host) {
			refuseAs(w, r, fault.PermissionDenied.New("this server listens on loopback and does not answer to this Host; allow the host to change that", "host", host),
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// origins refuses requests of pages whose origin is not allowed, except GET and HEAD: by CORS a
// browser lets a page read the response only if its origin is allowed. It answers preflight
// requests of allowed origins. Requests without the header Origin pass.
func (g *Service) origins(loopback bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Add("Vary", "Origin")
		allowed := g.allowedOrigin(origin, r.Host, loopback)
		if allowed {
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Access-Control-Expose-Headers", "ETag, Idempotent-Replayed, Retry-After")
		}
		switch {
		case r.Method == http.MethodOptions && allowed:
			w.Header().Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
			w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name")
			w.Header().Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
		case r.Method != http.MethodGet && r.Method != http.MethodHead && !allowed:
			refuse(w, r, fault.PermissionDenied.New("pages of this origin may not call here; allow the origin to change that", "origin", origin))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// allowedOrigin reports whether pages of an origin may call: it is configured, on loopback, or, for a
// gateway that others can reach, of the host that the request names.
func (g *Service) allowedOrigin(origin, host string, loopback bool) bool {
	if slices.Contains(g.cfg.AllowedOrigins, origin) {
		return true
	}
	from, err := originHost(origin)
	if err != nil {
		return false // for example "null"
	}
	// The gateway's own pages. On loopback the Host was checked already.
	return isLoopbackHost(hostOnly(from)) || !loopback && from == host
}

// allowedOriginHost reports whether a host, without its port, is that of a configured origin.
func (g *Service) allowedOriginHost(host string) bool {
	return slices.ContainsFunc(g.cfg.AllowedOrigins, func(origin string) bool {
		from, err := originHost(origin)
		return err == nil && hostOnly(from) == host
	})
}

// plain refuses paths that are not in their shortest form, such as with .. in them, as not
// found: ServeMux would answer with a redirect in HTML.
func plain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
			unrouted(w, r, http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticated serves requests with a valid credential, with its actor in their context. It
// refuses the credentials of services, and a namespace that sends more requests than it may.
// The context of the request ends when the credential does.
func (g *Service) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer := ""
		// An empty header is an error, unlike a missing one.
		if values, given := r.Header["Authorization"]; given {
			const scheme = "bearer "
			if len(values) != 1 || len(values[0]) <= len(scheme) || !strings.EqualFold(values[0][:len(scheme)], scheme) {
				refuse(w, r, fault.Unauthenticated.New("the Authorization header must be: Bearer <token>"))
				return
			}
			bearer = values[0][len(scheme):]
		}
		actor, err := g.deps.Auth.Authenticate(r.Context(), bearer)
		if err == nil && actor.Role == rpc.RoleService {
			// The planes would take it for a call of this gateway, with its certificate.
			err = fault.Unauthenticated.New("services speak gRPC; their credentials are not taken here")
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		if g.deps.Limit != nil {
			if err := g.deps.Limit(actor.Namespace); err != nil {
				refuse(w, r, err)
				return
			}
		}
		ctx := rpc.WithActor(r.Context(), actor)
		if holder, ok := g.deps.Auth.(rpc.Holder); ok && bearer != "" {
			held, release := holder.Hold(ctx, bearer)
			defer release()
			ctx = held
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// originHost returns the host of an http or https origin, with its port if it names one.
func originHost(origin string) (host string, err error) {
	u, err := url.Parse(origin)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" {
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
