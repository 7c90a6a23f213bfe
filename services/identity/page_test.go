package identity

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// Each key has a page, also one without a namespace, and keys are in order of their ids whichever page comes first.
func TestPages(t *testing.T) {
	key := func(id, namespace string) *identityv1.Key { return &identityv1.Key{KeyId: id, Namespace: namespace} }
	s := journaltest.Checked(NewState, 1, nil)
	for _, payload := range []proto.Message{
		&identityv1.KeyCreated{Key: key("key_1", "zeta"), SecretHash: "hash 1"},
		&identityv1.KeyCreated{Key: key("key_2", ""), SecretHash: "hash 2"},
		&identityv1.KeyCreated{Key: key("key_3", "acme"), SecretHash: "hash 3"},
		&identityv1.KeyUsed{KeyId: "key_2", UsedAt: timestamppb.New(epoch)},
		&identityv1.KeyRevoked{
			Key: &identityv1.Key{KeyId: "key_3", Namespace: "acme", RevokedAt: timestamppb.New(epoch)},
		},
		&identityv1.KeyUsed{KeyId: "key_1", UsedAt: timestamppb.New(epoch)},
	} {
		require.NoError(t, s.Apply(&journal.Event{Namespace: "default", Payload: payload}))
	}
	require.NotNil(t, s.Paged.Page(snapshot.Owner{ID: "key_2"}))
	require.Nil(t, s.Paged.Page(snapshot.Owner{ID: "key_1"}))
	require.Nil(t, s.Paged.Page(snapshot.Owner{}))
}

func TestPagesThatAreInvalid(t *testing.T) {
	owner := snapshot.Owner{Namespace: "acme", ID: "key_1"}
	for want, page := range map[string]proto.Message{
		"a page of type *emptypb.Empty":        &emptypb.Empty{},
		"the page of key acme/key_1 has key /": &identityv1.KeyPage{SecretHash: "hash"},
		"the page of key acme/key_1 has key acme/key_2": &identityv1.KeyPage{
			Key: &identityv1.Key{KeyId: "key_2", Namespace: "acme"},
		},
		"the page of key acme/key_1 has key zeta/key_1": &identityv1.KeyPage{
			Key: &identityv1.Key{KeyId: "key_1", Namespace: "zeta"},
		},
	} {
		require.ErrorContains(t, NewState().AddPage(owner, page), want)
	}
	s := NewState()
	page := &identityv1.KeyPage{Key: &identityv1.Key{KeyId: "key_1", Namespace: "acme"}}
	require.NoError(t, s.AddPage(owner, page))
	require.ErrorContains(t, s.AddPage(owner, page), "a second page of key key_1")
	require.Error(t, NewState().AddPage(snapshot.Owner{}, &identityv1.KeyPage{}))
}
