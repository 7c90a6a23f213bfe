package app

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/identity"
)

// The values of the setting auth.
const (
	AuthAuto     = "auto"
	AuthRequired = "required"
	AuthOff      = "off"
)

// completeAuth decides whether calls without credential are let in. Then
// everybody who reaches a port is the admin, so no port may be reachable from
// elsewhere (SPEC X15).
func (c *Config) completeAuth() error {
	open := errors.Join(loopback("grpc-addr", c.GRPCAddr), loopback("http-addr", c.HTTPAddr))
	switch c.Auth {
	case "", AuthAuto:
		c.Auth = AuthOff
		if open != nil {
			c.Auth = AuthRequired
		}
	case AuthOff:
		if open != nil {
			return fmt.Errorf("auth is off: %w, or leave auth out", open)
		}
	case AuthRequired:
	default:
		return fmt.Errorf("auth is %q; it must be %s, %s or %s", c.Auth, AuthAuto, AuthRequired, AuthOff)
	}
	return nil
}

// callers is what tells who calls, in this process.
type callers struct {
	keyring *rpc.Keyring
	keys    *identity.Keys
	door    *identity.Door
}

func newCallers(cfg *Config, key []byte, logger *zap.Logger) (*callers, error) {
	c := &callers{keyring: rpc.NewKeyring(key, cfg.Auth == AuthOff)}
	c.door = &identity.Door{Keyring: c.keyring}
	cfg.OIDC.Logger = logger
	tokens, err := identity.NewTokens(cfg.OIDC)
	if err != nil {
		return nil, err
	}
	if tokens != nil {
		c.door.Tokens = tokens
	}
	return c, c.door.SetBootstrap(cfg.BootstrapToken)
}

// follow gives the door the keys, which are in the journal.
func (c *callers) follow(b *broker, to calls, logger *zap.Logger) {
	client := identityv1.NewIdentityServiceClient(to.to("identity"))
	c.keys = identity.NewKeys(identity.KeysConfig{
		Sources: b.sources, Logger: logger,
		Report: func(ctx context.Context, uses []*identityv1.KeyUse) error {
			_, err := client.ReportKeyUse(ctx, &identityv1.ReportKeyUseRequest{Uses: uses})
			return err
		},
	})
	c.door.Keys = c.keys
}
