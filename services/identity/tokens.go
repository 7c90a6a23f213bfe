package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.uber.org/zap"
	"golang.org/x/oauth2"

	"quartet/pkg/certs"
	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/rpc"
)

const (
	// tokensKept is how many valid tokens are remembered, and tokenKept for how long at
	// most: checking a signature takes 50 µs, and would be done on every call.
	tokensKept = 4096
	tokenKept  = time.Minute
	// tokenMax bounds a token, in bytes.
	tokenMax        = 16 << 10
	providerTimeout = 10 * time.Second // of one request to the provider
	// checksASecond and checksAtOnce limit the checks of tokens that are not remembered: a
	// token signed with an unknown key causes a request for the provider's keys, and the
	// number of these that a caller with forged tokens can cause must be bounded.
	checksASecond, checksAtOnce = 50, 200
)

// TokensConfig says which tokens are accepted and which actors they are for.
type TokensConfig struct {
	// Issuer is the provider's address, as its discovery document names it. https,
	// or http on loopback.
	Issuer string
	// Audience must be among the audiences of a token.
	Audience string
	// PrincipalClaim names the claim that says who acts; default "sub". The principal is its
	// value after "oidc:".
	PrincipalClaim string
	// Namespace is that of all tokens; if it is empty, NamespaceClaim names the claim that
	// has it.
	Namespace, NamespaceClaim string
	// RoleClaim names a claim that holds a text or a list of texts. Roles maps a
	// value of it to the role that it gives. If several values give roles, the
	// first of them in the order of tokenRoles counts, so installation_admin before admin.
	// The names of claims may be paths: "realm_access.roles".
	RoleClaim string
	Roles     map[string]string
	// ClientID is the id of this server at the provider, which is the audience of the ID tokens with which people
	// sign in to the console; empty: nobody does. ClientSecret says that the client has a secret.
	ClientID     string
	ClientSecret bool
	// Keys returns the keys of the installation, which mark the tokens of sign-ins.
	Keys   func() keyfile.Ring
	Logger *zap.Logger
}

// tokenRoles are the roles that a provider may give. Agents receive their credential with their
// turn, and services make theirs with the installation's key.
var tokenRoles = []string{
	rpc.RoleInstallationAdmin, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleRunner, rpc.RoleWorker,
	rpc.RoleIntegration,
}

// Check returns an error that names a setting that is missing or contradicts another one.
func (c *TokensConfig) Check() error {
	if c.Issuer == "" {
		if c.Audience != "" || len(c.Roles) > 0 || c.Namespace != "" || c.NamespaceClaim != "" || c.RoleClaim != "" ||
			c.ClientID != "" {
			return errors.New("oidc settings need oidc-issuer, the provider's address")
		}
		return nil
	}
	u, err := url.Parse(c.Issuer)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !onLoopback(u.Hostname())) {
		return fmt.Errorf("oidc-issuer %q must be an https address, or an http one on loopback", c.Issuer)
	}
	if c.Audience == "" || c.RoleClaim == "" || len(c.Roles) == 0 {
		return errors.New("oidc-issuer needs oidc-audience, oidc-role-claim and oidc-roles: which tokens are meant " +
			"for this server, and what they may do")
	}
	if (c.Namespace == "") == (c.NamespaceClaim == "") {
		return errors.New("give one of oidc-namespace and oidc-namespace-claim: whose tenants the tokens are")
	}
	if c.Namespace != "" {
		if err := fault.Name("oidc-namespace", c.Namespace); err != nil {
			return err
		}
	}
	for value, role := range c.Roles {
		if !slices.Contains(tokenRoles, role) {
			return fmt.Errorf("oidc-roles: %s gives role %q; it must be one of %s", value, role,
				strings.Join(tokenRoles, ", "))
		}
	}
	return nil
}

// onLoopback reports whether a host, without port, is a loopback address or localhost. It does
// not resolve names.
func onLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Tokens is the rpc.Authenticator of an OpenID provider's JWTs. The provider is discovered
// with the first token and not at the start, so that a server starts without it; after a
// failure it is tried again, a second later at the earliest.
type Tokens struct {
	cfg    TokensConfig
	client *http.Client
	checks *connlimit.Rates // of tokens that are not in good

	discovering sync.Mutex  // guards the next three
	found       *discovered // nil before discovery has succeeded
	discovery   *discovery  // the one in progress, or nil
	failed      time.Time   // when the last discovery failed

	mu   sync.Mutex
	good map[[sha256.Size]byte]admitted // by the token's hash; emptied when it has tokensKept
}

// discovered is what the provider's discovery document gave.
type discovered struct {
	bearer *oidc.IDTokenVerifier // of tokens that callers send
	client *oidc.IDTokenVerifier // of ID tokens, whose audience is ClientID
	// endpoint is where people are authorized and tokens issued, or endpointErr why that is not known.
	endpoint    oauth2.Endpoint
	endpointErr error
}

// discovery is one attempt to discover the provider.
type discovery struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when it has ended; found and err are set before
	found  *discovered
	err    error
}

// admitted is a token that was valid when it was checked.
type admitted struct {
	actor rpc.Actor
	until time.Time // until when it is remembered
	ends  time.Time // when the token ends
}

// NewTokens returns Tokens, or nil if no issuer is configured.
func NewTokens(cfg TokensConfig) (*Tokens, error) {
	if err := cfg.Check(); err != nil || cfg.Issuer == "" {
		return nil, err
	}
	if cfg.PrincipalClaim == "" {
		cfg.PrincipalClaim = "sub"
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Tokens{
		cfg: cfg, checks: connlimit.NewRates(checksASecond, checksAtOnce), good: map[[sha256.Size]byte]admitted{},
		client: &http.Client{Timeout: providerTimeout, Transport: &strongKeys{logger: cfg.Logger, next: &http.Transport{
			Proxy: http.ProxyFromEnvironment, IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: providerTimeout,
			TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, VerifyConnection: certs.VerifyPeer},
			ForceAttemptHTTP2: true,
		}}},
	}, nil
}

// Close ends a discovery of the provider that is in progress, and closes idle connections to it.
func (t *Tokens) Close() {
	t.discovering.Lock()
	d := t.discovery
	t.discovering.Unlock()
	if d != nil {
		d.cancel()
		<-d.ended
	}
	t.client.CloseIdleConnections()
}

// Authenticate implements rpc.Authenticator. A valid token is accepted until it expires; the
// provider is not asked whether it was revoked.
func (t *Tokens) Authenticate(ctx context.Context, token string) (rpc.Actor, error) {
	a, err := t.admit(ctx, token)
	return a.actor, err
}

// Hold implements rpc.Holder: the context ends when the token expires, and at once if it is
// not valid.
func (t *Tokens) Hold(ctx context.Context, token string) (context.Context, context.CancelFunc) {
	a, err := t.admit(ctx, token)
	if err != nil {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(err)
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, a.ends, tokenOver(a.ends))
}

// tokenOver returns UNAUTHENTICATED for a token that expired at a time.
func tokenOver(at time.Time) error {
	return fault.Unauthenticated.New("the token ended at " + at.UTC().Format(time.RFC3339) +
		"; get a new one from the identity provider")
}

// admit checks a token, or finds it among those that were valid within the last minute
// (tokenKept). It returns RATE_LIMITED if a source sends too many tokens that are not remembered, NOT_READY
// if the provider cannot be reached, and UNAUTHENTICATED or PERMISSION_DENIED for a token that is not accepted.
func (t *Tokens) admit(ctx context.Context, token string) (admitted, error) {
	if len(token) > tokenMax {
		return admitted{}, fault.Unauthenticated.New("the token is longer than 16 KiB")
	}
	idToken, signedIn, err := t.unmarked(token)
	if err != nil {
		return admitted{}, err
	}
	sum, now := sha256.Sum256([]byte(token)), time.Now()
	t.mu.Lock()
	a, ok := t.good[sum]
	t.mu.Unlock()
	if ok && now.Before(a.until) {
		return a, nil
	}
	if wait := t.checks.Take(connlimit.SourceOf(ctx)); wait > 0 {
		return admitted{}, fault.RateLimited.New("too many new tokens of this address are being checked; repeat the " +
			"request in a moment").WithRetryAfter(wait)
	}
	found, err := t.provider(ctx)
	if err != nil {
		return admitted{}, err
	}
	verifier := found.bearer
	if signedIn {
		verifier, token = found.client, idToken
	}
	verified, err := verifier.Verify(ctx, token)
	if err != nil {
		return admitted{}, t.refused(err)
	}
	actor, err := t.actor(verified)
	if err != nil {
		return admitted{}, err
	}
	a = admitted{actor: actor, until: now.Add(tokenKept), ends: verified.Expiry}
	if verified.Expiry.Before(a.until) {
		a.until = verified.Expiry
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.good) >= tokensKept {
		clear(t.good)
	}
	t.good[sum] = a
	return a, nil
}

// provider returns what is known of the issuer. If it was not discovered yet, provider begins to discover it, or waits
// for the discovery in progress, of which there is one at most. It returns NOT_READY if that fails or ctx ends before,
// and at once if one failed within the last second.
func (t *Tokens) provider(ctx context.Context) (*discovered, error) {
	away := fault.NotReady.New("the identity provider cannot be reached, so tokens cannot be checked; repeat the " +
		"request in a moment").WithRetryAfter(time.Second)
	t.discovering.Lock()
	found, d := t.found, t.discovery
	if found == nil && d == nil && time.Since(t.failed) >= time.Second {
		d = t.discover(ctx)
	}
	t.discovering.Unlock()
	if found != nil {
		return found, nil
	}
	if d == nil {
		return nil, away
	}
	select {
	case <-d.ended:
	case <-ctx.Done():
		return nil, away.WithCause(context.Cause(ctx))
	}
	if d.err != nil {
		return nil, away.WithCause(d.err)
	}
	return d.found, nil
}

// discover begins a discovery of the provider, which goes on if ctx is cancelled, because others wait for it too. The
// caller holds discovering.
func (t *Tokens) discover(ctx context.Context) *discovery {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d := &discovery{cancel: cancel, ended: make(chan struct{})}
	t.discovery = d
	go func() {
		defer close(d.ended)
		defer cancel()
		d.found, d.err = t.ask(ctx)
		t.discovering.Lock()
		defer t.discovering.Unlock()
		t.found, t.discovery = d.found, nil
		if d.err != nil {
			t.failed = time.Now()
			t.cfg.Logger.Warn("the identity provider could not be discovered", zap.String("issuer", t.cfg.Issuer),
				zap.Error(d.err))
		}
	}()
	return d
}

// ask requests the provider's discovery document.
func (t *Tokens) ask(ctx context.Context) (*discovered, error) {
	p, err := oidc.NewProvider(oidc.ClientContext(ctx, t.client), t.cfg.Issuer)
	if err != nil {
		return nil, err
	}
	// The verifiers fetch keys with this context later on, after ctx has ended.
	keys := oidc.ClientContext(context.WithoutCancel(ctx), t.client)
	found := &discovered{bearer: p.VerifierContext(keys, &oidc.Config{ClientID: t.cfg.Audience})}
	if t.cfg.ClientID != "" {
		found.client = p.VerifierContext(keys, &oidc.Config{ClientID: t.cfg.ClientID})
		found.endpoint, found.endpointErr = endpointOf(p, t.cfg.ClientSecret)
	}
	return found, nil
}

// refused returns the error for a token that could not be verified: NOT_READY with a time to retry if the
// provider's keys cannot be fetched, since the token may be valid, and UNAUTHENTICATED otherwise. Its message
// says only what the bearer may know; the details are logged.
func (t *Tokens) refused(err error) error {
	var over *oidc.TokenExpiredError
	if errors.As(err, &over) {
		return tokenOver(over.Expiry)
	}
	t.cfg.Logger.Debug("a token was refused", zap.Error(err))
	if strings.Contains(err.Error(), "fetching keys") {
		return fault.NotReady.New("the identity provider's keys cannot be fetched, so tokens cannot be checked; " +
			"repeat the request in a moment").WithCause(err).WithRetryAfter(time.Second)
	}
	return fault.Unauthenticated.New("the token was not issued by this installation's identity provider for it").
		WithCause(err)
}

// verifiedClaims are the claims by which a token is verified. They are decoded by name without regard to case, and a
// provider may let users choose others, such as "Aud".
var verifiedClaims = []string{"iss", "sub", "aud", "exp", "iat", "nbf", "nonce", "azp", "at_hash"}

// actor returns the actor of a verified token: PERMISSION_DENIED if its claims give no
// namespace or no role, UNAUTHENTICATED if they do not say who acts.
func (t *Tokens) actor(verified *oidc.IDToken) (rpc.Actor, error) {
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return rpc.Actor{}, fault.Unauthenticated.New("the token's claims cannot be read")
	}
	for name := range claims {
		i := slices.IndexFunc(verifiedClaims, func(claim string) bool { return strings.EqualFold(name, claim) })
		if i >= 0 && name != verifiedClaims[i] {
			return rpc.Actor{}, fault.Unauthenticated.New("the token has a claim " + strconv.Quote(name) +
				", and the name is " + verifiedClaims[i])
		}
	}
	a := rpc.Actor{Namespace: t.cfg.Namespace}
	who := texts(claims, t.cfg.PrincipalClaim)
	if len(who) != 1 || who[0] == "" || len(who[0]) > 255 ||
		strings.ContainsFunc(who[0], func(r rune) bool { return !unicode.IsPrint(r) }) {
		return a, fault.Unauthenticated.New("the token does not say who acts: its claim " + t.cfg.PrincipalClaim +
			" must be one text of at most 255 characters")
	}
	a.Principal = "oidc:" + who[0] // so that it is never a key's
	if t.cfg.NamespaceClaim != "" {
		found := texts(claims, t.cfg.NamespaceClaim)
		if len(found) != 1 || fault.Name("namespace", found[0]) != nil {
			return a, fault.PermissionDenied.New("the token gives access to no namespace: its claim " +
				t.cfg.NamespaceClaim + " must be one name of a-z, 0-9, - and _")
		}
		a.Namespace = found[0]
	}
	given := texts(claims, t.cfg.RoleClaim)
	for _, role := range tokenRoles {
		for _, value := range given {
			if t.cfg.Roles[value] == role {
				a.Role = role
				return a, nil
			}
		}
	}
	return a, fault.PermissionDenied.New("the token gives no role here: no value of its claim "+t.cfg.RoleClaim+
		" is among oidc-roles", "principal", a.Principal)
}

// texts returns the values of a claim, whose name may be a path into objects, such as
// realm_access.roles. It is empty for a claim that is missing or holds no text.
func texts(claims map[string]any, path string) []string {
	v, found := claims[path] // a claim with a dot in its name comes first
	if !found {
		v = any(claims)
		for part := range strings.SplitSeq(path, ".") {
			object, ok := v.(map[string]any)
			if !ok {
				return nil
			}
			v = object[part]
		}
	}
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}
