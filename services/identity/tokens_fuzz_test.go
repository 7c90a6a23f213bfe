package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-oidc/v3/oidc"
	jose "github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/pkg/rpc"
)

// fuzzed returns Tokens whose provider has one key, and a function that signs with it. Fuzzing takes several processes,
// so the key follows from the seed.
func fuzzed(f *testing.F, seed byte) (tokens *Tokens, sign func(t require.TestingT, payload []byte) string) {
	key := must.Value(ecdsa.ParseRawPrivateKey(elliptic.P256(), bytes.Repeat([]byte{seed}, 32)))(f)
	tokens = must.Value(NewTokens(TokensConfig{
		Issuer: "https://id.example.com", Audience: "quartet", NamespaceClaim: "org.tenant", RoleClaim: "realm.roles",
		Roles: map[string]string{"dev": rpc.RoleOperator, "boss": rpc.RoleAdmin},
	}))(f)
	tokens.checks = connlimit.NewRates(1e9, 1e9)
	tokens.found = &discovered{
		bearer: oidc.NewVerifier(tokens.cfg.Issuer, &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key.Public()}},
			&oidc.Config{ClientID: tokens.cfg.Audience, SupportedSigningAlgs: []string{oidc.ES256}}),
	}
	signer := must.Value(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil))(f)
	return tokens, func(t require.TestingT, payload []byte) string {
		return must.Value(must.Value(signer.Sign(payload))(t).CompactSerialize())(t)
	}
}

// claimsOf returns the JSON of claims that are accepted, with others in place of some.
func claimsOf(t require.TestingT, with map[string]any) []byte {
	claims := map[string]any{
		"iss": "https://id.example.com", "aud": "quartet", "sub": "user-1", "exp": 4_000_000_000, // in 2096
		"org": map[string]any{"tenant": "acme"}, "realm": map[string]any{"roles": []string{"viewer", "dev"}},
	}
	for name, v := range with {
		claims[name] = v
	}
	return must.Value(json.Marshal(claims))(t)
}

// FuzzOpenIDToken: no text but a token that the provider signed is accepted, and its actor is the one of its claims.
func FuzzOpenIDToken(f *testing.F) {
	tokens, sign := fuzzed(f, 1)
	good := sign(f, claimsOf(f, nil))
	parts := strings.Split(good, ".")
	for _, text := range []string{
		good, good + "=", good[1:], good[:len(good)-1], "." + parts[1] + ".", parts[0] + "." + parts[1] + ".",
		parts[0] + ".." + parts[2],
		"eyJhbGciOiJub25lIn0." + parts[1] + ".", "", "..", "....", "eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0....",
	} {
		f.Add(text)
	}
	_, signOther := fuzzed(f, 2)
	f.Add(signOther(f, claimsOf(f, nil)))
	f.Fuzz(func(t *testing.T, token string) {
		a, err := tokens.Authenticate(t.Context(), token)
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthenticated)
			require.Zero(t, a)
			return
		}
		require.Equal(t, rpc.Actor{Namespace: "acme", Principal: "oidc:user-1", Role: rpc.RoleOperator}, a)
		// A signature has several encodings, but what is signed has one.
		require.True(t, strings.HasPrefix(token, parts[0]+"."+parts[1]+"."), token)
	})
}

// FuzzOpenIDClaims: whatever a provider signs is an actor with a name, a namespace and a configured role, or it is
// refused, also if it is no JSON.
func FuzzOpenIDClaims(f *testing.F) {
	tokens, sign := fuzzed(f, 1)
	for _, with := range []map[string]any{
		nil,
		{"sub": ""},
		{"sub": 7},
		{"sub": "a\nb"},
		{"sub": strings.Repeat("x", 256)},
		{"sub": []string{"a"}},
		{"sub": []string{"a", "b"}},
		{"aud": []string{"quartet", "other"}},
		{"aud": "other"},
		{"iss": "https://id.example.com/"},
		{"exp": 0},
		{"exp": "1"},
		{"exp": 1e300},
		{"nbf": 1e12},
		{"org": "acme"},
		{"org": map[string]any{"tenant": "A b"}},
		{"org.tenant": "other"},
		{"org.tenant": 1},
		{"realm": map[string]any{"roles": "boss"}},
		{"realm": map[string]any{"roles": []any{1, nil, "boss"}}},
		{"realm.roles": []string{"nobody"}},
	} {
		f.Add(claimsOf(f, with))
	}
	for _, text := range []string{
		"", "null", "[]", "{", `{"sub":"a","sub":"b"}`, strings.Repeat("[", 10_000),
		"{\"sub\":\"\xff\"}",
		`{"Aud":"quartet","exp":2000000000,"iss":"https://id.example.com","org":{"tenant":"0"},"realm":{"roles":["dev"]},` +
			`"sub":"0"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		a, err := tokens.Authenticate(t.Context(), sign(t, payload))
		if err != nil {
			known := fault.From(err)
			require.Contains(t, []fault.Reason{fault.Unauthenticated, fault.PermissionDenied}, known.Reason(), err)
			return
		}
		var claims map[string]any
		require.NoError(t, json.Unmarshal(payload, &claims))
		require.Equal(t, tokens.cfg.Issuer, claims["iss"])
		require.Contains(t, texts(claims, "aud"), tokens.cfg.Audience)
		require.Equal(t, []string{strings.TrimPrefix(a.Principal, "oidc:")}, texts(claims, "sub"))
		require.True(t, strings.HasPrefix(a.Principal, "oidc:"))
		require.NoError(t, fault.Name("namespace", a.Namespace))
		require.Equal(t, []string{a.Namespace}, texts(claims, "org.tenant"))
		require.True(t, slices.ContainsFunc(texts(claims, "realm.roles"), func(v string) bool {
			return tokens.cfg.Roles[v] == a.Role
		}))
		require.Equal(t, rpc.Actor{Namespace: a.Namespace, Principal: a.Principal, Role: a.Role}, a,
			"claims give nothing else")
	})
}
