package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"

	"quartet/pkg/rpc"
)

// MinBootstrap is the least length of a bootstrap token, in characters. It has the rights
// of an admin and must not be guessed.
const MinBootstrap = 32

// jwtBegin is {" in base64, with which every JWT begins.
const jwtBegin = "eyJ"

// Authenticator is the rpc.Authenticator of an installation. The kind of a credential
// follows from its prefix, and each kind has an authenticator.
type Authenticator struct {
	// Keyring checks the credentials that services mint, for runs and for themselves, and
	// admits calls without a credential if the server requires none.
	Keyring *rpc.Keyring
	// Keys checks API keys.
	Keys *Keys
	// Tokens checks the tokens of an identity provider; nil without one.
	Tokens rpc.Authenticator

	bootstrap *[sha256.Size]byte
}

// SetBootstrap makes token a credential of an admin of the default namespace for as long as
// the process runs, so that the first key of an installation can be created. An empty token
// sets none.
func (a *Authenticator) SetBootstrap(token string) error {
	if token == "" {
		return nil
	}
	if len(token) < MinBootstrap || strings.ContainsAny(token, " \t\r\n") {
		return fmt.Errorf("bootstrap-token must be at least %d characters without blanks; `openssl rand -hex 32` gives one", MinBootstrap)
	}
	sum := sha256.Sum256([]byte(token))
	a.bootstrap = &sum
	return nil
}

// Authenticate implements rpc.Authenticator.
func (a *Authenticator) Authenticate(ctx context.Context, bearer string) (rpc.Actor, error) {
	switch {
	case strings.HasPrefix(bearer, SecretPrefix):
		return a.Keys.Authenticate(ctx, bearer)
	case bearer == "" || rpc.IsMinted(bearer):
		return a.Keyring.Authenticate(ctx, bearer)
	case a.isBootstrap(bearer):
		return rpc.Actor{Namespace: rpc.DefaultNamespace, Principal: "bootstrap", Role: rpc.RoleAdmin}, nil
	case a.Tokens != nil && strings.HasPrefix(bearer, jwtBegin):
		return a.Tokens.Authenticate(ctx, bearer)
	}
	return a.Keyring.Authenticate(ctx, bearer)
}

// Hold implements rpc.Holder. A bootstrap token, and the absence of a credential, do not end.
func (a *Authenticator) Hold(ctx context.Context, bearer string) (context.Context, context.CancelFunc) {
	if strings.HasPrefix(bearer, SecretPrefix) {
		return a.Keys.Hold(ctx, bearer)
	}
	if rpc.IsMinted(bearer) {
		return a.Keyring.Hold(ctx, bearer)
	}
	if h, ok := a.Tokens.(rpc.Holder); ok && strings.HasPrefix(bearer, jwtBegin) {
		return h.Hold(ctx, bearer)
	}
	return ctx, func() {}
}

// isBootstrap reports whether a credential is the bootstrap token; false if none is set.
func (a *Authenticator) isBootstrap(bearer string) bool {
	if a.bootstrap == nil {
		return false
	}
	sum := sha256.Sum256([]byte(bearer))
	return subtle.ConstantTimeCompare(sum[:], a.bootstrap[:]) == 1
}
