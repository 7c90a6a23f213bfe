package natsd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"quartet/pkg/certs"
)

// Remote holds the address of a NATS server or cluster and the credentials for it. Files are
// read at each connect, so that a renewed file takes effect with the next one; but the key of
// NKeyFile must stay the same while connected. A Remote with only URL set connects in plain text
// without a credential.
type Remote struct {
	// URL is one address, or several of a cluster, separated by commas.
	URL string
	// User is the user name, with the password in PasswordFile, or without a password.
	User, PasswordFile string
	// CredsFile contains a user's JWT and seed, as written by nsc.
	CredsFile string
	// NKeyFile contains the seed of an nkey.
	NKeyFile string
	// TLS holds the authority of the servers (CA) and the client's certificate (Cert, Key).
	TLS certs.Files
	// ServerName is the name that the servers' certificates must have; empty: the host of
	// the address.
	ServerName string
}

// Check returns an error if the settings contradict each other.
func (r Remote) Check() error {
	ways := 0
	for _, given := range []bool{r.User != "" || r.PasswordFile != "", r.CredsFile != "", r.NKeyFile != ""} {
		if given {
			ways++
		}
	}
	switch {
	case r.URL == "" && (ways > 0 || r.secured()):
		return errors.New("nats-user, nats-creds-file, nats-tls-ca-file and their like are for a server elsewhere: " +
			"give nats-url, or leave them out")
	case ways > 1:
		return errors.New("nats-user with nats-password-file, nats-creds-file and nats-nkey-file are three ways in; " +
			"give one")
	case r.PasswordFile != "" && r.User == "":
		return errors.New("nats-password-file needs nats-user")
	}
	for address := range strings.SplitSeq(r.URL, ",") {
		if _, err := url.Parse(strings.TrimSpace(address)); err != nil {
			return errors.New("nats-url: " + Redact(err.Error(), r.URL))
		}
	}
	return r.TLS.Check()
}

// secured reports whether the connection must use TLS whatever the scheme of the address.
func (r Remote) secured() bool {
	return r.ServerName != "" || r.TLS.CA != "" || r.TLS.Cert != "" || r.TLS.Key != ""
}

// Encrypted reports whether the settings demand TLS. Without that, TLS is used only if the server
// requires it.
func (r Remote) Encrypted() bool {
	return r.secured() || strings.HasPrefix(strings.TrimSpace(r.URL), "tls://")
}

// Files returns the files that only this user should be able to read, by setting.
func (r Remote) Files() map[string]string {
	out := map[string]string{}
	for name, path := range map[string]string{
		"nats-password-file": r.PasswordFile, "nats-creds-file": r.CredsFile, "nats-nkey-file": r.NKeyFile,
		"nats-tls-key-file": r.TLS.Key,
	} {
		if path != "" {
			out[name] = path
		}
	}
	return out
}

// Refused is an error of connecting, with advice to the operator. Its texts contain no
// password.
type Refused struct {
	Text, Mend string
	err        error
}

func (e *Refused) Error() string { return e.Text + "; " + e.Mend }

// Unwrap returns the error of the connection.
func (e *Refused) Unwrap() error { return e.err }

// Connect connects with the settings of Options. Its errors are of type *Refused. It uses only the
// deadline of ctx, as the limit for the attempt to connect to one server. If logger is nil, it does not log
// why a connection that is lost later cannot be restored.
func (r Remote) Connect(ctx context.Context, name string, logger *zap.Logger) (*nats.Conn, error) {
	if logger == nil {
		logger = zap.NewNop()
	}
	logOnce := r.logOnce(logger)
	var conn atomic.Pointer[nats.Conn]
	opts := append(Options(name),
		// No handler is called for a handshake that fails, so the errors are read in the
		// pause between attempts.
		nats.CustomReconnectDelay(func(int) time.Duration {
			if nc := conn.Load(); nc != nil && nc.LastError() != nil {
				logOnce(nc.LastError())
			}
			return reconnectWait + rand.N(reconnectWait/2) //nolint:gosec // no secret depends on it
		}),
		// A password that is being replaced on both sides may be refused for a while.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { logOnce(err) }),
		// Without a handler the client prints errors to stderr.
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if sub == nil {
				logOnce(err)
				return
			}
			logger.Warn("NATS", zap.String("subject", sub.Subject), zap.Error(err))
		}))
	if at, ok := ctx.Deadline(); ok {
		opts = append(opts, nats.Timeout(time.Until(at)))
	}
	more, err := r.options(logger)
	if err != nil {
		return nil, r.refused(err)
	}
	nc, err := nats.Connect(r.URL, append(opts, more...)...)
	if err != nil {
		return nil, r.refused(err)
	}
	conn.Store(nc)
	return nc, nil
}

// logOnce returns a handler that logs why a lost connection cannot be restored. It logs a reason
// only if it differs from the one before, because the client tries ten times a second.
func (r Remote) logOnce(logger *zap.Logger) func(error) {
	var mu sync.Mutex
	var last string
	return func(err error) {
		text := r.refused(err).Error()
		mu.Lock()
		known := text == last
		last = text
		mu.Unlock()
		if !known {
			logger.Warn("NATS does not take the connection; trying on", zap.String("error", text))
		}
	}
}

func (r Remote) options(logger *zap.Logger) (opts []nats.Option, err error) {
	switch {
	case r.CredsFile != "":
		opts = append(opts, nats.UserCredentials(r.CredsFile))
		_, err = os.Stat(r.CredsFile)
	case r.NKeyFile != "":
		var nkey nats.Option
		if nkey, err = nats.NkeyOptionFromSeed(r.NKeyFile); err == nil {
			opts = append(opts, nkey)
		}
	case r.User != "":
		if _, err = r.password(); err == nil {
			opts = append(opts, nats.UserInfoHandler(func() (string, string) {
				secret, err := r.password()
				if err != nil {
					logger.Warn("the password of NATS cannot be read", zap.Error(err))
				}
				return r.User, secret
			}))
		}
	}
	// TLS is also used where the address or the server wants it.
	opts = append(opts, func(o *nats.Options) error {
		o.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: r.ServerName,
			VerifyConnection: certs.VerifyPeer,
		}
		return nil
	})
	if err != nil || !r.secured() {
		return opts, err
	}
	files := r.TLS
	files.Prefix = "nats-"
	store, err := certs.Open(files, logger)
	if err != nil {
		return nil, err
	}
	opts = append(opts, nats.Secure())
	var show nats.TLSCertHandler
	if files.Cert != "" {
		show = func() (tls.Certificate, error) { return store.Client().Certificates[0], nil }
	}
	return append(opts, nats.ClientTLSConfig(show, func() (*x509.CertPool, error) {
		return store.Client().RootCAs,
			nil
	})), nil
}

func (r Remote) password() (string, error) {
	if r.PasswordFile == "" {
		return "", nil
	}
	raw, err := os.ReadFile(r.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("nats-password-file: %w", err)
	}
	// Editors and echo end files with a newline that is not part of the secret.
	return strings.TrimRight(string(raw), "\r\n"), nil
}

func (r Remote) refused(err error) *Refused {
	return &Refused{
		Text: "NATS at " + Redact(r.URL, r.URL) + ": " + Redact(err.Error(), r.URL),
		Mend: r.mend(err), err: err,
	}
}

// mend returns what an operator can do about an error of connecting.
func (r Remote) mend(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	text := err.Error()
	says := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.As(err, &unknown):
		return "nats-tls-ca-file must be the certificate of the authority that signed the servers'"
	case errors.As(err, &name):
		return "connect by a name that stands in the servers' certificate, or give one as nats-tls-server-name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the servers' certificate and reload the servers, or set this machine's clock"
	case says("remote error: tls:", "closed by remote after TLS handshake"):
		// The server's alert about the client's certificate may be lost with the connection.
		return r.refusedCertificate()
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "switch TLS on in the servers' configuration, or leave the nats-tls settings out"
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired),
		errors.Is(err, nats.ErrAuthRevoked), says("Authorization Violation", "nkeys", "nkey"):
		return "the servers do not know this user: correct nats-user and nats-password-file, nats-creds-file or " +
			"nats-nkey-file, or let the certificate's name in"
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return "correct the path, or let this user read the file"
	case says("tls:"):
		return "correct the nats-tls settings"
	}
	return "start it, or correct nats-url; a firewall may be between"
}

// refusedCertificate returns why servers may refuse the client's certificate.
func (r Remote) refusedCertificate() string {
	if r.TLS.Cert == "" {
		return "the servers want a certificate: give nats-tls-cert-file and nats-tls-key-file"
	}
	if pair, err := tls.LoadX509KeyPair(r.TLS.Cert, r.TLS.Key); err == nil && pair.Leaf != nil &&
		time.Now().After(pair.Leaf.NotAfter) {
		return "renew nats-tls-cert-file: it ended at " + pair.Leaf.NotAfter.UTC().Format(time.RFC3339)
	}
	return "nats-tls-cert-file must be signed by the authority that the servers trust"
}

// Redact returns text with … in place of the credentials of addresses, which is a list of URLs separated by commas:
// of all that is before the @, such as user:password, and of the password alone. The user name before a password,
// where it is alone, stays. The scheme of a URL may be missing, which then is nats.
func Redact(text, addresses string) string {
	for address := range strings.SplitSeq(addresses, ",") {
		if _, rest, found := strings.Cut(address, "://"); found {
			address = rest
		}
		at := strings.LastIndexByte(address, '@')
		if at < 0 {
			continue
		}
		user := strings.TrimSpace(address[:at])
		if user == "" {
			continue
		}
		text = strings.ReplaceAll(text, user, "…")
		if _, secret, found := strings.Cut(user, ":"); found && secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return text
}
