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

// Format is the version of the format. A reader refuses what it does not know.
const Format = 1

// MaxMessage bounds the body of a message, as the broker does.
const MaxMessage = 8 << 20

// The refusals of Read.
var (
	// ErrDamaged: it is a backup, but not as it was written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrCut: its end is missing.
	ErrCut = errors.New("the backup is cut short")
	// ErrForeign: it is no backup, or one of another format.
	ErrForeign = errors.New("this is no backup of Quartet")
)

// Manifest is the beginning of an archive.
type Manifest struct {
	Format int `json:"format"`
	// Version of the program that wrote it.
	Version string `json:"version"`
	// CutAt: what was on disk at this time of the broker is in it, and nothing later.
	CutAt time.Time `json:"cut_at"`
	// Key is a fingerprint of the installation's key, which is not in it.
	Key string `json:"key,omitempty"`
	// Streams are the names of the streams, in the order in which they come.
	Streams []string `json:"streams"`
	// Partitions is into how many each plane is split, where it is.
	Partitions map[string]int `json:"partitions,omitempty"`
}

// Message is one message of a stream.
type Message struct {
	Stream, Subject string
	// Seq is its sequence in the stream; sequences grow.
	Seq    uint64
	Header map[string][]string
	Data   []byte
}

// Sum is what there is of one stream.
type Sum struct {
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
	SHA256   string `json:"sha256"`
}

// Totals are the end of an archive.
type Totals struct {
	Streams map[string]Sum `json:"streams"`
	Files   uint64         `json:"files"`
	// FilesSHA256 is over the names and contents of all files, in order.
	FilesSHA256 string `json:"files_sha256"`
}

// Digest sums up the messages of one stream. The zero value is not usable; see
// NewDigest.
type Digest struct {
	sum Sum
	h   hash.Hash
}

// NewDigest is a digest of no messages.
func NewDigest() *Digest { return &Digest{h: sha256.New()} }

// Add adds the next message. Its stream's name is not in the sum.
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

// Last is the sequence of the last message, 0 before the first.
func (d *Digest) Last() uint64 { return d.sum.Last }

// Sum is what was added so far.
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
