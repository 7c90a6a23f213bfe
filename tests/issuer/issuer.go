// Package issuer is an OpenID provider for tests: discovery, keys, and the authorization code flow with PKCE, on
// loopback.
//
// Owns: its key, and the codes that it issued.
// Never does: ask who somebody is; everybody is whom Behave says.
// Reads: nothing.
// Emits: nothing.
package issuer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"
)

// Behaviour is what an Issuer does. The zero value signs nobody in.
type Behaviour struct {
	// ClientID and Secret are those of the registered client; a public client has no secret.
	ClientID, Secret string
	// Claims are added to those of ID tokens; nil removes one.
	Claims map[string]any
	// Deny is the error with which the browser is sent back; empty: it gets a code.
	Deny string
	// Down answers every request with 502.
	Down bool
	// OtherChallenge remembers another PKCE challenge than the one that was sent.
	OtherChallenge bool
	// Respond answers a request at the token endpoint instead of the issuer, unless it is nil.
	Respond http.HandlerFunc
}

// issued is a code that was not exchanged yet.
type issued struct{ redirect, challenge, nonce string }

// Issuer is a running provider.
type Issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey

	mu        sync.Mutex
	behaviour Behaviour
	codes     map[string]issued
	exchanges int
	secrets   []string // all that must be nowhere else: codes, tokens, verifiers
}

// New starts an Issuer; Close ends it.
func New(b Behaviour) (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	i := &Issuer{key: key, behaviour: b, codes: map[string]issued{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", i.discovery)
	mux.HandleFunc("GET /keys", i.keys)
	mux.HandleFunc("GET /authorize", i.authorize)
	mux.HandleFunc("POST /token", i.token)
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.now().Down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	return i, nil
}

// Behave changes what the issuer does.
func (i *Issuer) Behave(change func(b *Behaviour)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(&i.behaviour)
}

// Exchanges returns how many requests the token endpoint has had.
func (i *Issuer) Exchanges() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exchanges
}

// Secrets returns all codes, tokens and verifiers of PKCE that the issuer has seen.
func (i *Issuer) Secrets() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.secrets)
}

func (i *Issuer) now() Behaviour {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.behaviour
}

// Token returns an ID token with these claims beside the usual ones, as the token endpoint issues it.
func (i *Issuer) Token(claims map[string]any) string {
	all := map[string]any{
		"iss": i.URL, "aud": i.now().ClientID, "sub": "ann", "iat": time.Now().Unix(),
		"exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(all, i.now().Claims)
	maps.Copy(all, claims)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}},
		nil)
	if err != nil {
		panic(err) // the key is one of ES256
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // claims are of JSON's types
	}
	signed, err := signer.Sign(text)
	if err != nil {
		panic(err)
	}
	out, err := signed.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return out
}

func (i *Issuer) discovery(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/authorize",
		"token_endpoint":                        i.URL + "/token",
		"id_token_signing_alg_values_supported": []string{"ES256"}, "code_challenge_methods_supported": []string{
			"S256",
		},
	})
}

func (i *Issuer) keys(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK,
		jose.JSONWebKeySet{
			Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: "k", Algorithm: "ES256", Use: "sig"}},
		})
}

// authorize sends the browser back with a code.
func (i *Issuer) authorize(w http.ResponseWriter, r *http.Request) {
	q, b := r.URL.Query(), i.now()
	to, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || !strings.HasSuffix(to.Path, "/ui/oidc/callback") || q.Get("client_id") != b.ClientID ||
		q.Get("response_type") != "code" ||
		q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43 || q.Get("state") == "" ||
		q.Get("nonce") == "" ||
		!slices.Contains(strings.Fields(q.Get("scope")), "openid") {
		http.Error(w, "not a request of the registered client: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	back := url.Values{"state": {q.Get("state")}, "iss": {i.URL}}
	if b.Deny != "" {
		back.Set("error", b.Deny)
	} else {
		code, challenge := rand.Text(), q.Get("code_challenge")
		if b.OtherChallenge {
			challenge = strings.Repeat("x", 43)
		}
		i.mu.Lock()
		i.codes[code] = issued{redirect: q.Get("redirect_uri"), challenge: challenge, nonce: q.Get("nonce")}
		i.secrets = append(i.secrets, code)
		i.mu.Unlock()
		back.Set("code", code)
	}
	to.RawQuery = back.Encode()
	http.Redirect(w, r, to.String(), http.StatusFound)
}

// token exchanges a code, once, for an ID token.
func (i *Issuer) token(w http.ResponseWriter, r *http.Request) {
	b := i.now()
	i.mu.Lock()
	i.exchanges++
	i.mu.Unlock()
	if b.Respond != nil {
		b.Respond(w, r)
		return
	}
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	}
	if id != b.ClientID || secret != b.Secret {
		answer(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client"})
		return
	}
	i.mu.Lock()
	code, known := i.codes[r.FormValue("code")]
	delete(i.codes, r.FormValue("code"))
	i.secrets = append(i.secrets, r.FormValue("code_verifier"))
	i.mu.Unlock()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !known || r.FormValue("grant_type") != "authorization_code" || r.FormValue("redirect_uri") != code.redirect ||
		base64.RawURLEncoding.EncodeToString(sum[:]) != code.challenge {
		answer(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant", "error_description": "it was " +
			r.FormValue("code")})
		return
	}
	claims := map[string]any{"nonce": code.nonce}
	maps.Copy(claims, b.Claims)
	idToken, access := i.Token(claims), rand.Text()
	i.mu.Lock()
	i.secrets = append(i.secrets, idToken, access)
	i.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{
		"access_token": access, "token_type": "Bearer", "expires_in": 3600,
		"id_token": idToken,
	})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that left misses nothing
}
