package app

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/app/calls"
	"quartet/services/identity"
)

// The values of the setting auth.
const (
	AuthAuto     = "auto"
	AuthRequired = "required"
	AuthOff      = "off"
)

// completeAuth checks the setting auth, and replaces auto by off or required. If calls
// without a credential are accepted (off), everybody who can connect is an admin, so
// grpc-addr and http-addr must be loopback addresses (SPEC X15).
func (c *Config) completeAuth() error {
	reachable := errors.Join(loopback("grpc-addr", c.GRPCAddr), loopback("http-addr", c.HTTPAddr))
	switch c.Auth {
	case "", AuthAuto:
		c.Auth = AuthOff
		if reachable != nil {
			c.Auth = AuthRequired
		}
	case AuthOff:
		if reachable != nil {
			return fmt.Errorf("auth is off: %w, or omit auth", reachable)
		}
	case AuthRequired:
	default:
		return fmt.Errorf("auth is %q; it must be %s, %s or %s", c.Auth, AuthAuto, AuthRequired, AuthOff)
	}
	return nil
}

// callers authenticates the callers of this process.
type callers struct {
	keyring       *rpc.Keyring
	keys          *identity.Keys
	authenticator *identity.Authenticator
}

// newCallers returns what authenticates the callers of this process: with keys of the
// installation's key and, if configured, tokens of an OpenID provider and the bootstrap token.
// follow adds API keys.
func newCallers(cfg *Config, key []byte, logger *zap.Logger) (*callers, error) {
	c := &callers{keyring: rpc.NewKeyring(key, cfg.Auth == AuthOff)}
	c.authenticator = &identity.Authenticator{Keyring: c.keyring}
	cfg.OIDC.Logger = logger
	tokens, err := identity.NewTokens(cfg.OIDC)
	if err != nil {
		return nil, err
	}
	if tokens != nil {
		c.authenticator.Tokens = tokens
	}
	return c, c.authenticator.SetBootstrap(cfg.BootstrapToken)
}

// follow makes the authenticator accept API keys, which c.keys reads from the journal of the
// identity plane once it is started.
func (c *callers) follow(b *broker, to calls.Planes, logger *zap.Logger) {
	client := identityv1.NewIdentityServiceClient(to.To("identity"))
	c.keys = identity.NewKeys(identity.KeysConfig{
		Sources: b.sources, Logger: logger,
		Report: func(ctx context.Context, uses []*identityv1.KeyUse) error {
			_, err := client.ReportKeyUse(ctx, &identityv1.ReportKeyUseRequest{Uses: uses})
			return err
		},
	})
	c.authenticator.Keys = c.keys
}
