package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/keyfile"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/app/calls"
	"quartet/services/console/signin"
	"quartet/services/identity"
)

// The values of the setting auth.
const (
	AuthAuto     = "auto"
	AuthRequired = "required"
	AuthLocal    = "local"
	AuthOff      = "off"
)

// completeAuth checks the settings auth and open, and replaces auto by off, local or required. If
// calls without a credential are accepted (off), everybody who can connect is an admin; with
// local, whoever can read the token files of this process's user. In both cases grpc-addr and http-addr
// must be loopback addresses (SPEC X15, I1).
func (c *Config) completeAuth() error {
	if c.Open {
		switch c.Auth {
		case "", AuthAuto, AuthOff:
			c.Auth = AuthOff
		default:
			return fmt.Errorf("open is the same as auth=%s, and auth is %q; give one of both", AuthOff, c.Auth)
		}
	}
	reachable := errors.Join(loopback("grpc-addr", c.GRPCAddr), loopback("http-addr", c.HTTPAddr))
	switch c.Auth {
	case "", AuthAuto:
		c.Auth = AuthLocal
		if reachable != nil {
			c.Auth = AuthRequired
		}
	case AuthOff, AuthLocal:
		if reachable != nil {
			return fmt.Errorf("auth is %s: %w, or omit auth", c.Auth, reachable)
		}
	case AuthRequired:
	default:
		return fmt.Errorf("auth is %q; it must be %s, %s, %s or %s", c.Auth, AuthAuto, AuthRequired, AuthLocal, AuthOff)
	}
	return nil
}

// completeMetricsAuth checks the setting metrics-auth.
func (c *Config) completeMetricsAuth() error {
	switch c.MetricsAuth {
	case "":
		c.MetricsAuth = AuthAuto
	case AuthAuto, AuthRequired, AuthOff:
	default:
		return fmt.Errorf("metrics-auth is %q; it must be %s, %s or %s", c.MetricsAuth, AuthAuto, AuthRequired, AuthOff)
	}
	return nil
}

// gatewayMetricsAuth reports whether GET /metrics of the gateway demands a credential.
func (c *Config) gatewayMetricsAuth() bool {
	return c.MetricsAuth == AuthRequired || c.MetricsAuth == AuthAuto && loopback("http-addr", c.HTTPAddr) != nil
}

// allowedOrigins returns the origin of public-url: a proxy that speaks TLS sends requests of its own pages
// over plain HTTP, so that their origin has another scheme. A server that only this machine
// reaches answers to loopback hosts only, and its pages have one of those as origin.
func (c *Config) allowedOrigins() []string {
	u, err := url.Parse(c.PublicURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || loopback("http-addr", c.HTTPAddr) ==
		nil {
		return nil
	}
	return []string{u.Scheme + "://" + u.Host}
}

// completeSignIn checks the settings of the sign-in with an OpenID provider, and sets an empty RedirectURL from
// public-url. On loopback it stays empty: the gateway answers to loopback hosts only, and the browser may use any.
func (c *Config) completeSignIn() error {
	if err := c.SignIn.Check(); err != nil {
		return err
	}
	c.OIDC.ClientID, c.OIDC.ClientSecret = c.SignIn.ClientID, c.SignIn.SecretFile != ""
	if c.SignIn.ClientID == "" || c.SignIn.RedirectURL != "" || !c.serves("gateway") ||
		loopback("http-addr", c.HTTPAddr) == nil {
		return nil
	}
	if c.PublicURL == "" {
		return errors.New("oidc-client-id needs public-url or oidc-redirect-url where other machines reach " +
			"http-addr: to where the identity provider sends browsers back")
	}
	c.SignIn.RedirectURL = strings.TrimSuffix(c.PublicURL, "/") + signin.CallbackPath
	if err := c.SignIn.Check(); err != nil {
		return fmt.Errorf("%w; it follows from public-url, and oidc-redirect-url sets another one", err)
	}
	return nil
}

// callers authenticates the callers of this process.
type callers struct {
	keyring       *rpc.Keyring
	keys          *identity.Keys
	authenticator *identity.Authenticator
	tokens        *identity.Tokens // nil without an OpenID provider
}

// signIn returns the sign-in to the console with an OpenID provider, nil if none is configured.
func (c *callers) signIn(cfg *Config, keys *keyfile.Source, logger *zap.Logger) (*signin.Flow, error) {
	return signin.New(cfg.SignIn, signin.Deps{
		Provider: c.tokens, Issuer: cfg.OIDC.Issuer, Keys: keys.Ring, Logger: logger,
		Refused: func(ctx context.Context) { c.authenticator.Refused(ctx) },
	})
}

// newCallers returns what authenticates the callers of this process. It accepts the credentials that
// a key of the installation signed and, if configured, tokens of an OpenID provider and the bootstrap
// token; with auth off also calls without a credential. follow adds API keys.
func newCallers(cfg *Config, keys *keyfile.Source, logger *zap.Logger) (*callers, error) {
	c := &callers{keyring: rpc.KeyringOf(keys, cfg.Auth == AuthOff)}
	c.authenticator = &identity.Authenticator{Keyring: c.keyring}
	cfg.OIDC.Logger, cfg.OIDC.Keys = logger, keys.Ring
	tokens, err := identity.NewTokens(cfg.OIDC)
	if err != nil {
		return nil, err
	}
	if tokens != nil {
		c.tokens, c.authenticator.Tokens = tokens, tokens
	}
	return c, c.authenticator.SetBootstrap(cfg.BootstrapToken)
}

// follow makes the authenticator accept API keys, which c.keys reads from the journal of the
// identity plane once it is started.
func (c *callers) follow(b *broker, to calls.Planes, logger *zap.Logger) {
	client := identityv1.NewIdentityServiceClient(to.To("identity"))
	c.keys = identity.NewKeys(identity.KeysConfig{
		Sources: b.sources, Logger: logger, Damage: func() error {
			return b.feeds.Damage.Of(framelog.PartitionName(identity.Plane, 0))
		},
		Report: func(ctx context.Context, uses []*identityv1.KeyUse) error {
			_, err := client.ReportKeyUse(ctx, &identityv1.ReportKeyUseRequest{Uses: uses})
			return err
		},
	})
	c.authenticator.Keys = c.keys
}
