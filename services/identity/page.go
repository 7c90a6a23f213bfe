package identity

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

var _ journal.Paged = (*State)(nil)

// ownerOf returns the owner of the page of a key.
func ownerOf(k *identityv1.Key) snapshot.Owner {
	return snapshot.Owner{Namespace: k.GetNamespace(), ID: k.GetKeyId()}
}

// Owners implements journal.Paged. Each key has a page.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	if row, err := eventRows.Of(ev); err == nil {
		row.page(s, ev, touch)
	}
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for _, r := range s.keys {
		fn(ownerOf(r.key))
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &identityv1.KeyPage{} }

// Page implements journal.Paged.
func (s *State) Page(o snapshot.Owner) proto.Message {
	r := s.keys[o.ID]
	if r == nil || ownerOf(r.key) != o {
		return nil
	}
	return &identityv1.KeyPage{Key: r.key, SecretHash: r.hash}
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, ok := page.(*identityv1.KeyPage)
	switch {
	case !ok:
		return fmt.Errorf("identity: a page of type %T", page)
	case p.GetKey().GetKeyId() == "" || ownerOf(p.GetKey()) != o:
		return fmt.Errorf("identity: the page of key %s/%s has key %s/%s", o.Namespace, o.ID, p.GetKey().GetNamespace(),
			p.GetKey().GetKeyId())
	case s.keys[o.ID] != nil:
		return fmt.Errorf("identity: a second page of key %s", o.ID)
	}
	s.add(p.GetKey(), p.GetSecretHash())
	return nil
}
