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

// A page in a browser can reach loopback whatever site it is from, and on
// loopback callers without credential are let in. Two checks keep it out: the
// Host it must send (DNS rebinding) and the Origin it must admit to.

// hosts refuses requests that name another host than loopback, the allowed hosts
// and those of the allowed origins, if the gateway is bound to loopback. Elsewhere
// credentials are required and the name is the proxy's business.
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

// origins refuses requests of pages of foreign origins, except those that only read. What
// such a page sees of the response is decided by CORS, which allows configured origins.
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

func (g *Service) allowedOrigin(origin, host string, loopback bool) bool {
	if slices.Contains(g.cfg.AllowedOrigins, origin) {
		return true
	}
	from, err := originHost(origin)
	if err != nil {
		return false // "null" among others
	}
	// The gateway's own pages. On loopback the Host was checked already.
	return isLoopbackHost(hostOnly(from)) || !loopback && from == host
}

func (g *Service) allowedOriginHost(host string) bool {
	return slices.ContainsFunc(g.cfg.AllowedOrigins, func(origin string) bool {
		from, err := originHost(origin)
		return err == nil && hostOnly(from) == host
	})
}

// plain refuses paths that are not written as they are meant, such as with ..
// in them: ServeMux would answer with a redirect in HTML, and no client that
// builds its paths with care sends them.
func plain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
			unrouted(w, r, http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticated lets a caller in whose credential is good, as its actor. It refuses the
// credentials of services, and a namespace that sends more requests than it may. The context
// of the request ends when the credential does.
func (g *Service) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer := ""
		// An empty header is a header: it is wrong, not absent.
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
			// It would come to the planes as this gateway's word, certificate and all.
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

func originHost(origin string) (string, error) {
	u, err := url.Parse(origin)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" {
		return "", errors.New("must be a scheme and a host, such as https://console.example.com")
	}
	return u.Host, nil
}

func hostOnly(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func isLoopbackHost(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
