package proc

import (
	"net/http"

	"quartet/pkg/localtoken"
)

// HTTP is http.DefaultClient, but its requests to a server that demands the local token have it.
var HTTP = &http.Client{Transport: WithToken{http.DefaultTransport}}

// WithToken gives each request without a credential the token of the server of this user to which it
// goes, if there is one, as clients of the server do.
type WithToken struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t WithToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") == "" {
		token, err := localtoken.Read(r.URL.Host)
		if err != nil {
			return nil, err
		}
		if token != "" {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	return t.RoundTripper.RoundTrip(r)
}

// CloseIdleConnections is called by that of http.Client.
func (t WithToken) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
