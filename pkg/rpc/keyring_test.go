package rpc

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

func TestKeyringMintsAndChecks(t *testing.T) {
	k := NewKeyring([]byte("key"), false)
	ctx := t.Context()
	run := k.MintRun("ns", "keeper", "run_1")
	require.True(t, strings.HasPrefix(run, "qrt_"))
	want := Actor{Namespace: "ns", Principal: "agent/keeper", Role: RoleAgent, AgentID: "keeper", RunID: "run_1"}
	for range 2 {
		got, err := k.Authenticate(ctx, run)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.True(t, strings.HasPrefix(k.MintService("work"), "qsv_"))
	operator := Actor{Namespace: "ns", Principal: "olga", Role: RoleOperator}
	token := k.Mint(operator)
	require.True(t, strings.HasPrefix(token, "qtk_"))
	got, err := k.Authenticate(ctx, token)
	require.NoError(t, err)
	require.Equal(t, operator, got)

	same := NewKeyring([]byte("key"), false)
	_, err = same.Authenticate(ctx, run)
	require.NoError(t, err)
	for _, other := range []*Keyring{NewKeyring([]byte("kez"), false), NewKeyring(nil, false), NewKeyring(nil, true)} {
		_, err := other.Authenticate(ctx, run)
		require.ErrorIs(t, err, fault.Unauthenticated)
	}
	_, err = k.Authenticate(ctx, "")
	require.ErrorIs(t, err, fault.Unauthenticated)
}

func TestKeyringRefusesEveryChangedByte(t *testing.T) {
	k := NewKeyring([]byte("key"), true)
	good := k.MintRun("ns", "keeper", "run_1")
	for i := range len(good) {
		bad := []byte(good)
		bad[i] ^= 1
		_, err := k.Authenticate(t.Context(), string(bad))
		require.ErrorIs(t, err, fault.Unauthenticated, "byte %d", i)
	}
	for _, bad := range []string{
		".", "qrt_.", "x." + good, good + ".", strings.Repeat("a", tokenMax) + ".b",
		k.Mint(Actor{Role: RoleAdmin}),
	} {
		_, err := k.Authenticate(t.Context(), bad)
		require.ErrorIs(t, err, fault.Unauthenticated, bad)
	}
}

func TestKeyringCacheIsBoundedAndHoldsOnlyGoodTokens(t *testing.T) {
	k := NewKeyring([]byte("key"), false)
	k.verified = newRecent[string, claims](10)
	for i := range 100 {
		_, err := k.Authenticate(t.Context(), k.MintRun("ns", fmt.Sprint("a", i), "r"))
		require.NoError(t, err)
		_, err = k.Authenticate(t.Context(), fmt.Sprint("qrt_guess.", i))
		require.Error(t, err)
	}
	require.LessOrEqual(t, k.verified.len(), 20)
}

func TestRecentKeepsWhatIsAskedFor(t *testing.T) {
	r := newRecent[int, int](4)
	r.put(-1, 7)
	for i := range 50 {
		r.put(i, i)
		v, ok := r.get(-1)
		require.True(t, ok)
		require.Equal(t, 7, v)
	}
	_, ok := r.get(0)
	require.False(t, ok)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				r.put(i%10, w)
				r.get((i + w) % 10)
			}
		})
	}
	wg.Wait()
}

func BenchmarkAuthenticate(b *testing.B) {
	k := NewKeyring([]byte("key"), false)
	token := k.MintRun("ns", "keeper", "run_1")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.Authenticate(context.Background(), token); err != nil {
			b.Fatal(err)
		}
	}
}
