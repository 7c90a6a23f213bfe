package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"quartet/pkg/fault"
)

// Authenticator turns a credential into an actor. bearer is "" when the call
// had no Authorization header; a header that was there and is wrong must be
// UNAUTHENTICATED and never fall back to a lesser actor. It is called for
// every request, from many goroutines.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (Actor, error)
}

// Holder is an Authenticator whose credentials may end while a call runs.
type Holder interface {
	// Hold gives a context that ends, with the reason as its cause, when the
	// credential does: it was revoked, or its time is over. release frees what
	// that took and is called when the call has ended.
	Hold(ctx context.Context, bearer string) (held context.Context, release context.CancelFunc)
}

// IsMinted tells the credentials that a Keyring minted, good or not.
func IsMinted(bearer string) bool {
	return strings.HasPrefix(bearer, runPrefix) || strings.HasPrefix(bearer, servicePrefix) || strings.HasPrefix(bearer, rolePrefix)
}

const (
	runPrefix     = "qrt_" // run tokens: an agent's own credential inside a turn
	servicePrefix = "qsv_" // services among themselves
	rolePrefix    = "qtk_" // operators, runners, workers, integrations

	keyringCache = 8192
	tokenMax     = 4096 // longer ones are refused unread
)

// Keyring is the Authenticator of self-contained tokens:
// prefix, base64url(JSON of the actor), ".", base64url(HMAC-SHA-256).
type Keyring struct {
	key     []byte
	keyless bool
	// An HMAC and a JSON decode cost 2 µs, on every call; only tokens that were
	// good are remembered, so nobody can fill this with guesses.
	verified *recent[string, Actor]
}

// NewKeyring makes a Keyring. Services of one installation share key; without
// one a random key is made, and tokens end with the process. keyless admits
// calls without credential as the local admin, which is for one machine only.
func NewKeyring(key []byte, keyless bool) *Keyring {
	if len(key) == 0 {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails since Go 1.24
	}
	return &Keyring{key: key, keyless: keyless, verified: newRecent[string, Actor](keyringCache)}
}

// MintRun makes the credential of one run: it acts for its own agent only, and
// run_id fences it. Its principal is that of the agent's tool calls, so that a
// request id means the same by either way (SPEC X2).
func (k *Keyring) MintRun(namespace, agentID, runID string) string {
	return k.Mint(Actor{Namespace: namespace, Principal: "agent/" + agentID, Role: RoleAgent, AgentID: agentID, RunID: runID})
}

// MintService makes the credential that a service presents to others.
func (k *Keyring) MintService(name string) string {
	return k.Mint(Actor{Namespace: DefaultNamespace, Principal: name, Role: RoleService})
}

// MintUntil is Mint for a credential that ends by itself.
func (k *Keyring) MintUntil(a Actor, end time.Time) string {
	return k.seal(a.Role, claims{Actor: a, End: end.Unix()})
}

// claims are what a token says.
type claims struct {
	Actor
	End int64 `json:"exp,omitempty"` // Unix time; 0: never
}

// Mint makes a credential for any actor. The caller decides who may have it.
func (k *Keyring) Mint(a Actor) string { return k.seal(a.Role, claims{Actor: a}) }

func (k *Keyring) seal(role string, c claims) string {
	payload, err := json.Marshal(c)
	if err != nil {
		panic("rpc: an Actor always marshals: " + err.Error())
	}
	body := prefixOf(role) + base64.RawURLEncoding.EncodeToString(payload)
	return body + "." + base64.RawURLEncoding.EncodeToString(k.sign(body))
}

// Authenticate implements Authenticator.
func (k *Keyring) Authenticate(_ context.Context, bearer string) (Actor, error) {
	if bearer == "" {
		if k.keyless {
			return Actor{Namespace: DefaultNamespace, Principal: "local", Role: RoleAdmin}, nil
		}
		return Actor{}, fault.Unauthenticated.New("no credential; send Authorization: Bearer <token>")
	}
	if a, ok := k.verified.get(bearer); ok {
		return a, nil
	}
	a, ok := k.verify(bearer)
	if !ok {
		// One answer for every way to be wrong: which one it was helps only
		// somebody who is guessing.
		return Actor{}, fault.Unauthenticated.New("the credential is malformed or not signed by this installation")
	}
	return a, nil
}

func (k *Keyring) verify(token string) (Actor, bool) {
	if len(token) > tokenMax {
		return Actor{}, false
	}
	body, mac, ok := strings.Cut(token, ".")
	if !ok {
		return Actor{}, false
	}
	sum, err := base64.RawURLEncoding.Strict().DecodeString(mac)
	if err != nil || !hmac.Equal(sum, k.sign(body)) {
		return Actor{}, false
	}
	// Signed by us, so what follows can only fail for a token of another version.
	if len(body) < len(runPrefix) {
		return Actor{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(body[len(runPrefix):])
	if err != nil {
		return Actor{}, false
	}
	var c claims
	if json.Unmarshal(payload, &c) != nil || c.Namespace == "" || !strings.HasPrefix(body, prefixOf(c.Role)) {
		return Actor{}, false
	}
	if c.End == 0 {
		k.verified.put(token, c.Actor)
	}
	return c.Actor, c.End == 0 || time.Now().Unix() < c.End
}

// sign covers the prefix too, so that a token cannot change its kind.
func (k *Keyring) sign(body string) []byte {
	mac := hmac.New(sha256.New, k.key)
	mac.Write([]byte(body))
	return mac.Sum(nil)
}

func prefixOf(role string) string {
	switch role {
	case RoleAgent:
		return runPrefix
	case RoleService:
		return servicePrefix
	}
	return rolePrefix
}
