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

// Authenticator returns the actor of a credential. bearer is "" for a call without an
// Authorization header; a wrong credential must be UNAUTHENTICATED and must not be treated as
// an absent one. It is called for every request, by many goroutines.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (Actor, error)
}

// Holder is implemented by an Authenticator whose credentials may end while a call runs.
type Holder interface {
	// Hold returns a context that ends, with the reason as its cause, when the credential
	// is revoked or expires. The caller calls release when the call has ended.
	Hold(ctx context.Context, bearer string) (held context.Context, release context.CancelFunc)
}

// IsMinted reports whether a credential has the form of those that a Keyring mints, valid or
// not.
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
	// verified caches valid tokens that do not expire, because an HMAC and a JSON decoding take
	// 2 µs for every call. Guessed tokens do not enter it.
	verified *recent[string, Actor]
}

// NewKeyring returns a Keyring. The services of an installation share key; if it is empty, a
// random key is used and tokens are valid until the process ends. keyless admits calls
// without a credential as the local admin, which is for a single machine.
func NewKeyring(key []byte, keyless bool) *Keyring {
	if len(key) == 0 {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails since Go 1.24
	}
	return &Keyring{key: key, keyless: keyless, verified: newRecent[string, Actor](keyringCache)}
}

// MintRun returns the credential of a run. It is for the run's agent only, and is fenced by
// the run's id. Its principal is that of the agent's tool calls, so that both share request
// ids (SPEC X2).
func (k *Keyring) MintRun(namespace, agentID, runID string) string {
	return k.Mint(Actor{Namespace: namespace, Principal: "agent/" + agentID, Role: RoleAgent, AgentID: agentID, RunID: runID})
}

// MintService returns the credential of a service for calls of other services.
func (k *Keyring) MintService(name string) string {
	return k.Mint(Actor{Namespace: DefaultNamespace, Principal: name, Role: RoleService})
}

// MintUntil is Mint for a credential that expires.
func (k *Keyring) MintUntil(a Actor, end time.Time) string {
	return k.seal(a.Role, claims{Actor: a, End: end.Unix()})
}

// claims is the content of a token.
type claims struct {
	Actor
	End int64 `json:"exp,omitempty"` // Unix time; 0: never
}

// Mint returns a credential for any actor. The caller decides who gets it.
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
	c, ok := k.verify(bearer)
	if !ok || c.over(time.Now()) {
		// All wrong tokens get one error, because a more precise one would help only
		// those who guess.
		return Actor{}, fault.Unauthenticated.New("the credential is malformed or not signed by this installation")
	}
	return c.Actor, nil
}

// Hold implements Holder: the context ends when a credential of MintUntil expires, and at once if
// it is over. Other credentials do not end a call that runs.
func (k *Keyring) Hold(ctx context.Context, bearer string) (context.Context, context.CancelFunc) {
	if _, ok := k.verified.get(bearer); ok {
		return ctx, func() {}
	}
	c, ok := k.verify(bearer)
	if !ok || c.End == 0 {
		return ctx, func() {}
	}
	end := time.Unix(c.End, 0)
	return context.WithDeadlineCause(ctx, end, fault.Unauthenticated.New("the credential ended at "+end.UTC().Format(time.RFC3339)+"; get a new one"))
}

// over reports whether the token has expired.
func (c claims) over(now time.Time) bool { return c.End != 0 && now.Unix() >= c.End }

// verify returns the content of a token that this installation signed, expired or not.
func (k *Keyring) verify(token string) (claims, bool) {
	if len(token) > tokenMax {
		return claims{}, false
	}
	body, mac, ok := strings.Cut(token, ".")
	if !ok {
		return claims{}, false
	}
	sum, err := base64.RawURLEncoding.Strict().DecodeString(mac)
	if err != nil || !hmac.Equal(sum, k.sign(body)) {
		return claims{}, false
	}
	// The signature is valid, so the rest fails only for a token of another version.
	if len(body) < len(runPrefix) {
		return claims{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(body[len(runPrefix):])
	if err != nil {
		return claims{}, false
	}
	var c claims
	if json.Unmarshal(payload, &c) != nil || c.Namespace == "" || !strings.HasPrefix(body, prefixOf(c.Role)) {
		return claims{}, false
	}
	if c.End == 0 {
		k.verified.put(token, c.Actor)
	}
	return c, true
}

// sign signs the prefix as well, so that a token of one kind cannot be used as another.
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
