package identity

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/pkg/rpc"
	"quartet/tests/issuer"
)

// signInRig returns an issuer and the Tokens of a server whose client is "console" and whose audience is "quartet".
func signInRig(t *testing.T, ring func() keyfile.Ring) (*issuer.Issuer, *Tokens) {
	p, err := issuer.New(issuer.Behaviour{ClientID: "console", Claims: map[string]any{"role": "dev", "nonce": "n"}})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	tokens := must.Value(NewTokens(TokensConfig{
		Issuer: p.URL, Audience: "quartet", Namespace: "acme", RoleClaim: "role", Roles: map[string]string{
			"dev": rpc.RoleOperator,
		}, ClientID: "console", Keys: ring,
	}))(t)
	t.Cleanup(tokens.Close)
	return p, tokens
}

func TestI22_WhatAnIDTokenIsWorth(t *testing.T) {
	keys := keyfile.Fixed(keyfile.New(time.Unix(1_700_000_000, 0)))
	p, tokens := signInRig(t, keys.Ring)
	all := &Authenticator{Keyring: rpc.KeyringOf(keys, false), Tokens: tokens}
	idToken := p.Token(nil)
	credential, ends, err := tokens.Accept(t.Context(), idToken, "n")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), ends, time.Minute)
	actor := must.Value(all.Authenticate(t.Context(), credential))(t)
	require.Equal(t, rpc.Actor{Namespace: "acme", Principal: "oidc:ann", Role: rpc.RoleOperator}, actor,
		"as a token of a program")
	held, release := all.Hold(t.Context(), credential)
	defer release()
	deadline, ok := held.Deadline()
	require.True(t, ok)
	require.Equal(t, ends, deadline)

	_, err = all.Authenticate(t.Context(), idToken)
	require.ErrorIs(t, err, fault.Unauthenticated, "nobody sends an ID token of the client as a credential")
	for name, bad := range map[string]string{
		"another token":   strings.Replace(credential, idToken, p.Token(map[string]any{"sub": "bob"}), 1),
		"no mark":         signInPrefix + keys.Ring().Active().ID + "_." + idToken,
		"no key":          signInPrefix + "_x." + idToken,
		"no such key":     strings.Replace(credential, keys.Ring().Active().ID, "00000000", 1),
		"nothing":         signInPrefix,
		"only a mark":     strings.TrimSuffix(credential, idToken),
		"a changed token": credential[:len(credential)-4] + "AAAA",
	} {
		must.Refuse(all.Authenticate(t.Context(), bad))(t, fault.Unauthenticated, name)
	}

	old := keys.Ring()
	next := must.Value(old.Add(time.Unix(1_700_000_100, 0)))(t)
	pending, _ := next.Pending()
	next = must.Value(next.Activate(pending.ID))(t)
	keys.Set(next)
	must.Value(all.Authenticate(t.Context(), credential))(t, "an old key verifies")
	next = must.Value(next.Retire(old.Active().ID))(t)
	keys.Set(next)
	must.Refuse(all.Authenticate(t.Context(), credential))(t, fault.Unauthenticated, "and a retired one does not")
}

func TestI22_WhichIDTokensAreAccepted(t *testing.T) {
	keys := keyfile.Fixed(keyfile.New(time.Unix(1_700_000_000, 0)))
	p, tokens := signInRig(t, keys.Ring)
	other := must.Value(issuer.New(issuer.Behaviour{ClientID: "console"}))(t)
	defer other.Close()
	for name, c := range map[string]struct {
		token, nonce string
		want         error
	}{
		"good": {p.Token(nil), "n", nil},
		"of several audiences": {
			p.Token(map[string]any{"aud": []string{"x", "console"}, "azp": "console"}), "n",
			nil,
		},
		"another nonce":            {p.Token(map[string]any{"nonce": "m"}), "n", fault.Unauthenticated},
		"no nonce":                 {p.Token(map[string]any{"nonce": nil}), "n", fault.Unauthenticated},
		"neither has a nonce":      {p.Token(map[string]any{"nonce": ""}), "", fault.Unauthenticated},
		"the audience of programs": {p.Token(map[string]any{"aud": "quartet"}), "n", fault.Unauthenticated},
		"issued to another client": {
			p.Token(map[string]any{"aud": []string{"x", "console"}, "azp": "x"}), "n",
			fault.Unauthenticated,
		},
		"over": {
			p.Token(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "n",
			fault.Unauthenticated,
		},
		"another issuer's": {
			other.Token(map[string]any{"iss": p.URL, "role": "dev", "nonce": "n"}), "n",
			fault.Unauthenticated,
		},
		"no role":  {p.Token(map[string]any{"role": "guest"}), "n", fault.PermissionDenied},
		"nobody's": {p.Token(map[string]any{"sub": nil}), "n", fault.Unauthenticated},
		"too long": {
			p.Token(map[string]any{"more": strings.Repeat("x", tokenMax)}), "n",
			fault.Unauthenticated,
		},
		"no token": {"x", "n", fault.Unauthenticated},
	} {
		credential, _, err := tokens.Accept(t.Context(), c.token, c.nonce)
		if c.want == nil {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.want, name)
		require.Empty(t, credential, name)
	}
}
