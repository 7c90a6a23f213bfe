package rpc

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

// FuzzToken: no text but a token that was minted is accepted, and the actor is the one that it was minted for.
func FuzzToken(f *testing.F) {
	k := NewKeyring([]byte("the key of a test"), false)
	actors := []Actor{
		{Namespace: "default", Principal: "o", Role: RoleOperator},
		{Namespace: "acme", Principal: "agent/a", Role: RoleAgent, AgentID: "a", RunID: "run_1"},
		{Namespace: "default", Principal: "quartet", Role: RoleService},
	}
	for _, a := range actors {
		token := k.MintUntil(a, time.Now().Add(24*time.Hour))
		f.Add(token)
		f.Add(token + "=")
		f.Add(token[:len(token)-1])
		f.Add(NewKeyring([]byte("another key"), false).Mint(a))
	}
	f.Add("")
	f.Add("qs_.")
	f.Fuzz(func(t *testing.T, token string) {
		a, err := k.Authenticate(t.Context(), token)
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthenticated)
			require.Zero(t, a)
			return
		}
		require.Contains(t, actors, a)
	})
}

// FuzzActorHeader: the header is an actor with a namespace and a role, which is sent on as it came, or it is refused.
func FuzzActorHeader(f *testing.F) {
	f.Add(encodeActor(Actor{
		Namespace: "acme", Principal: "o", Role: RoleOperator, KeyID: "key_1", Agents: "a,b",
		Tools: "X",
	}))
	for _, text := range []string{
		"", "{}", "[]", "null", `{"ns":"a"}`, `{"role":"admin"}`,
		`{"ns":"a","role":"admin","role":"agent"}`, `{"ns":["a"],"role":"admin"}`,
		"{\"ns\":\"\xff\",\"role\":\"admin\"}",
	} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	f.Add("%")
	f.Fuzz(func(t *testing.T, header string) {
		i := newIdentity(NewKeyring([]byte("k"), false), false)
		a, err := i.actorFromHeader(header)
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthenticated)
			return
		}
		require.NotEmpty(t, a.Namespace)
		require.NotEmpty(t, a.Role)
		again, err := i.actorFromHeader(encodeActor(a))
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}
