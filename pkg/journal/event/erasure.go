package event

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"
)

// ErasureKeySize is the number of bytes of a key.
const ErasureKeySize = 16

// OwnerHash names an owner that was erased. The key of the hashes is in the journal beside them: whoever has the
// journal can find out whether a name was erased, which keeps it from being used again, but reads no name from it.
type OwnerHash [16]byte

// ErasedSet is the set of the owners of a partition that were erased. A nil ErasedSet is empty. It is not safe for
// concurrent use.
type ErasedSet struct {
	key    []byte // nil as long as the set is empty
	owners map[OwnerHash]struct{}
	last   uint64
}

// NewErasedSet returns an empty set.
func NewErasedSet() *ErasedSet { return &ErasedSet{owners: map[OwnerHash]struct{}{}} }

// Len returns the number of owners.
func (s *ErasedSet) Len() int {
	if s == nil {
		return 0
	}
	return len(s.owners)
}

// Last returns the wal_seq of the event that added the last owner, 0 if there is none.
func (s *ErasedSet) Last() uint64 {
	if s == nil {
		return 0
	}
	return s.last
}

// Has reports whether an owner was erased.
func (s *ErasedSet) Has(namespace, id string) bool {
	if s.Len() == 0 {
		return false
	}
	_, ok := s.owners[s.HashOf(namespace, id)]
	return ok
}

// HashOf returns the hash of an owner with the key of the set, which must not be empty.
func (s *ErasedSet) HashOf(namespace, id string) (out OwnerHash) { return hashOf(s.key, namespace, id) }

// hashOf returns the hash of an owner with a key.
func hashOf(key []byte, namespace, id string) (out OwnerHash) {
	mac := hmac.New(sha256.New, key)
	mac.Write(binary.AppendUvarint(nil, uint64(len(namespace))))
	mac.Write([]byte(namespace))
	mac.Write([]byte(id))
	copy(out[:], mac.Sum(nil))
	return out
}

// Payload returns the payload of the event that adds an owner. It does not change the set. If the set is empty, its
// key will be the first ErasureKeySize bytes of newKey; otherwise newKey is not used.
func (s *ErasedSet) Payload(newKey []byte, namespace, id string) *structpb.Struct {
	key := s.key
	if key == nil {
		key = newKey[:ErasureKeySize]
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
func (s *ErasedSet) Add(walSeq uint64, payload *structpb.Struct) (owner OwnerHash, err error) {
	key, err := base64.StdEncoding.DecodeString(payload.GetFields()["key"].GetStringValue())
	if err != nil || len(key) != ErasureKeySize || s.key != nil && !slices.Equal(s.key, key) {
		return owner, errors.New("erasure: an owner with another key")
	}
	hash, err := base64.StdEncoding.DecodeString(payload.GetFields()["owner"].GetStringValue())
	if err != nil || len(hash) != len(owner) {
		return owner, errors.New("erasure: an event without the hash of an owner")
	}
	copy(owner[:], hash)
	s.key, s.last = key, walSeq
	s.owners[owner] = struct{}{}
	return owner, nil
}

// Encode returns the set as a snapshot has it, nil if it is empty.
func (s *ErasedSet) Encode() []byte {
	if s.Len() == 0 {
		return nil
	}
	out := append(binary.BigEndian.AppendUint64(nil, s.last), s.key...)
	compare := func(a, b OwnerHash) int { return slices.Compare(a[:], b[:]) }
	for _, h := range slices.SortedFunc(maps.Keys(s.owners), compare) {
		out = append(out, h[:]...)
	}
	return out
}

// Restore puts what Encode returned into an empty set.
func (s *ErasedSet) Restore(b []byte) error {
	const head = 8 + ErasureKeySize
	if len(b) == 0 {
		return nil
	}
	if len(b) < head || (len(b)-head)%len(OwnerHash{}) != 0 {
		return errors.New("erasure: the set of a snapshot is cut")
	}
	s.last, s.key = binary.BigEndian.Uint64(b), slices.Clone(b[8:head])
	for h := range slices.Chunk(b[head:], len(OwnerHash{})) {
		s.owners[OwnerHash(h)] = struct{}{}
	}
	return nil
}

// Clone returns a set with what s has now.
func (s *ErasedSet) Clone() *ErasedSet {
	return &ErasedSet{key: s.key, owners: maps.Clone(s.owners), last: s.last}
}

// HasOwnerOf reports whether a line of the journal is an event of one of the owners.
func (s *ErasedSet) HasOwnerOf(line []byte) bool {
	namespace, agentID := OwnerOf(line)
	return agentID != "" && s.Has(namespace, agentID)
}
