package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/localtoken"
	"quartet/pkg/rpc"
)

// MinBootstrap is the minimum length of a bootstrap token, in characters. The token has the
// rights of an admin of the installation, so it must be too long to be guessed.
const MinBootstrap = 32

// runCheck is how often a stream or long poll with the credential of a run checks whether the run has
// ended.
const runCheck = 2 * time.Second

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
	// Run returns RUN_STALE if the run of an actor has ended; nil: runs are not checked.
	Run func(ctx context.Context, a rpc.Actor) error

	// Refused is called for each credential that is refused as UNAUTHENTICATED, but not for
	// calls without one. Optional.
	Refused func(ctx context.Context)

	bootstrap *[sha256.Size]byte
	local     *[sha256.Size]byte
}

// SetBootstrap makes token a credential of an admin of the installation for as long as
// the process runs, so that the first key of an installation can be created. An empty token
// sets none. A token that is shorter than MinBootstrap or contains white space is an error.
// It must be called before Authenticate.
func (a *Authenticator) SetBootstrap(token string) error {
	if token == "" {
		return nil
	}
	if len(token) < MinBootstrap || strings.ContainsAny(token, " \t\r\n") {
		return fmt.Errorf("bootstrap-token must be at least %d characters without blanks; `openssl rand -hex 32` "+
			"gives one", MinBootstrap)
	}
	sum := sha256.Sum256([]byte(token))
	a.bootstrap = &sum
	return nil
}

// SetLocal makes token a credential of an admin of the installation, which users of this machine find in a file; see
// package localtoken. It must be called before Authenticate.
func (a *Authenticator) SetLocal(token string) {
	sum := sha256.Sum256([]byte(token))
	a.local = &sum
}

// Authenticate implements rpc.Authenticator.
func (a *Authenticator) Authenticate(ctx context.Context, bearer string) (rpc.Actor, error) {
	actor, err := a.authenticate(ctx, bearer)
	if err != nil && bearer != "" && a.Refused != nil && errors.Is(err, fault.Unauthenticated) {
		a.Refused(ctx)
	}
	return actor, err
}

// authenticate is Authenticate without the call of Refused.
func (a *Authenticator) authenticate(ctx context.Context, bearer string) (rpc.Actor, error) {
	switch {
	case bearer == "" && a.local != nil:
		return rpc.Actor{}, fault.Unauthenticated.New("no credential; clients of the user who runs this server find " +
			"its token themselves, and curl sends it with -H @FILE, the file that the server names when it starts; " +
			"others send Authorization: Bearer KEY")
	case strings.HasPrefix(bearer, SecretPrefix):
		return a.Keys.Authenticate(ctx, bearer)
	case strings.HasPrefix(bearer, localtoken.Prefix):
		if is(bearer, a.local) {
			return rpc.Actor{Namespace: rpc.DefaultNamespace, Principal: "local", Role: rpc.RoleInstallationAdmin}, nil
		}
		return rpc.Actor{}, fault.Unauthenticated.New("the local token is not that of this server; read the file " +
			"again that the server named when it started")
	case bearer == "" || rpc.IsMinted(bearer):
		return a.Keyring.Authenticate(ctx, bearer)
	case is(bearer, a.bootstrap):
		return rpc.Actor{Namespace: rpc.DefaultNamespace, Principal: "bootstrap", Role: rpc.RoleInstallationAdmin}, nil
	case a.Tokens != nil && ofProvider(bearer):
		return a.Tokens.Authenticate(ctx, bearer)
	}
	return a.Keyring.Authenticate(ctx, bearer)
}

// Hold implements rpc.Holder. The returned context does not end for a bootstrap token, a local token, or
// no credential. For the credential of an agent's run it also ends with the run, which is checked every
// runCheck.
func (a *Authenticator) Hold(ctx context.Context, bearer string) (context.Context, context.CancelFunc) {
	if strings.HasPrefix(bearer, SecretPrefix) {
		return a.Keys.Hold(ctx, bearer)
	}
	if rpc.IsMinted(bearer) {
		held, release := a.Keyring.Hold(ctx, bearer)
		actor, err := a.Keyring.Authenticate(ctx, bearer)
		if err != nil || a.Run == nil || actor.Role != rpc.RoleAgent || actor.RunID == "" {
			return held, release
		}
		running, end := context.WithCancelCause(held)
		go a.watchRun(running, actor, end)
		return running, func() {
			end(nil)
			release()
		}
	}
	if h, ok := a.Tokens.(rpc.Holder); ok && ofProvider(bearer) {
		return h.Hold(ctx, bearer)
	}
	return ctx, func() {}
}

// watchRun calls end when the run of an actor has ended, and returns when ctx ends. Two checks in a
// row have to find it ended, so that the call which ended the run can still return its response.
func (a *Authenticator) watchRun(ctx context.Context, actor rpc.Actor, end context.CancelCauseFunc) {
	ticker := time.NewTicker(runCheck)
	defer ticker.Stop()
	for stale := 0; stale < 2; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := a.Run(rpc.WithActor(ctx, actor), actor); errors.Is(err, fault.RunStale) {
			stale++
		} else {
			stale = 0
		}
	}
	end(fault.Unauthenticated.Newf("run %s has ended, and its credential with it", actor.RunID).
		With("run_id", actor.RunID))
}

// ofProvider reports whether a credential has the form of a token of the identity provider, or of a sign-in with one.
func ofProvider(bearer string) bool {
	return strings.HasPrefix(bearer, jwtBegin) || strings.HasPrefix(bearer, signInPrefix)
}

// is reports whether hash is the SHA-256 of a credential. It is false for a nil hash.
func is(bearer string, hash *[sha256.Size]byte) bool {
	if hash == nil {
		return false
	}
	sum := sha256.Sum256([]byte(bearer))
	return subtle.ConstantTimeCompare(sum[:], hash[:]) == 1
}
