package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

// A credential that ends by itself is valid until then, although it is cached.
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
	synctest.Test(t, func(t *testing.T) {
		token := k.MintUntil(a, time.Now().Add(time.Hour))
		_, err := k.Authenticate(t.Context(), token)
		require.NoError(t, err)
		<-time.After(time.Hour - 1)
		_, err = k.Authenticate(t.Context(), token)
		require.NoError(t, err)
		<-time.After(1)
		_, err = k.Authenticate(t.Context(), token)
		require.ErrorIs(t, err, fault.Unauthenticated)
	})
}

// A call ends with a credential that expires, and only then.
func TestHoldEndsWithTheCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeyring([]byte("key"), true)
		a := Actor{Namespace: "ns", Principal: "olga", Role: RoleAdmin}
		end := time.Now().Add(time.Hour)
		held, release := k.Hold(t.Context(), k.MintUntil(a, end))
		defer release()
		forever, release := k.Hold(t.Context(), k.Mint(a))
		defer release()
		none, release := k.Hold(t.Context(), "")
		defer release()
		over, release := k.Hold(t.Context(), k.MintUntil(a, end.Add(-2*time.Hour)))
		defer release()
		require.ErrorIs(t, context.Cause(over), fault.Unauthenticated)
		<-time.After(time.Until(end) - 1) // of the bubble's clock
		synctest.Wait()
		require.NoError(t, held.Err())
		<-time.After(1)
		synctest.Wait()
		require.ErrorIs(t, context.Cause(held), fault.Unauthenticated)
		require.NoError(t, forever.Err())
		require.NoError(t, none.Err())
	})
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
