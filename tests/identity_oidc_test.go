package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/services/app"
	"quartet/tests/proc"
)

// provider is an OpenID provider: a discovery document, keys, and tokens that a
// test may make as it likes.
type provider struct {
	*httptest.Server
	mu      sync.Mutex
	keys    map[string]*ecdsa.PrivateKey
	fetched int // how often the keys were
	down    bool
}

func newProvider(t *testing.T) *provider {
	p := &provider{keys: map[string]*ecdsa.PrivateKey{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	p.rotate(t, "k1")
	return p
}

func (p *provider) rotate(t *testing.T, kid string) {
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[kid] = key
}

func (p *provider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// ServeHTTP answers discovery and the key set.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var v any
	switch {
	case p.down:
		w.WriteHeader(http.StatusBadGateway)
		return
	case r.URL.Path == "/.well-known/openid-configuration":
		v = map[string]any{
			"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/a",
			"token_endpoint": p.URL + "/t", "id_token_signing_alg_values_supported": []string{"ES256"},
		}
	case r.URL.Path == "/keys":
		p.fetched++
		set := jose.JSONWebKeySet{}
		for kid, key := range p.keys {
			set.Keys = append(set.Keys, jose.JSONWebKey{
				Key: &key.PublicKey, KeyID: kid, Algorithm: "ES256", Use: "sig",
			})
		}
		v = set
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that left misses nothing
}

// token signs claims; those that are not given are good ones, nil takes one away.
func (p *provider) token(t *testing.T, kid string, with map[string]any) string {
	p.mu.Lock()
	key := p.keys[kid]
	p.mu.Unlock()
	claims := map[string]any{
		"iss": p.URL, "aud": "quartet", "sub": "user-1", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().
			Unix(),
		"tenant": "acme", "realm_access": map[string]any{"roles": []string{"viewer", "developers"}},
	}
	for k, v := range with {
		claims[k] = v
		if v == nil {
			delete(claims, k)
		}
	}
	return sign(t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, claims)
}

func sign(t *testing.T, by jose.SigningKey, claims map[string]any) string {
	signer := must.Value(jose.NewSigner(by, nil))(t)
	payload := must.Value(json.Marshal(claims))(t)
	return must.Value(must.Value(signer.Sign(payload))(t).CompactSerialize())(t)
}

func (p *provider) house(t *testing.T) *house {
	return newHouse(t, func(cfg *app.Config) {
		cfg.OIDC.Issuer, cfg.OIDC.Audience, cfg.OIDC.NamespaceClaim = p.URL, "quartet", "tenant"
		cfg.OIDC.RoleClaim, cfg.OIDC.Roles = "realm_access.roles", map[string]string{
			"developers": "operator",
			"admins":     "admin",
		}
	})
}

// TestX15_TokensOfAnIdentityProvider let in as their claims say, and nobody else.
func TestX15_TokensOfAnIdentityProvider(t *testing.T) {
	p := newProvider(t)
	h := p.house(t)
	who := func(token string) answer { return h.rest(t, token, "GET", "/v1/whoami", "") }
	me := who(p.token(t, "k1", nil))
	require.Equal(t, []string{"acme", "oidc:user-1", "ROLE_OPERATOR"},
		[]string{me.field(t, "namespace"), me.field(t, "principal"), me.field(t, "role")}, me.body)
	mighty := who(
		p.token(t, "k1", map[string]any{
			"realm_access": map[string]any{"roles": []string{"developers", "admins"}},
			"aud":          []string{"other", "quartet"},
		}))
	require.Equal(t, "ROLE_ADMIN", mighty.field(t, "role"), mighty.body)
	require.Equal(t, http.StatusOK, who(bootstrap).status, "keys and tokens live side by side")

	other := newProvider(t)
	hour := time.Hour
	for name, token := range map[string]string{
		"another audience":      p.token(t, "k1", map[string]any{"aud": "billing"}),
		"no audience":           p.token(t, "k1", map[string]any{"aud": nil}),
		"another issuer":        p.token(t, "k1", map[string]any{"iss": other.URL}),
		"another provider's":    other.token(t, "k1", map[string]any{"iss": p.URL}),
		"over":                  p.token(t, "k1", map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"without an end":        p.token(t, "k1", map[string]any{"exp": nil}),
		"of a time to come":     p.token(t, "k1", map[string]any{"nbf": time.Now().Add(hour).Unix()}),
		"nobody's":              p.token(t, "k1", map[string]any{"sub": nil}),
		"somebody's with a NUL": p.token(t, "k1", map[string]any{"sub": "a\x00b"}),
		"signed with a secret": sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{
			Key: []byte(strings.Repeat("k", 32)), KeyID: "k1",
		}}, map[string]any{
			"iss": p.URL, "aud": "quartet",
			"sub": "x", "exp": time.Now().Add(hour).Unix(),
		}),
		"too long": p.token(t, "k1", map[string]any{"more": strings.Repeat("x", 20<<10)}),
	} {
		a := who(token)
		require.Equal(t, http.StatusUnauthorized, a.status, "%s: %s", name, a.body)
	}
	whole := p.token(t, "k1", nil)
	parts := strings.Split(whole, ".")
	for name, token := range map[string]string{
		"without a signature": parts[0] + "." + parts[1] + ".",
		"of two parts":        parts[0] + "." + parts[1], "changed": whole[:len(whole)-8] + "AAAAAAAA",
	} {
		require.Equal(t, http.StatusUnauthorized, who(token).status, name)
	}
	for name, token := range map[string]string{
		"no role": p.token(t, "k1", map[string]any{"realm_access": nil}),
		"a role not listed": p.token(t, "k1",
			map[string]any{"realm_access": map[string]any{"roles": []string{"admin", "operator", "service"}}}),
		"no namespace":         p.token(t, "k1", map[string]any{"tenant": nil}),
		"an odd namespace":     p.token(t, "k1", map[string]any{"tenant": "a.>"}),
		"a list of namespaces": p.token(t, "k1", map[string]any{"tenant": []string{"acme", "globex"}}),
	} {
		a := who(token)
		require.Equal(t, http.StatusForbidden, a.status, "%s: %s", name, a.body)
	}
}

// TestX15_TheProvidersKeysRotate, and it may be away for a while.
func TestX15_TheProvidersKeysRotate(t *testing.T) {
	proc.Long(t)
	p := newProvider(t)
	p.set(func() { p.down = true })
	h := p.house(t)
	who := func(token string) answer { return h.rest(t, token, "GET", "/v1/whoami", "") }
	token := p.token(t, "k1", nil)
	away := who(token)
	require.Equal(t, http.StatusServiceUnavailable, away.status, "a server starts without its provider: %s", away.body)
	require.NotEmpty(t, away.header.Get("Retry-After"))
	p.set(func() { p.down = false })
	require.Eventually(t, func() bool { return who(token).status == http.StatusOK }, eventually, tick)
	p.rotate(t, "k2")
	// A new key is fetched when a token comes that it signed; not if a fetch is
	// just ending.
	require.Eventually(t, func() bool { return who(p.token(t, "k2", nil)).status == http.StatusOK }, eventually, tick)
	p.set(func() { p.down = true })
	require.Equal(t, http.StatusOK, who(token).status, "known tokens and keys last while the provider is away")
	require.Equal(t, http.StatusOK, who(p.token(t, "k2", map[string]any{"sub": "user-2"})).status)
	p.set(func() { p.down = false })

	// Made-up tokens do not make the server ask the provider at their pleasure.
	var before, after int
	p.set(func() { before = p.fetched })
	began := time.Now()
	stranger := newProvider(t)
	refused := map[int]int{}
	for i := range 400 {
		stranger.rotate(t, "made-up")
		refused[who(stranger.token(t, "made-up", map[string]any{"iss": p.URL, "n": i})).status]++
	}
	p.set(func() { after = p.fetched })
	require.Zero(t, refused[http.StatusOK])
	require.LessOrEqual(t, float64(after-before), 200+50*time.Since(began).Seconds()+1, "50 a second, 200 at once: %v",
		refused)
}

// TestX15_StreamsEndWithTheirToken.
func TestX15_StreamsEndWithTheirToken(t *testing.T) {
	proc.Long(t)
	p := newProvider(t)
	h := p.house(t)
	token := p.token(t, "k1", map[string]any{"exp": time.Now().Add(2 * time.Second).Unix()})
	watch, err := eventv1.NewEventServiceClient(h.conn(t, token)).WatchEvents(soon(t), &eventv1.WatchEventsRequest{})
	require.NoError(t, err)
	for err == nil {
		_, err = watch.Recv()
	}
	require.ErrorIs(t, err, fault.Unauthenticated)
	require.Contains(t, err.Error(), "the token ended at")
}

// TestX15_ProviderSettingsAreChecked before anything starts.
func TestX15_ProviderSettingsAreChecked(t *testing.T) {
	for says, change := range map[string]func(c *app.Config){
		"need oidc-issuer":         func(c *app.Config) { c.OIDC.Issuer = "" },
		"must be an https address": func(c *app.Config) { c.OIDC.Issuer = "http://idp.example.com" },
		"oidc-audience":            func(c *app.Config) { c.OIDC.Audience = "" },
		"oidc-roles":               func(c *app.Config) { c.OIDC.Roles = nil },
		"gives role \"service\"":   func(c *app.Config) { c.OIDC.Roles = map[string]string{"x": "service"} },
		"give one of":              func(c *app.Config) { c.OIDC.NamespaceClaim = "tenant" },
		"oidc-namespace":           func(c *app.Config) { c.OIDC.Namespace = "A B" },
	} {
		cfg := app.Config{DataDir: t.TempDir(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"}
		cfg.OIDC.Issuer, cfg.OIDC.Audience, cfg.OIDC.Namespace = "https://idp.example.com", "quartet", "acme"
		cfg.OIDC.RoleClaim, cfg.OIDC.Roles = "roles", map[string]string{"devs": "operator"}
		change(&cfg)
		must.Fail(app.New(cfg, nil, "test"))(t, says)
	}
}

// TestI12_JunkTokensOfOneAddress: more of them than are checked leave the users of another address alone.
func TestI12_JunkTokensOfOneAddress(t *testing.T) {
	p := newProvider(t)
	h := p.house(t)
	require.Equal(t, http.StatusOK, h.rest(t, p.token(t, "k1", nil), "GET", "/v1/whoami", "").status)
	guesser := &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}).DialContext,
	}}
	junk := func(i int) int {
		req, err := http.NewRequestWithContext(soon(t), http.MethodGet, "http://"+h.cfg.HTTPAddr+"/v1/whoami", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer eyJ"+strconv.Itoa(i))
		resp := must.Value(guesser.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		if resp.StatusCode == http.StatusTooManyRequests {
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
		}
		return resp.StatusCode
	}
	refused := 0
	for i := 0; refused < 40 && i < 20_000; i++ {
		if junk(i) == http.StatusTooManyRequests {
			refused++
			valid := p.token(t, "k1", map[string]any{"sub": "user-" + strconv.Itoa(i)}) // which nobody has checked yet
			require.Equal(t, http.StatusOK, h.rest(t, valid, "GET", "/v1/whoami", "").status)
		}
	}
	require.Equal(t, 40, refused)
}
