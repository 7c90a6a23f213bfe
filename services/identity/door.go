package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"

	"quartet/pkg/rpc"
)

// MinBootstrap is the shortest bootstrap token: what opens everything must not
// be guessed.
const MinBootstrap = 32

// jwtBegin is {" in base64, with which every JWT begins.
const jwtBegin = "eyJ"

// Door is the rpc.Authenticator of an installation: each kind of credential has
// a prefix, and who knows that kind decides about it.
type Door struct {
	// Keyring knows what services mint: run credentials, their own, and, if the
	// server is a keyless one, callers without any.
	Keyring *rpc.Keyring
	// Keys knows API keys.
	Keys *Keys
	// Tokens knows the tokens of an identity provider; nil: there is none.
	Tokens rpc.Authenticator

	bootstrap *[sha256.Size]byte
}

// SetBootstrap lets in whoever has token as an admin of the default namespace,
// for as long as the process runs with it: for the first key of an installation.
func (d *Door) SetBootstrap(token string) error {
	if token == "" {
		return nil
	}
	if len(token) < MinBootstrap || strings.ContainsAny(token, " \t\r\n") {
		return fmt.Errorf("bootstrap-token must be at least %d characters without blanks; `openssl rand -hex 32` gives one", MinBootstrap)
	}
	sum := sha256.Sum256([]byte(token))
	d.bootstrap = &sum
	return nil
}

// Authenticate implements rpc.Authenticator.
func (d *Door) Authenticate(ctx context.Context, bearer string) (rpc.Actor, error) {
	switch {
	case strings.HasPrefix(bearer, SecretPrefix):
		return d.Keys.Authenticate(ctx, bearer)
	case bearer == "" || rpc.IsMinted(bearer):
		return d.Keyring.Authenticate(ctx, bearer)
	case d.isBootstrap(bearer):
		return rpc.Actor{Namespace: rpc.DefaultNamespace, Principal: "bootstrap", Role: rpc.RoleAdmin}, nil
	case d.Tokens != nil && strings.HasPrefix(bearer, jwtBegin):
		return d.Tokens.Authenticate(ctx, bearer)
	}
	return d.Keyring.Authenticate(ctx, bearer)
}

// Hold implements rpc.Holder.
func (d *Door) Hold(ctx context.Context, bearer string) (context.Context, context.CancelFunc) {
	if strings.HasPrefix(bearer, SecretPrefix) {
		return d.Keys.Hold(ctx, bearer)
	}
	if h, ok := d.Tokens.(rpc.Holder); ok && strings.HasPrefix(bearer, jwtBegin) {
		return h.Hold(ctx, bearer)
	}
	return ctx, func() {}
}

func (d *Door) isBootstrap(bearer string) bool {
	if d.bootstrap == nil {
		return false
	}
	sum := sha256.Sum256([]byte(bearer))
	return subtle.ConstantTimeCompare(sum[:], d.bootstrap[:]) == 1
}
