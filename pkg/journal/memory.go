package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sort"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

type memoryKey [16]byte

// keyOf hashes the scope of a request id (SPEC X2). Parts are length-prefixed,
// so that no two scopes have one spelling.
func keyOf(namespace, principal, method, requestID string) memoryKey {
	var space [256]byte
	b := space[:0]
	for _, s := range [...]string{namespace, principal, method, requestID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return memoryKey(sum[:16])
}

// hashArgs hashes a request without its request_id, which is cut out of the
// encoded form: cheaper than a copy of the message, and the original stays.
func hashArgs(m proto.Message) (uint64, error) {
	if m == nil {
		return 0, nil
	}
	var skip protowire.Number
	if fd := m.ProtoReflect().Descriptor().Fields().ByName("request_id"); fd != nil {
		skip = fd.Number()
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return 0, err
	}
	h := sha256.New()
	for rest := wire; len(rest) > 0; {
		num, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		if num != skip {
			h.Write(rest[:n])
		}
		rest = rest[n:]
	}
	var sum [sha256.Size]byte
	return binary.BigEndian.Uint64(h.Sum(sum[:0])), nil
}

func hashText(h uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], h)
	return hex.EncodeToString(raw[:])
}

func parseHash(s string) (uint64, bool) {
	var raw [8]byte
	if len(s) != 16 {
		return 0, false
	}
	if _, err := hex.Decode(raw[:], []byte(s)); err != nil {
		return 0, false
	}
	return binary.BigEndian.Uint64(raw[:]), true
}

// remembered is where the first answer to a request is.
type remembered struct {
	first uint64 // wal_seq
	args  uint64
	count uint32
	unix  uint32
}

type aged struct {
	key   memoryKey
	first uint64
}

// memory is the request memory (SPEC X2): bounded by a term and a number, the
// oldest out first. Only the loop uses it.
type memory struct {
	entries map[memoryKey]remembered
	ages    []aged // oldest first, from head on
	head    int
	limit   int
}

func newMemory(limit int) *memory {
	return &memory{entries: make(map[memoryKey]remembered), limit: limit}
}

func (m *memory) lookup(k memoryKey, now time.Time) (remembered, bool) {
	r, ok := m.entries[k]
	if !ok || now.Unix()-int64(r.unix) > int64(memoryTerm/time.Second) {
		return remembered{}, false
	}
	return r, true
}

func (m *memory) add(k memoryKey, r remembered) {
	m.entries[k] = r
	m.ages = append(m.ages, aged{k, r.first})
	for m.head < len(m.ages) {
		old := m.ages[m.head]
		cur, ok := m.entries[old.key]
		stale := !ok || cur.first != old.first
		if !stale && len(m.entries) <= m.limit && int64(r.unix)-int64(cur.unix) <= int64(memoryTerm/time.Second) {
			break
		}
		if !stale {
			delete(m.entries, old.key)
		}
		m.head++
	}
	if m.head > 1024 && m.head > len(m.ages)/2 {
		m.ages = append([]aged(nil), m.ages[m.head:]...)
		m.head = 0
	}
}

// extend counts one more event of a request during replay.
func (m *memory) extend(k memoryKey) {
	if r, ok := m.entries[k]; ok {
		r.count++
		m.entries[k] = r
	}
}

// frameRef is one entry of the frame index: where in the log a wal_seq is.
type frameRef struct {
	first uint64 // wal_seq of its first event
	seq   uint64 // in the log
}

// frameOf finds the frame that holds a wal_seq; refs are in order.
func frameOf(refs []frameRef, walSeq uint64) (uint64, bool) {
	i := sort.Search(len(refs), func(i int) bool { return refs[i].first > walSeq })
	if i == 0 {
		return 0, false
	}
	return refs[i-1].seq, true
}
