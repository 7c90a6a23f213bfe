package identity

import (
	"time"

	"github.com/google/btree"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// Plane is the name of this plane in journals and subjects.
const Plane = "identity"

// registry has the payload types of the plane's events.
var registry = journal.NewRegistry(identityv1.File_quartet_identity_v1_identity_event_proto)

// record is a key and the hash of its secret.
type record struct {
	key  *identityv1.Key
	hash string // SHA-256 in hex
}

// State holds all keys. Records are replaced and never changed.
type State struct {
	keys   map[string]*record
	counts map[string]int // keys by namespace, ended ones included
	// order has all ids in alphabetical order, which is also the order of their creation.
	order *btree.BTreeG[string]
}

// NewState returns the state of an empty journal.
func NewState() *State {
	const degree = 32
	return &State{keys: map[string]*record{}, counts: map[string]int{}, order: btree.NewOrderedG[string](degree)}
}

// Apply folds one event into the state. What it does with an event type is in eventRows.
func (s *State) Apply(ev *journal.Event) error {
	row, err := eventRows.Of(ev)
	if err != nil {
		return err
	}
	return row.fold(s, ev)
}

// add adds a key that the state does not have.
func (s *State) add(k *identityv1.Key, hash string) {
	s.keys[k.GetKeyId()] = &record{key: k, hash: hash}
	s.order.ReplaceOrInsert(k.GetKeyId())
	s.counts[k.GetNamespace()]++
}

// seen returns a copy of a key as readers see it: with its status at now.
func (r *record) seen(now time.Time) *identityv1.Key {
	k := proto.CloneOf(r.key)
	k.Status = status(k, now)
	return k
}

// status returns the status of a key at now.
func status(k *identityv1.Key, now time.Time) identityv1.KeyStatus {
	switch {
	case k.GetRevokedAt() != nil:
		return identityv1.KeyStatus_KEY_STATUS_REVOKED
	case k.GetExpiresAt() != nil && !now.Before(k.GetExpiresAt().AsTime()):
		return identityv1.KeyStatus_KEY_STATUS_EXPIRED
	}
	return identityv1.KeyStatus_KEY_STATUS_ACTIVE
}
