package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/must"
)

// TestI10_ShortRSAKeysOfAProviderAreNotUsed signs the same claims with keys of a provider: those
// of RSA with fewer than 2 048 bits let nobody in.
func TestI10_ShortRSAKeysOfAProviderAreNotUsed(t *testing.T) {
	signers := map[string]jose.SigningKey{}
	var set jose.JSONWebKeySet
	for _, bits := range []int{1024, 2047, 2048, 3072} {
		key := must.Value(rsa.GenerateKey(rand.Reader, bits))(t)
		kid := fmt.Sprint(bits)
		signers[kid] = jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: kid}}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: &key.PublicKey, KeyID: kid, Algorithm: "RS256", Use: "sig"})
	}
	ec := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	signers["ec"] = jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: ec, KeyID: "ec"}}
	set.Keys = append(set.Keys, jose.JSONWebKey{Key: &ec.PublicKey, KeyID: "ec", Algorithm: "ES256", Use: "sig"})

	mux := http.NewServeMux()
	provider := httptest.NewServer(mux)
	defer provider.Close()
	show := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	mux.HandleFunc("/.well-known/openid-configuration", show(map[string]any{
		"issuer": provider.URL, "jwks_uri": provider.URL + "/keys", "authorization_endpoint": provider.URL + "/a",
		"token_endpoint":                        provider.URL + "/t",
		"id_token_signing_alg_values_supported": []string{"RS256", "ES256"},
	}))
	mux.HandleFunc("/keys", show(set))
	tokens := must.Value(NewTokens(TokensConfig{
		Issuer: provider.URL, Audience: "quartet", Namespace: "acme",
		RoleClaim: "role", Roles: map[string]string{"dev": "operator"},
	}))(t)
	defer tokens.Close()
	claims := must.Value(json.Marshal(map[string]any{
		"iss": provider.URL, "aud": "quartet", "sub": "user-1", "role": "dev",
		"exp": time.Now().Add(time.Hour).Unix(),
	}))(t)
	for kid, ok := range map[string]bool{"1024": false, "2047": false, "2048": true, "3072": true, "ec": true} {
		signer := must.Value(jose.NewSigner(signers[kid], nil))(t)
		text := must.Value(must.Value(signer.Sign(claims))(t).CompactSerialize())(t)
		actor, err := tokens.Authenticate(t.Context(), text)
		if ok {
			require.NoError(t, err, kid)
			require.Equal(t, "oidc:user-1", actor.Principal)
			continue
		}
		require.ErrorIs(t, err, fault.Unauthenticated, kid)
	}
}

func TestI10_OtherDocumentsStayAsTheyAre(t *testing.T) {
	s := &strongKeys{logger: zap.NewNop()}
	for _, text := range []string{
		``, `{}`, `[]`, `{"issuer":"x"}`, `{"keys":"x"}`, `{"keys":[{"kty":"?"},1]}`,
		`{"keys":[]}`, `{"keys":null}`,
	} {
		require.Equal(t, text, string(s.filter([]byte(text))))
	}
	for n, ok := range map[int]bool{maxProviderBytes - 1: true, maxProviderBytes: true, maxProviderBytes + 1: false} {
		long := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat("x", n)))
		}))
		resp, err := (&http.Client{Transport: &strongKeys{next: &http.Transport{}, logger: zap.NewNop()}}).Get(long.URL)
		require.Equal(t, ok, err == nil, n)
		if err == nil {
			require.EqualValues(t, n, resp.ContentLength)
			require.NoError(t, resp.Body.Close())
		}
		long.Close()
	}
}
