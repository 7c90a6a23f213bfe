package secrets

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// A secret opens for its own trigger and under its own key only.
func TestP3_SealedSecrets(t *testing.T) {
	mine, theirs := Active(keyfile.Of([]byte("a"))), Active(keyfile.Of([]byte("b")))
	sealed := must.Value(mine.Seal("trg_1", "secret"))(t)
	require.Equal(t, sealed, must.Value(mine.Seal("trg_1", "secret"))(t), "a rule gives the same answer twice")
	require.NotContains(t, string(sealed), "secret")
	require.NotEqual(t, sealed, must.Value(mine.Seal("trg_2", "secret"))(t))
	require.Equal(t, "secret", must.Value(mine.open("trg_1", sealed))(t))
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
		require.Error(t, must.Err(try.by.open(try.id, try.in)))
	}
}

// Triggers of before keys had ids are those of the key of the older file, whatever is active.
func TestI20_TriggersWithoutAKeyID(t *testing.T) {
	ring := keyfile.Of([]byte("the older key"))
	old := &waitingv1.Trigger{
		TriggerId:       "trg_1",
		SignatureScheme: waitingv1.SignatureScheme_SIGNATURE_SCHEME_HUB_SHA256,
	}
	before := must.Value(Of(ring, old))(t)
	token, signing := before.Token(old), before.Signing(old)
	ring = must.Value(ring.Add(time.Now()))(t)
	next, _ := ring.Pending()
	ring = must.Value(ring.Activate(next.ID))(t)
	after := must.Value(Of(ring, old))(t)
	require.Equal(t, []string{token, signing}, []string{after.Token(old), after.Signing(old)})
	ring = must.Value(ring.Retire(keyfile.Of([]byte("the older key")).Active().ID))(t)
	must.Refuse(Of(ring, old))(t, fault.InstallationKeyRetired)
}
