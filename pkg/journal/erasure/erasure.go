// Package erasure knows which owners of a partition's records were erased, by hashes of their names.
//
// Owns: the hash of an owner; the set of those that were erased, as events and snapshots have it; which lines of a
// journal are theirs. Never does: erase anything.
//
// The key of the hashes is in the journal beside them. So whoever has the journal can find out whether a name was
// erased, which is what keeps it from being used again, but no name is read from it.
package erasure

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/event"
)

// KeySize is the number of bytes of a key.
const KeySize = 16

// Hash names an owner.
type Hash [16]byte

// Set is the set of the owners of a partition that were erased. A nil Set is empty. It is not safe for concurrent use.
type Set struct {
	key  []byte // nil as long as the set is empty
	all  map[Hash]struct{}
	last uint64
}

// New returns an empty set.
func New() *Set { return &Set{all: map[Hash]struct{}{}} }

// Len returns the number of owners.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.all)
}

// Last returns the wal_seq of the event that added the last owner, 0 if there is none.
func (s *Set) Last() uint64 {
	if s == nil {
		return 0
	}
	return s.last
}

// Has reports whether an owner was erased.
func (s *Set) Has(namespace, id string) bool {
	if s.Len() == 0 {
		return false
	}
	_, has := s.all[s.HashOf(namespace, id)]
	return has
}

// HashOf returns the hash of an owner in a set that has a key.
func (s *Set) HashOf(namespace, id string) (out Hash) { return hashOf(s.key, namespace, id) }

func hashOf(key []byte, namespace, id string) (out Hash) {
	mac := hmac.New(sha256.New, key)
	mac.Write(binary.AppendUvarint(nil, uint64(len(namespace))))
	mac.Write([]byte(namespace))
	mac.Write([]byte(id))
	copy(out[:], mac.Sum(nil))
	return out
}

// Payload returns the payload of the event that adds an owner. It does not change the set. If the set is empty, its
// key will be the first KeySize bytes of newKey; otherwise newKey is not used.
func (s *Set) Payload(newKey []byte, namespace, id string) *structpb.Struct {
	key := s.key
	if key == nil {
		key = newKey[:KeySize]
	}
	owner := hashOf(key, namespace, id)
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"key":   structpb.NewStringValue(base64.StdEncoding.EncodeToString(key)),
		"owner": structpb.NewStringValue(base64.StdEncoding.EncodeToString(owner[:])),
	}}
}

// Add adds the owner whose hash is in the payload of the event at a wal_seq, and returns the hash. Events must be
// added in the order of their wal_seqs. If the payload is malformed, or has another key than the set, Add returns an
// error and the set is unchanged.
func (s *Set) Add(walSeq uint64, payload *structpb.Struct) (owner Hash, err error) {
	key, err := base64.StdEncoding.DecodeString(payload.GetFields()["key"].GetStringValue())
	if err != nil || len(key) != KeySize || s.key != nil && !slices.Equal(s.key, key) {
		return owner, errors.New("erasure: an owner with another key")
	}
	hash, err := base64.StdEncoding.DecodeString(payload.GetFields()["owner"].GetStringValue())
	if err != nil || len(hash) != len(owner) {
		return owner, errors.New("erasure: an event without the hash of an owner")
	}
	copy(owner[:], hash)
	s.key, s.last = key, walSeq
	s.all[owner] = struct{}{}
	return owner, nil
}

// Encode returns the set as a snapshot has it, nil if it is empty.
func (s *Set) Encode() []byte {
	if s.Len() == 0 {
		return nil
	}
	out := append(binary.BigEndian.AppendUint64(nil, s.last), s.key...)
	for _, h := range slices.SortedFunc(maps.Keys(s.all), func(a, b Hash) int { return slices.Compare(a[:], b[:]) }) {
		out = append(out, h[:]...)
	}
	return out
}

// Restore puts what Encode returned into an empty set.
func (s *Set) Restore(b []byte) error {
	const head = 8 + KeySize
	if len(b) == 0 {
		return nil
	}
	if len(b) < head || (len(b)-head)%len(Hash{}) != 0 {
		return errors.New("erasure: the set of a snapshot is cut")
	}
	s.last, s.key = binary.BigEndian.Uint64(b), slices.Clone(b[8:head])
	for h := range slices.Chunk(b[head:], len(Hash{})) {
		s.all[Hash(h)] = struct{}{}
	}
	return nil
}

// Clone returns a set with what s has now.
func (s *Set) Clone() *Set { return &Set{key: s.key, all: maps.Clone(s.all), last: s.last} }

// HasOwnerOf reports whether a line of the journal is an event of one of the owners.
func (s *Set) HasOwnerOf(line []byte) bool {
	namespace, agentID := event.OwnerOf(line)
	return agentID != "" && s.Has(namespace, agentID)
}
