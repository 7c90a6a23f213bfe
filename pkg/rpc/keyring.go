package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
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
	return strings.HasPrefix(bearer, runPrefix) || strings.HasPrefix(bearer, servicePrefix) ||
		strings.HasPrefix(bearer, rolePrefix)
}

const (
	runPrefix     = "qrt_" // run tokens: an agent's own credential inside a turn
	servicePrefix = "qsv_" // services among themselves
	rolePrefix    = "qtk_" // operators, runners, workers, integrations

	keyringCache = 8192
	tokenMax     = 4096 // longer ones are refused unread
)

// The lifetimes of tokens.
const (
	// serviceLife is that of a service's own credential, which ServiceToken renews at half of it.
	serviceLife = time.Hour
	// roleLife, and up to a day more, is that of tokens that Mint returns. That of a run is refused after the run's
	// end.
	roleLife = 30 * 24 * time.Hour
)

// Keyring is the Authenticator of self-contained tokens:
// prefix, base64url(JSON of the claims), ".", id of the installation's key, ".",
// base64url(HMAC-SHA-256).
//
// Tokens that were minted before keys had ids lack the id and its dot. They are compared with
// all keys, and end when their key is retired.
type Keyring struct {
	keys    *keyfile.Source
	keyless bool
	// verified caches valid tokens, because an HMAC and a JSON decoding take 2 µs for every call.
	// Guessed tokens do not enter it.
	verified *recent[string, claims]

	mu    sync.Mutex
	holds map[*hold]struct{}
}

// NewKeyring returns a Keyring of one key; if it is empty, a random key is used and tokens are
// valid until the process ends. keyless admits calls without a credential as the local admin of the
// installation, which is for a single machine.
func NewKeyring(key []byte, keyless bool) *Keyring {
	if len(key) == 0 {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails since Go 1.24
	}
	return KeyringOf(keyfile.Fixed(keyfile.Of(key)), keyless)
}

// KeyringOf returns a Keyring that signs with the active key of keys, and accepts tokens that any
// of them signed. The services of an installation share keys. For keyless see NewKeyring.
func KeyringOf(keys *keyfile.Source, keyless bool) *Keyring {
	k := &Keyring{
		keys: keys, keyless: keyless, verified: newRecent[string, claims](keyringCache),
		holds: map[*hold]struct{}{},
	}
	keys.OnChange(k.endRetired)
	return k
}

// MintRun returns the credential of a run, for the run's agent only. Calls with it are refused once the run does not
// hold the agent any more; it expires as Mint says. Its principal is the one as which the agent's tool calls are
// executed, so a request id names the same request in both (SPEC X2).
func (k *Keyring) MintRun(namespace, agentID, runID string) string {
	return k.Mint(Actor{
		Namespace: namespace, Principal: "agent/" + agentID, Role: RoleAgent, AgentID: agentID,
		RunID: runID,
	})
}

// MintService returns the credential of a service for calls of other services. It expires after
// serviceLife; ServiceToken returns one that is renewed.
func (k *Keyring) MintService(name string) string {
	return k.MintUntil(Actor{Namespace: DefaultNamespace, Principal: name, Role: RoleService},
		time.Now().Add(serviceLife))
}

// ServiceToken returns a function that returns a valid credential of a service. The function makes a
// new one when half of the lifetime of the last one is over, and when another key becomes active. It
// is safe for concurrent use.
func (k *Keyring) ServiceToken(name string) func() string {
	type minted struct {
		token, keyID string
		renewAt      time.Time
	}
	var last atomic.Pointer[minted]
	return func() string {
		now, active := time.Now(), k.keys.Ring().Active().ID
		if m := last.Load(); m != nil && m.keyID == active && now.Before(m.renewAt) {
			return m.token
		}
		m := &minted{token: k.MintService(name), keyID: active, renewAt: now.Add(serviceLife / 2)}
		last.Store(m)
		return m.token
	}
}

// MintUntil returns a credential for an actor that expires at end. It checks no permission.
func (k *Keyring) MintUntil(a Actor, end time.Time) string {
	return k.seal(a.Role, claims{Actor: a, End: end.Unix()})
}

// Mint is MintUntil for a credential that is ended by other means, such as the end of a run. It expires
// after 30 to 31 days. Within a day, Mint returns the same credential for the same actor as long as the
// same key is active.
func (k *Keyring) Mint(a Actor) string {
	return k.MintUntil(a, time.Now().Truncate(24*time.Hour).Add(24*time.Hour+roleLife))
}

// claims is the content of a token.
type claims struct {
	Actor
	End int64 `json:"exp,omitempty"` // Unix time; 0: never, in tokens that name no key

	keyID string // of the key that signed the token
}

// seal returns the token of claims, signed with the active key. The role decides its prefix.
func (k *Keyring) seal(role string, c claims) string {
	payload, err := json.Marshal(c)
	if err != nil {
		panic("rpc: an Actor always marshals: " + err.Error())
	}
	key := k.keys.Ring().Active()
	body := prefixOf(role) + base64.RawURLEncoding.EncodeToString(payload) + "." + key.ID
	return body + "." + base64.RawURLEncoding.EncodeToString(sign(key, body))
}

// Authenticate implements Authenticator.
func (k *Keyring) Authenticate(_ context.Context, bearer string) (Actor, error) {
	if bearer == "" {
		if k.keyless {
			return Actor{Namespace: DefaultNamespace, Principal: "local", Role: RoleInstallationAdmin}, nil
		}
		return Actor{}, fault.Unauthenticated.New("no credential; send Authorization: Bearer <token>")
	}
	c, ok := k.claimsOf(bearer)
	if !ok || c.over(time.Now()) {
		// All wrong tokens get one error, because a more precise one would help only
		// those who guess.
		return Actor{}, fault.Unauthenticated.New("the credential is malformed or not signed by this installation")
	}
	return c.Actor, nil
}

// claimsOf returns the content of a token that a key of this installation signed, expired or not.
func (k *Keyring) claimsOf(token string) (claims, bool) {
	ring := k.keys.Ring()
	if c, ok := k.verified.get(token); ok {
		_, ok = ring.Find(c.keyID) // the key may have been retired meanwhile
		return c, ok
	}
	c, ok := verify(ring, token)
	if ok {
		k.verified.put(token, c)
	}
	return c, ok
}

// hold is a long call of a credential.
type hold struct {
	keyID string
	end   context.CancelCauseFunc
}

// Hold implements Holder. bearer must be a credential that Authenticate has accepted, or empty, which never ends. The
// context ends when the credential expires or the key that signed it is retired. A service's credential does not end
// a call by expiring: the service has renewed it by then, and ends the call itself when the credential of
// the actor ends.
func (k *Keyring) Hold(ctx context.Context, bearer string) (context.Context, context.CancelFunc) {
	if bearer == "" {
		return ctx, func() {}
	}
	c, ok := k.claimsOf(bearer)
	if !ok { // its key was retired after Authenticate accepted it
		ended, end := context.WithCancelCause(ctx)
		end(fault.Unauthenticated.New("the credential is not valid any more; get a new one"))
		return ended, func() {}
	}
	held, end := context.WithCancelCause(ctx)
	h := &hold{keyID: c.keyID, end: end}
	k.mu.Lock()
	k.holds[h] = struct{}{}
	k.mu.Unlock()
	k.endRetired() // it may have been retired since
	stop := context.CancelFunc(func() {})
	if c.End != 0 && c.Role != RoleService {
		endsAt := time.Unix(c.End, 0)
		held, stop = context.WithDeadlineCause(held, endsAt, fault.Unauthenticated.New("the credential ended at "+
			endsAt.UTC().Format(time.RFC3339)+"; get a new one"))
	}
	return held, func() {
		k.mu.Lock()
		delete(k.holds, h)
		k.mu.Unlock()
		stop()
		end(nil)
	}
}

// endRetired ends the calls whose credentials were signed by a key that is not among the keys any
// more.
func (k *Keyring) endRetired() {
	ring := k.keys.Ring()
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := range k.holds {
		if _, ok := ring.Find(h.keyID); !ok {
			h.end(fault.Unauthenticated.New("the installation's key " + h.keyID +
				", which signed the credential, was retired; get a new one"))
			delete(k.holds, h)
		}
	}
}

// over reports whether the token has expired.
func (c claims) over(now time.Time) bool { return c.End != 0 && now.Unix() >= c.End }

// verify returns the content of a token that one of the keys signed, expired or not.
func verify(ring keyfile.Ring, token string) (claims, bool) {
	if len(token) > tokenMax {
		return claims{}, false
	}
	lastDot := strings.LastIndexByte(token, '.')
	if lastDot < 0 {
		return claims{}, false
	}
	body := token[:lastDot]
	sum, err := base64.RawURLEncoding.Strict().DecodeString(token[lastDot+1:])
	if err != nil {
		return claims{}, false
	}
	content, keyID, named := strings.Cut(body, ".") // content is the prefix and the encoded claims
	signer := ""                                    // the id of the key that signed the token
	if named {
		if key, ok := ring.Find(keyID); ok && keyID != "" && hmac.Equal(sum, sign(key, body)) {
			signer = key.ID
		}
	} else {
		// All keys are tried, so that the duration does not reveal which one it was.
		for _, key := range ring.Keys() {
			if hmac.Equal(sum, sign(key, body)) {
				signer = key.ID
			}
		}
	}
	// If the signature is valid, the rest fails only for a token of another version. All prefixes are as long as
	// runPrefix. A token that names its key must expire.
	if signer == "" || len(content) < len(runPrefix) {
		return claims{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(content[len(runPrefix):])
	if err != nil {
		return claims{}, false
	}
	c := claims{keyID: signer}
	if json.Unmarshal(payload, &c) != nil || c.Namespace == "" || !strings.HasPrefix(content, prefixOf(c.Role)) ||
		named && c.End == 0 {
		return claims{}, false
	}
	return c, true
}

// sign signs the prefix as well, so that a token of one kind cannot be used as another, and the
// key's id.
func sign(key keyfile.Key, body string) []byte {
	mac := hmac.New(sha256.New, key.Secret)
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
