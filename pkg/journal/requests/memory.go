// Package requests remembers which requests a partition has executed, so that a repeated
// request returns its first outcome (SPEC X2).
package requests

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Term is how long a request is remembered.
const Term = 24 * time.Hour

// Key identifies a request: the hash of its scope and its request id.
type Key [16]byte

// CallerOf returns the name within which a caller's request ids are unique, beside its namespace: its
// principal, with the id of its API key if it has one, since several keys may have the same name. For an
// agent it is the principal alone, so that all keys and runs of an agent share their request ids.
func CallerOf(principal, agentID, keyID string) string {
	if keyID == "" || agentID != "" {
		return principal
	}
	return principal + "\x00" + keyID
}

// KeyOf returns the key of a request id in its scope. The parts are length-prefixed before
// they are hashed, so that different parts never give the same input.
func KeyOf(namespace, caller, method, requestID string) Key {
	var space [256]byte
	b := space[:0]
	for _, s := range [...]string{namespace, caller, method, requestID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// HashArgs returns a hash of a request without its field request_id; nil has the hash 0. The field
// is left out of the encoded form, which is cheaper than a copy of the message. m is not changed.
func HashArgs(m proto.Message) (uint64, error) {
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

// FormatHash returns a hash as the 16 hexadecimal digits that are written to the journal.
func FormatHash(h uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], h)
	return hex.EncodeToString(raw[:])
}

// ParseHash reads what FormatHash returned. It returns false unless s is 16 hexadecimal digits.
func ParseHash(s string) (uint64, bool) {
	var raw [8]byte
	if len(s) != 16 {
		return 0, false
	}
	if _, err := hex.Decode(raw[:], []byte(s)); err != nil {
		return 0, false
	}
	return binary.BigEndian.Uint64(raw[:]), true
}

// Entry says where the events of the first execution of a request are.
type Entry struct {
	First uint64 // wal_seq of the first event
	Args  uint64 // HashArgs of the request
	Count uint32 // number of events, which follow one another
	Unix  uint32 // time of execution in seconds
}

// Next returns the wal_seq that follows the request's last event.
func (e Entry) Next() uint64 { return e.First + uint64(e.Count) }

// expired reports whether e is older than Term at the time unix.
func (e Entry) expired(unix int64) bool { return unix-int64(e.Unix) > int64(Term/time.Second) }

// addition is one call of Add. It is obsolete when its key was added again, or is forgotten.
type addition struct {
	key   Key
	entry Entry
}

// Pool bounds how many entries the memories of a process have together (SPEC X2.1). It is safe for
// concurrent use.
type Pool struct {
	limit, floor int64
	memories     atomic.Int64
	entries      atomic.Int64
}

// floorOf is the divisor for the part of its pool's entries that each memory may have, whatever the others
// have: so the requests of a partition that is rarely used are remembered beside those of a busy one.
const floorOf = 256

// NewPool returns a pool of at most limit entries.
func NewPool(limit int) *Pool { return &Pool{limit: int64(limit), floor: int64(limit) / floorOf} }

// New returns an empty memory, which forgets its oldest entry when the pool is full and it has more than
// its part. Release must be called when it is not used any more.
func (p *Pool) New() *Memory {
	p.memories.Add(1)
	return &Memory{numbers: make(map[Key]uint32), pool: p}
}

// full reports whether a memory with n entries has to forget one. What the floors of all memories may need
// is not given to one of them, so the limit holds.
func (p *Pool) full(n int) bool {
	return int64(n) > p.floor && p.entries.Load() > p.limit-p.memories.Load()*p.floor
}

// Memory maps requests to entries. It forgets an entry that is older than Term, and the oldest one
// when its pool is full. It is not safe for concurrent use.
type Memory struct {
	// numbers has the number of the last addition of each key that is remembered. The lowest 32 bits tell the
	// additions of order apart, and take less memory.
	numbers map[Key]uint32
	order   []addition // oldest first; those before head are already dropped
	head    int
	cut     int // additions that order does not have any more
	pool    *Pool
}

// Release forgets everything and leaves the pool. The memory must not be used afterwards.
func (m *Memory) Release() {
	m.pool.entries.Add(-int64(len(m.numbers)))
	m.pool.memories.Add(-1)
	m.numbers, m.order = nil, nil
}

// entry returns the entry of a key, nil if it is not remembered. It is valid until the next Add.
func (m *Memory) entry(k Key) *Entry {
	n, ok := m.numbers[k]
	if !ok {
		return nil
	}
	return &m.order[n-uint32(m.cut)].entry // right also where numbers have wrapped around
}

// isLast reports whether the addition at a place in order is the last one of a key that is remembered.
func (m *Memory) isLast(at int) bool {
	n, ok := m.numbers[m.order[at].key]
	return ok && n == uint32(m.cut+at)
}

// Lookup returns the entry of a request that is not older than Term at now.
func (m *Memory) Lookup(k Key, now time.Time) (Entry, bool) {
	e := m.entry(k)
	if e == nil || e.expired(now.Unix()) {
		return Entry{}, false
	}
	return *e, true
}

// Add stores an entry, replacing one of the same key, and drops those that are too old at the
// entry's time or too many. Entries must be added in the order of their events.
func (m *Memory) Add(k Key, e Entry) {
	if _, replaced := m.numbers[k]; !replaced {
		m.pool.entries.Add(1)
	}
	m.numbers[k] = uint32(m.Additions())
	m.order = append(m.order, addition{k, e})

	// Drop additions from the oldest on: obsolete ones in any case, others while they are too old or too many.
	for m.head < len(m.order) {
		oldest, last := &m.order[m.head], m.isLast(m.head)
		if last && !m.pool.full(len(m.numbers)) && !oldest.entry.expired(int64(e.Unix)) {
			break
		}
		if last {
			delete(m.numbers, oldest.key)
			m.pool.entries.Add(-1)
		}
		m.head++
	}

	// Give back the memory of dropped additions, once they are more than half.
	if m.head > 1024 && m.head > len(m.order)/2 {
		m.order = append([]addition(nil), m.order[m.head:]...)
		m.cut += m.head
		m.head = 0
	}
}

// Additions returns how often Add was called.
func (m *Memory) Additions() int { return m.cut + len(m.order) }

// Since calls fn, oldest first, with the entries that were added after the first n additions and are still
// remembered.
func (m *Memory) Since(n int, fn func(Key, Entry)) {
	for i := max(n-m.cut, m.head); i < len(m.order); i++ {
		if m.isLast(i) {
			fn(m.order[i].key, m.order[i].entry)
		}
	}
}

// Extend counts the event at walSeq as a further event of the request k, and returns true, if k is
// remembered, its last event is at walSeq-1, and args is the hash of its arguments. Otherwise it changes
// nothing and returns false. Replay uses it, which reads the events of a request one by one.
func (m *Memory) Extend(k Key, walSeq, args uint64) bool {
	e := m.entry(k)
	if e == nil || e.Next() != walSeq || e.Args != args {
		return false
	}
	e.Count++
	return true
}
