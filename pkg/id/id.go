package id

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// Length is the number of characters after the prefix.
const Length = 26

// alphabet is Crockford's base 32 in lower case: no i, l, o, u.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// Source generates ids. Implementations are safe for concurrent use and never return the same id
// twice.
type Source interface {
	// New returns prefix followed by 26 characters. The ids of one Source sort in the order
	// in which they were generated.
	New(prefix string) string
}

type ulids struct {
	mu      sync.Mutex
	now     func() time.Time
	entropy *ulid.MonotonicEntropy
	last    uint64 // milliseconds since 1970 in the last id
}

// New returns a Source of ULIDs. The ids of this Source increase also when the wall clock steps back.
func New() Source { return newULIDs(time.Now) }

func newULIDs(now func() time.Time) *ulids {
	// The buffer avoids a system call for each id.
	return &ulids{now: now, entropy: ulid.Monotonic(bufio.NewReaderSize(rand.Reader, 1024), 0)}
}

func (u *ulids) New(prefix string) string {
	ms := ulid.Timestamp(u.now())
	var v ulid.ULID
	u.mu.Lock()
	u.last = max(u.last, ms)
	for {
		_ = v.SetTime(u.last)
		// The only error is an overflow of the 80 random bits within a millisecond. The
		// next millisecond starts with new random bits.
		if u.entropy.MonotonicRead(u.last, v[6:]) == nil {
			break
		}
		u.last++
	}
	u.mu.Unlock()
	return encode(prefix, v)
}

// encode writes 128 bits as 26 characters, most significant first.
func encode(prefix string, v [16]byte) string {
	buf := make([]byte, len(prefix)+Length)
	copy(buf, prefix)
	hi, lo := binary.BigEndian.Uint64(v[:8]), binary.BigEndian.Uint64(v[8:])
	for i := len(buf) - 1; i >= len(prefix); i-- {
		buf[i] = alphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(buf)
}

// Sequence is a Source for tests, whose ids have the numbers 1, 2, 3 ..., counted over all prefixes.
type Sequence struct {
	mu sync.Mutex
	n  uint64
}

// New returns the next number, padded with zeros to a valid id.
func (s *Sequence) New(prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	var v [16]byte
	binary.BigEndian.PutUint64(v[8:], s.n)
	return encode(prefix, v)
}

// Derived returns an id that is a function of parts. Parts are hashed with their lengths, so
// ("ab", "c") and ("a", "bc") differ.
func Derived(prefix string, parts ...string) string {
	var size [binary.MaxVarintLen64]byte
	buf := make([]byte, 0, 128)
	for _, p := range parts {
		n := binary.PutUvarint(size[:], uint64(len(p)))
		buf = append(buf, size[:n]...)
		buf = append(buf, p...)
	}
	sum := sha256.Sum256(buf)
	return encode(prefix, [16]byte(sum[:16]))
}

// Hash returns the SHA-256, in hex, of a secret. Records have the hash in place of the secret. No salt or slow
// hash is necessary, because secrets have 256 random bits.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
