package identity

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
)

// eventRows has a row for each event type of the plane. Its columns are the arguments of on.
var eventRows = plane.NewRows(
	on[*identityv1.KeyCreated](foldCreated, pageOf, (*Keys).addKey),
	on[*identityv1.KeyRevoked](foldRevoked, pageOf, (*Keys).endKey),
	on[*identityv1.KeyUsed](foldUsed, pageOfUsed, nil),
)

// row is a row of eventRows; see on.
type row struct {
	fold  func(s *State, ev *journal.Event) error
	page  func(s *State, ev *journal.Event, touch func(snapshot.Owner))
	admit func(k *Keys, ev *journal.Event)
}

// on returns the row of an event type:
//   - fold applies an event to the state.
//   - page is State.Owners for events of the type.
//   - admit changes which keys authenticators accept; nil: none.
func on[P proto.Message](
	fold func(s *State, p P) error,
	page func(s *State, p P, touch func(snapshot.Owner)),
	admit func(k *Keys, p P),
) plane.Row[row] {
	r := row{
		fold: func(s *State, ev *journal.Event) error { return fold(s, plane.PayloadOf[P](ev)) },
		page: func(s *State, ev *journal.Event, touch func(snapshot.Owner)) { page(s, plane.PayloadOf[P](ev), touch) },
	}
	if admit != nil {
		r.admit = func(k *Keys, ev *journal.Event) { admit(k, plane.PayloadOf[P](ev)) }
	}
	return plane.RowOf[P](r)
}

func foldCreated(s *State, p *identityv1.KeyCreated) error {
	if id := p.GetKey().GetKeyId(); s.keys[id] != nil {
		return fmt.Errorf("identity: key %s was made before", id)
	}
	s.add(p.GetKey(), p.GetSecretHash())
	return nil
}

func foldRevoked(s *State, p *identityv1.KeyRevoked) error {
	id := p.GetKey().GetKeyId()
	old := s.keys[id]
	if old == nil {
		return fmt.Errorf("identity: no key %s", id)
	}
	s.keys[id] = &record{key: p.GetKey(), hash: old.hash}
	return nil
}

func foldUsed(s *State, p *identityv1.KeyUsed) error {
	old := s.keys[p.GetKeyId()]
	if old == nil {
		return fmt.Errorf("identity: no key %s", p.GetKeyId())
	}
	k := proto.CloneOf(old.key)
	k.LastUsedAt = p.GetUsedAt()
	s.keys[p.GetKeyId()] = &record{key: k, hash: old.hash}
	return nil
}

func pageOf[P interface {
	proto.Message
	GetKey() *identityv1.Key
}](_ *State, p P, touch func(snapshot.Owner)) {
	touch(ownerOf(p.GetKey()))
}

func pageOfUsed(s *State, p *identityv1.KeyUsed, touch func(snapshot.Owner)) {
	if r := s.keys[p.GetKeyId()]; r != nil {
		touch(ownerOf(r.key))
	}
}
