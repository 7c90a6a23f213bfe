package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
)

// TestI7_ASilentProviderIsAskedOnce asks a provider that does not respond: of several callers one causes a request, and
// one whose context ends does not wait for the others. When the provider responds, all others are answered.
func TestI7_ASilentProviderIsAskedOnce(t *testing.T) {
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}},
		nil)
	require.NoError(t, err)

	mux := http.NewServeMux()
	provider := httptest.NewServer(mux)
	defer provider.Close()
	var requests atomic.Int64
	asked, respond := make(chan struct{}), make(chan struct{})
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			close(asked)
		}
		select {
		case <-respond:
		case <-r.Context().Done():
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": provider.URL, "jwks_uri": provider.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).
			Encode(jose.JSONWebKeySet{
				Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k", Algorithm: "ES256", Use: "sig"}},
			})
	})
	tokens := must.Value(NewTokens(TokensConfig{
		Issuer: provider.URL, Audience: "quartet", Namespace: "acme",
		RoleClaim: "role", Roles: map[string]string{"dev": "operator"},
	}))(t)
	defer tokens.Close()
	claims := must.Value(json.Marshal(map[string]any{
		"iss": provider.URL, "aud": "quartet", "sub": "user-1", "role": "dev",
		"exp": time.Now().Add(time.Hour).Unix(),
	}))(t)
	token := must.Value(must.Value(signer.Sign(claims))(t).CompactSerialize())(t)

	answers := make(chan error, 3)
	ask := func() {
		_, err := tokens.Authenticate(context.Background(), token)
		answers <- err
	}
	gone, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := tokens.Authenticate(gone, token)
		first <- err
	}()
	<-asked
	leave() // the caller for whom the request was made
	require.ErrorIs(t, <-first, fault.NotReady)
	must.Refuse(tokens.Authenticate(gone, token))(t, fault.NotReady)
	for range cap(answers) {
		go ask()
	}
	close(respond)
	for range cap(answers) {
		require.NoError(t, <-answers)
	}
	require.EqualValues(t, 1, requests.Load())
}

// TestI7_CloseEndsADiscovery: a server that stops does not wait for a provider that does not respond.
func TestI7_CloseEndsADiscovery(t *testing.T) {
	asked := make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	defer provider.Close()
	tokens := must.Value(NewTokens(TokensConfig{
		Issuer: provider.URL, Audience: "quartet", Namespace: "acme",
		RoleClaim: "role", Roles: map[string]string{"dev": "operator"},
	}))(t)
	answer := make(chan error, 1)
	go func() {
		_, err := tokens.Authenticate(context.Background(), "x.y.z")
		answer <- err
	}()
	<-asked
	tokens.Close()
	require.ErrorIs(t, <-answer, fault.NotReady)
}
