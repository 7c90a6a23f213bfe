package signin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
)

const (
	maxScopes = 20
	maxScope  = 100     // bytes of one scope
	maxSecret = 4 << 10 // bytes of the client's secret
	maxID     = 512     // bytes of the client's id
)

// Config is what an operator sets.
type Config struct {
	// ClientID is the id of this server as a client of the provider; empty: there is no sign-in with a provider.
	ClientID string
	// SecretFile is the file with the client's secret; empty: the client is a public one. It is read for each
	// sign-in.
	SecretFile string
	// Scopes are requested of the provider; openid is always among them.
	Scopes []string
	// RedirectURL is the address to which the provider sends browsers back: that of CallbackPath, below a prefix if a
	// proxy adds one. Empty: CallbackPath at the host to which the request was sent, which then must be loopback.
	RedirectURL string
}

// Check returns nil if the settings are valid, and otherwise an error that names the setting that is wrong.
func (c *Config) Check() error {
	if c.ClientID == "" {
		if c.SecretFile != "" || c.RedirectURL != "" {
			return errors.New("oidc-client-secret-file and oidc-redirect-url need oidc-client-id, the id of this " +
				"server at the provider")
		}
		return nil
	}
	if len(c.ClientID) > maxID || strings.ContainsFunc(c.ClientID, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return fmt.Errorf("oidc-client-id must be at most %d printable ASCII characters", maxID)
	}
	if len(c.Scopes) > maxScopes {
		return fmt.Errorf("oidc-scopes has %d scopes; it may have %d", len(c.Scopes), maxScopes)
	}
	for _, scope := range c.Scopes {
		// RFC 6749, appendix A.4.
		if scope == "" || len(scope) > maxScope ||
			strings.ContainsFunc(scope, func(r rune) bool { return r <= 0x20 || r > 0x7e || r == '"' || r == '\\' }) {
			return fmt.Errorf("oidc-scopes: %q is no scope; a scope is 1 to %d ASCII characters without blanks, "+
				"quotes and backslashes", scope, maxScope)
		}
	}
	if c.RedirectURL == "" {
		return nil
	}
	return checkRedirect(c.RedirectURL)
}

// checkRedirect returns an error unless the address ends in CallbackPath, and is an https address or one on loopback.
func checkRedirect(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme != "https" &&
		(u.Scheme != "http" || !onLoopback(u.Host)):
		return fmt.Errorf("oidc-redirect-url %q must be an https address, or an http one on loopback", address)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(address, "#"):
		return fmt.Errorf("oidc-redirect-url %q must have no user, query or fragment", u.Redacted())
	case !strings.HasSuffix(u.Path, CallbackPath) || strings.Contains(u.EscapedPath(), "%") ||
		slices.ContainsFunc(strings.Split(u.Path, "/")[1:], func(part string) bool {
			return part == "" || part == "." ||
				part == ".."
		}):
		return fmt.Errorf("oidc-redirect-url %q must end in %s, with only the prefix of a proxy before that", address,
			CallbackPath)
	}
	return nil
}

// onLoopback reports whether a host, with or without a port, is localhost or a loopback address. It resolves no names.
func onLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// CheckSecret returns an error if the client's secret cannot be read.
func (c *Config) CheckSecret() error {
	_, err := c.secret()
	return err
}

// secret reads the client's secret, "" for a public client.
func (c *Config) secret() (string, error) {
	if c.SecretFile == "" {
		return "", nil
	}
	f, err := os.Open(c.SecretFile)
	if err != nil {
		return "", fmt.Errorf("oidc-client-secret-file: %w; name a file that this user can read", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("oidc-client-secret-file: %w", err)
	}
	secret := string(bytes.TrimSpace(raw))
	if secret == "" || len(raw) > maxSecret {
		return "", fmt.Errorf("oidc-client-secret-file %s must contain the client's secret, of at most %d bytes",
			c.SecretFile, maxSecret)
	}
	return secret, nil
}

// scopes returns Scopes with openid.
func (c *Config) scopes() []string {
	if slices.Contains(c.Scopes, "openid") {
		return c.Scopes
	}
	return append([]string{"openid"}, c.Scopes...)
}
