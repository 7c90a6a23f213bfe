package rpc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

// A credential that ends by itself is good until then, and is not remembered
// past it.
func TestMintUntil(t *testing.T) {
	k := NewKeyring([]byte("key"), false)
	a := Actor{Namespace: "ns", Principal: "olga", Role: RoleAdmin}
	good, over := k.MintUntil(a, time.Now().Add(time.Hour)), k.MintUntil(a, time.Now().Add(-time.Second))
	for range 2 {
		got, err := k.Authenticate(t.Context(), good)
		require.NoError(t, err)
		require.Equal(t, a, got)
		_, err = k.Authenticate(t.Context(), over)
		require.ErrorIs(t, err, fault.Unauthenticated)
	}
	require.Zero(t, k.verified.len(), "what ends is looked at every time")
}

func TestIsMinted(t *testing.T) {
	k := NewKeyring(nil, false)
	for _, role := range []string{RoleAgent, RoleService, RoleOperator} {
		require.True(t, IsMinted(k.Mint(Actor{Namespace: "ns", Role: role})))
	}
	for _, other := range []string{"", "qk_x", "eyJ", "q"} {
		require.False(t, IsMinted(other))
	}
}
