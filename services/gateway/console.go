package gateway

import (
	"errors"
	"net/http"
	"time"

	"quartet/pkg/fault"
)

// Console is the web console with the sessions of its users.
type Console interface {
	// Home serves the start page.
	Home(w http.ResponseWriter, r *http.Request)
	// Pages returns the handler of GET /ui and what is below it.
	Pages(refuse func(http.ResponseWriter, *http.Request, error)) http.Handler
	// Sessions returns the handler of /ui/session and /ui/code.
	Sessions(refuse func(http.ResponseWriter, *http.Request, error)) http.Handler
	// SignIn returns the handler of /ui/oidc and what is below it.
	SignIn(refuse func(http.ResponseWriter, *http.Request, error)) http.Handler
	// Bearer returns the credential of the session of a request, and when the session ends; "" without one.
	Bearer(r *http.Request) (credential string, ends time.Time)
}

// console adds the paths of the console. Other sites may link to the files of the console, which show nothing but the
// version. No web page but those of this server and of allowed origins can begin or end sessions.
func (g *Service) console(all *http.ServeMux) {
	pages := g.hosts(only(http.MethodGet, g.deps.Console.Pages(refuse)))
	all.Handle("/ui", pages)
	all.Handle("/ui/", pages)
	all.Handle("/{$}", g.hosts(only(http.MethodGet, http.HandlerFunc(g.deps.Console.Home))))
	sessions := g.origins(g.deps.Console.Sessions(func(w http.ResponseWriter, r *http.Request, err error) {
		if errors.Is(err, fault.Unauthenticated) {
			g.refuseCaller(w, r, err)
			return
		}
		refuse(w, r, err)
	}))
	all.Handle("/ui/session", sessions)
	all.Handle("/ui/code", sessions)
	// The identity provider's page sends browsers back to paths below /ui/oidc, where the cookie of the sign-in is
	// checked. A sign-in is begun by a page of this server or of an allowed origin, or in the address line.
	signIn := only(http.MethodGet, g.deps.Console.SignIn(refuse))
	all.Handle("/ui/oidc/", g.hosts(signIn))
	all.Handle("/ui/oidc", g.origins(signIn))
	all.Handle("/ui/oidc/start", g.origins(signIn))
}
