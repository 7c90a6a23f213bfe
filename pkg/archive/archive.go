package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"maps"
	"slices"
	"time"
)

// Format is the version of the format that this package writes. Read refuses any other one.
const Format = 1

// MaxMessage bounds the body of a message, in bytes. The broker has the same bound.
const MaxMessage = 8 << 20

// The errors of Read.
var (
	// ErrDamaged means that the file is a backup, but was changed after it was written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrCut means that the end of the file is missing.
	ErrCut = errors.New("the backup is cut short")
	// ErrForeign means that the file is not a backup, or one of another format.
	ErrForeign = errors.New("this is no backup of Quartet")
)

// Manifest is the first entry of an archive.
type Manifest struct {
	Format int `json:"format"`
	// Version is the version of the program that wrote the archive.
	Version string `json:"version"`
	// CutAt is the time of the archive's state, by the broker's clock: the archive contains
	// the messages that were stored until then, and no later ones.
	CutAt time.Time `json:"cut_at"`
	// Key is the id of the installation's key that was active when the archive was made. An archive of
	// a version that did not seal archives has a fingerprint of the key instead. The key itself is not in
	// the archive.
	Key string `json:"key,omitempty"`
	// Streams are the names of the streams, in the order of the archive.
	Streams []string `json:"streams"`
	// Partitions has, by plane, how many partitions the plane has. Optional.
	Partitions map[string]int `json:"partitions,omitempty"`
}

// Message is one message of a stream.
type Message struct {
	Stream, Subject string
	// Seq is the sequence of the message in its stream. Sequences increase, with gaps.
	Seq    uint64
	Header map[string][]string
	Data   []byte
}

// Sum has the counts and the hash of the messages of one stream. Bytes are those of the bodies.
type Sum struct {
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
	SHA256   string `json:"sha256"`
}

// Totals is the last entry of an archive. It has the counts and hashes of the messages and files before it.
type Totals struct {
	Streams map[string]Sum `json:"streams"`
	Files   uint64         `json:"files"`
	// FilesSHA256 is the hash of the names and contents of all files, in order.
	FilesSHA256 string `json:"files_sha256"`
}

// Digest computes the Sum of one stream. Create it with NewDigest.
type Digest struct {
	sum Sum
	h   hash.Hash
}

// NewDigest returns the digest of no messages.
func NewDigest() *Digest { return &Digest{h: sha256.New()} }

// Add adds the next message. The hash does not include the name of the message's stream.
func (d *Digest) Add(m Message) {
	if d.sum.Messages == 0 {
		d.sum.First = m.Seq
	}
	d.sum.Messages++
	d.sum.Bytes += uint64(len(m.Data))
	d.sum.Last = m.Seq
	d.number(m.Seq)
	d.text(m.Subject)
	for _, k := range slices.Sorted(maps.Keys(m.Header)) {
		d.text(k)
		d.number(uint64(len(m.Header[k])))
		for _, v := range m.Header[k] {
			d.text(v)
		}
	}
	d.number(uint64(len(m.Data)))
	d.h.Write(m.Data)
}

// Last returns the sequence of the message that was added last, or 0 if there is none.
func (d *Digest) Last() uint64 { return d.sum.Last }

// Sum returns the sum of the messages added so far.
func (d *Digest) Sum() Sum {
	s := d.sum
	s.SHA256 = hex.EncodeToString(d.h.Sum(nil))
	return s
}

func (d *Digest) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	d.h.Write(b[:])
}

func (d *Digest) text(s string) {
	d.number(uint64(len(s)))
	d.h.Write([]byte(s))
}
