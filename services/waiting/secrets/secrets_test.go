package secrets

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// A secret opens for its own trigger and under its own key only.
func TestP3_SealedSecrets(t *testing.T) {
	mine, theirs := Active(keyfile.Of([]byte("a"))), Active(keyfile.Of([]byte("b")))
	sealed, err := mine.Seal("trg_1", "secret")
	require.NoError(t, err)
	again, err := mine.Seal("trg_1", "secret")
	require.NoError(t, err)
	require.Equal(t, sealed, again, "a rule gives the same answer twice")
	require.NotContains(t, string(sealed), "secret")
	other, err := mine.Seal("trg_2", "secret")
	require.NoError(t, err)
	require.NotEqual(t, sealed, other)
	got, err := mine.open("trg_1", sealed)
	require.NoError(t, err)
	require.Equal(t, "secret", got)
	for _, try := range []struct {
		by Secrets
		id string
		in []byte
	}{
		{theirs, "trg_1", sealed},
		{mine, "trg_2", sealed},
		{mine, "trg_1", sealed[:len(sealed)-1]},
		{mine, "trg_1", sealed[:3]},
		{mine, "trg_1", nil},
	} {
		_, err := try.by.open(try.id, try.in)
		require.Error(t, err)
	}
}

// Triggers of before keys had ids are those of the key of the older file, whatever is active.
func TestI20_TriggersWithoutAKeyID(t *testing.T) {
	ring := keyfile.Of([]byte("the older key"))
	old := &waitingv1.Trigger{
		TriggerId:       "trg_1",
		SignatureScheme: waitingv1.SignatureScheme_SIGNATURE_SCHEME_HUB_SHA256,
	}
	before, err := Of(ring, old)
	require.NoError(t, err)
	token, signing := before.Token(old), before.Signing(old)
	ring, err = ring.Add(time.Now())
	require.NoError(t, err)
	next, _ := ring.Pending()
	ring, err = ring.Activate(next.ID)
	require.NoError(t, err)
	after, err := Of(ring, old)
	require.NoError(t, err)
	require.Equal(t, []string{token, signing}, []string{after.Token(old), after.Signing(old)})
	ring, err = ring.Retire(keyfile.Of([]byte("the older key")).Active().ID)
	require.NoError(t, err)
	_, err = Of(ring, old)
	require.ErrorIs(t, err, fault.InstallationKeyRetired)
}
