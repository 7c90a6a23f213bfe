package session

import (
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"quartet/pkg/certs"
	"quartet/pkg/localtoken"
	"quartet/services/cli/exit"
)

// webPort is the port of REST unless the server's settings say otherwise.
const webPort = "7480"

// webTimeout bounds a request over HTTP.
const webTimeout = 30 * time.Second

// Web is how the server is reached over HTTP.
type Web struct {
	// Bases are the addresses that may be the server's, most likely first, such as http://127.0.0.1:7480/.
	Bases []string
	// Token is the credential; "" if the server demands none.
	Token string
	// Client makes the requests.
	Client *http.Client
}

// Web returns how to reach the server over HTTP. at is its address as a person gives it, such as
// https://quartet.example.com/; it is then the only base. If at is "", the bases are the other addresses of the
// server of this user that listens at --address, as token files name them, and after these the default port of
// the same host. That port is left out if Token is from a token file, which is for this user's server only.
func (s *Session) Web(at string) (*Web, error) {
	if err := s.settings.Load(""); err != nil {
		return nil, exit.UsageError(err.Error())
	}
	w := &Web{Token: strings.TrimSpace(s.token), Client: &http.Client{
		Timeout:       webTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	scheme := "http"
	if s.UsesTLS() {
		scheme = "https"
		store, err := certs.Open(s.tlsFiles, nil)
		if err != nil {
			return nil, exit.UsageError(err.Error())
		}
		w.Client.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: store.Client()}
	}
	host, port, err := net.SplitHostPort(s.address)
	if err != nil {
		return nil, exit.UsageError("--address " + s.address + ": " + err.Error())
	}
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1" // as pkg/client does: a token is for one address
	}
	addr := net.JoinHostPort(host, port)
	own := "" // the token of this user's server
	if w.Token == "" {
		if own, err = localtoken.Read(addr); err != nil {
			return nil, err
		}
		w.Token = own
	}
	if at != "" {
		u, err := url.Parse(at)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			return nil, exit.UsageError("--url " + at + " must be an address such as https://quartet.example.com/, " +
				"without user, query and fragment")
		}
		w.Bases = []string{strings.TrimSuffix(strings.TrimSuffix(at, "/"), "/ui") + "/"}
		return w, nil
	}
	others, err := localtoken.Others(addr)
	if err != nil {
		return nil, err
	}
	if own == "" { // which is sent to this user's server only
		others = append(others, net.JoinHostPort(host, webPort))
	}
	for _, at := range others {
		w.Bases = append(w.Bases, scheme+"://"+at+"/")
	}
	if len(w.Bases) == 0 {
		return nil, exit.UsageError("the server at " + s.address + " serves no REST on this machine; give its " +
			"address for browsers with --url")
	}
	return w, nil
}
