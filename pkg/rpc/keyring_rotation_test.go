package rpc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
)

// rotation is a ring with one key more at each step.
func rotation(t *testing.T) (source *keyfile.Source, first keyfile.Ring, add, activate, retire func()) {
	t.Helper()
	first = keyfile.New(time.Now())
	source = keyfile.Fixed(first)
	change := func(f func(keyfile.Ring) (keyfile.Ring, error)) {
		next, err := f(source.Ring())
		require.NoError(t, err)
		source.Set(next)
	}
	add = func() { change(func(r keyfile.Ring) (keyfile.Ring, error) { return r.Add(time.Now()) }) }
	activate = func() {
		change(func(r keyfile.Ring) (keyfile.Ring, error) { k, _ := r.Pending(); return r.Activate(k.ID) })
	}
	retire = func() {
		change(func(r keyfile.Ring) (keyfile.Ring, error) { return r.Retire(first.Active().ID) })
	}
	return source, first, add, activate, retire
}

// Tokens name their key: those of every key that is there are accepted, those of a retired one
// are not, although they were accepted before and are cached.
func TestI20_TokensSurviveARotation(t *testing.T) {
	source, first, add, activate, retire := rotation(t)
	k := KeyringOf(source, false)
	late := KeyringOf(keyfile.Fixed(first), false) // a process that did not read the new file
	accepts := func(k *Keyring, token string) bool {
		_, err := k.Authenticate(t.Context(), token)
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthenticated)
		}
		return err == nil
	}
	before := k.MintRun("ns", "keeper", "run_1")
	require.Contains(t, before, "."+first.Active().ID+".")
	require.True(t, accepts(k, before))

	add()
	require.True(t, accepts(late, k.MintService("work")), "a pending key does not sign")
	activate()
	after := k.MintRun("ns", "keeper", "run_2")
	require.Contains(t, after, "."+source.Ring().Active().ID+".")
	require.True(t, accepts(k, before))
	require.True(t, accepts(k, after))
	require.False(t, accepts(late, after), "the reason for the pending state")

	retire()
	require.False(t, accepts(k, before))
	require.True(t, accepts(k, after))
}

// A token cannot name another key than the one that signed it.
func TestI20_ATokenIsOfTheKeyThatItNames(t *testing.T) {
	source, first, add, activate, _ := rotation(t)
	k := KeyringOf(source, false)
	token := k.Mint(Actor{Namespace: "ns", Principal: "olga", Role: RoleOperator})
	add()
	activate()
	other := source.Ring().Active().ID
	for _, bad := range []string{
		strings.Replace(token, first.Active().ID, other, 1),
		strings.Replace(token, "."+first.Active().ID, "", 1),
		strings.Replace(token, first.Active().ID, "", 1),
		strings.Replace(token, first.Active().ID, "00000000", 1),
	} {
		require.NotEqual(t, token, bad)
		_, err := k.Authenticate(t.Context(), bad)
		require.ErrorIs(t, err, fault.Unauthenticated, bad)
	}
	_, err := k.Authenticate(t.Context(), token)
	require.NoError(t, err)
}

// unnamedToken is a token as it was before keys had ids.
func unnamedToken(t *testing.T, key keyfile.Key, a Actor) string {
	t.Helper()
	payload, err := json.Marshal(a)
	require.NoError(t, err)
	body := prefixOf(a.Role) + base64.RawURLEncoding.EncodeToString(payload)
	return body + "." + base64.RawURLEncoding.EncodeToString(sign(key, body))
}

// Tokens of before keys had ids are valid until their key is retired.
func TestI20_TokensWithoutAKeyID(t *testing.T) {
	source, first, add, activate, retire := rotation(t)
	k := KeyringOf(source, false)
	a := Actor{Namespace: "ns", Principal: "agent/keeper", Role: RoleAgent, AgentID: "keeper", RunID: "run_1"}
	token := unnamedToken(t, first.Active(), a)
	for _, step := range []func(){func() {}, add, activate} {
		step()
		got, err := k.Authenticate(t.Context(), token)
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	foreign := unnamedToken(t, keyfile.New(time.Now()).Active(), a)
	_, err := k.Authenticate(t.Context(), foreign)
	require.ErrorIs(t, err, fault.Unauthenticated)
	retire()
	_, err = k.Authenticate(t.Context(), token)
	require.ErrorIs(t, err, fault.Unauthenticated)
}

// Everything that a key mints expires, and a token that names a key and has no expiry is refused.
func TestI20_WhatAKeyMintsExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeyring([]byte("key"), false)
		a := Actor{Namespace: "ns", Principal: "olga", Role: RoleOperator}
		endless := k.seal(a.Role, claims{Actor: a})
		_, err := k.Authenticate(t.Context(), endless)
		require.ErrorIs(t, err, fault.Unauthenticated)
		renewed := k.ServiceToken("work")
		first := renewed()
		for _, c := range []struct {
			token string
			life  time.Duration
		}{{first, serviceLife}, {k.Mint(a), roleLife}, {k.MintRun("ns", "keeper", "run_1"), roleLife}} {
			v, ok := verify(k.keys.Ring(), c.token)
			require.True(t, ok)
			left := time.Until(time.Unix(v.End, 0))
			require.LessOrEqual(t, left, c.life+24*time.Hour)
			require.Greater(t, left, c.life-time.Second)
		}
		one, two := k.MintRun("ns", "keeper", "run_1"), k.MintRun("ns", "keeper", "run_1")
		require.Equal(t, one, two, "a repeated call gets the same token")

		require.Equal(t, first, renewed())
		<-time.After(serviceLife/2 - 1)
		require.Equal(t, first, renewed())
		<-time.After(1)
		second := renewed()
		require.NotEqual(t, first, second)
		<-time.After(serviceLife / 2)
		_, err = k.Authenticate(t.Context(), first)
		require.ErrorIs(t, err, fault.Unauthenticated)
		for range 10 {
			<-time.After(serviceLife)
			_, err = k.Authenticate(t.Context(), renewed())
			require.NoError(t, err)
		}
	})
}

// A service signs with the new key from the moment at which that is the active one.
func TestI20_ServicesUseTheActiveKey(t *testing.T) {
	source, _, add, activate, retire := rotation(t)
	k := KeyringOf(source, false)
	token := k.ServiceToken("work")
	old := token()
	add()
	require.Equal(t, old, token())
	activate()
	require.NotEqual(t, old, token())
	retire()
	_, err := k.Authenticate(t.Context(), token())
	require.NoError(t, err)
}

// Retiring a key ends the long calls that its credentials opened, and no others.
func TestI20_RetiringAKeyEndsItsCalls(t *testing.T) {
	source, _, add, activate, retire := rotation(t)
	k := KeyringOf(source, true)
	retired := k.MintRun("ns", "keeper", "run_1")
	before, release := k.Hold(t.Context(), retired)
	defer release()
	service, release := k.Hold(t.Context(), k.MintService("gateway"))
	defer release()
	none, release := k.Hold(t.Context(), "")
	defer release()
	add()
	activate()
	after, release := k.Hold(t.Context(), k.MintRun("ns", "keeper", "run_2"))
	defer release()
	require.NoError(t, before.Err())
	retire()
	for _, held := range []context.Context{before, service} {
		require.ErrorIs(t, context.Cause(held), fault.Unauthenticated)
		require.ErrorContains(t, context.Cause(held), "was retired")
	}
	late, releaseLate := k.Hold(t.Context(), retired)
	defer releaseLate()
	require.ErrorIs(t, context.Cause(late), fault.Unauthenticated, "its key was retired after it was accepted")
	require.NoError(t, after.Err())
	require.NoError(t, none.Err())
	require.Len(t, k.holds, 1)
	release()
	require.Empty(t, k.holds)
}

// A call between services does not end when the service's credential expires.
func TestI20_AServicesCallOutlivesItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeyring([]byte("key"), true)
		held, release := k.Hold(t.Context(), k.MintService("gateway"))
		defer release()
		<-time.After(2 * serviceLife)
		synctest.Wait()
		require.NoError(t, held.Err())
	})
}

// Keys change while calls are authenticated; run with -race.
func TestI20_RotationsUnderLoad(t *testing.T) {
	source, _, add, activate, _ := rotation(t)
	k := KeyringOf(source, false)
	token := k.ServiceToken("work")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				bearer := token()
				_, err := k.Authenticate(context.Background(), bearer)
				if err != nil {
					t.Error(err)
					return
				}
				_, release := k.Hold(context.Background(), bearer)
				release()
			}
		})
	}
	for range keyfile.MaxKeys - 1 {
		add()
		activate()
	}
	close(stop)
	wg.Wait()
	require.Empty(t, k.holds)
}
