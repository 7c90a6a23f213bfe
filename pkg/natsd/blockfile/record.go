package blockfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/minio/highwayhash"
)

// The layout of a record, in little endian:
//
//	length(4) sequence(8) time(8) subject length(2) subject [header length(4) header] body checksum(8)
//
// The highest bit of the length says that there is a header. The two highest bits of the sequence mark
// records that are no message: of a message that was erased or skipped, and of the deletion of another one.
const (
	prefixBytes   = 22
	checksumBytes = 8
	headerBit     = 1 << 31
	erasedBit     = 1 << 63
	deletionBit   = 1 << 62
	// maxRecord is the length above which a server takes a record for damaged.
	maxRecord = 32 << 20
)

// headerEnd ends a header.
var headerEnd = []byte("\r\n\r\n")

// Record is one record of a block. Its bytes point into the block.
type Record struct {
	Seq     uint64
	At      int64 // nanoseconds of Unix time
	Subject string
	Header  []byte // as on the wire; nil for none
	Body    []byte
	// Erased says that no message has this sequence number any more. Deletion says that the record is no message, but
	// records that the message with this sequence number was removed.
	Erased, Deletion bool
}

// Message reports whether the record is a message.
func (r *Record) Message() bool { return !r.Erased && !r.Deletion && r.Seq > 0 }

// Sum computes the checksums of the records of one block. It is not safe for concurrent use.
type Sum struct {
	hash hash.Hash64
	out  [checksumBytes]byte
}

// NewSum returns the Sum for a block, given by the name of its stream and its index, which the checksums depend on.
func NewSum(stream string, index int) *Sum {
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, index))
	h, err := highwayhash.New64(key[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	return &Sum{hash: h}
}

// ConfigSum returns the checksum that a server stores beside the configuration of a stream. config is the content of
// the configuration's file.
func ConfigSum(stream string, config []byte) []byte {
	key := sha256.Sum256([]byte(stream))
	h, err := highwayhash.New64(key[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	_, _ = h.Write(config) // a hash never fails
	return h.Sum(nil)
}

// of returns the checksum of a record, given by its parts: fixed are its bytes from the sequence to the length of the
// subject. The result is valid until the next call.
func (s *Sum) of(fixed, subject, header, body []byte) []byte {
	s.hash.Reset()
	for _, part := range [...][]byte{fixed, subject, header, body} {
		_, _ = s.hash.Write(part) // a hash never fails
	}
	return s.hash.Sum(s.out[:0])
}

// The reasons why a record cannot be read.
var (
	errShort    = errors.New("the block ends within a record")
	errLengths  = errors.New("the lengths in a record contradict each other")
	errChecksum = errors.New("the checksum of a record is wrong")
)

// parse reads the record at the beginning of b and returns it and its length in bytes. The record's bytes point
// into b.
func (s *Sum) parse(b []byte) (r Record, n int, err error) {
	if len(b) < prefixBytes+checksumBytes {
		return r, 0, errShort
	}
	length := binary.LittleEndian.Uint32(b)
	header := length&headerBit != 0
	n = int(length &^ headerBit)
	subject := int(binary.LittleEndian.Uint16(b[20:]))
	before := prefixBytes + subject
	if header {
		before += 4
	}
	switch {
	case n > maxRecord, n < before+checksumBytes:
		return r, 0, errLengths
	case n > len(b):
		return r, 0, errShort
	}
	end := n - checksumBytes
	rest := b[before:end]
	name := b[prefixBytes : prefixBytes+subject]
	if header {
		long := binary.LittleEndian.Uint32(b[before-4:])
		// The checksum does not cover where the header ends, so that a server does not notice if that is changed.
		if uint64(long) > uint64(len(rest)) || bytes.Index(rest, headerEnd)+len(headerEnd) != int(long) {
			return r, 0, errLengths
		}
		r.Header, r.Body = rest[:long:long], rest[long:]
	} else {
		r.Body = rest
	}
	if !bytes.Equal(s.of(b[4:20], name, nil, rest), b[end:n]) {
		return r, 0, errChecksum
	}
	seq := binary.LittleEndian.Uint64(b[4:])
	r.Erased, r.Deletion = seq&erasedBit != 0, seq&deletionBit != 0
	r.Seq = seq &^ (erasedBit | deletionBit)
	r.At = int64(binary.LittleEndian.Uint64(b[12:]))
	r.Subject = string(name)
	return r, n, nil
}

// Append appends a record to a block.
func (s *Sum) Append(block []byte, r Record) []byte {
	length := prefixBytes + len(r.Subject) + len(r.Header) + len(r.Body) + checksumBytes
	if r.Header != nil {
		length = (length + 4) | headerBit
	}
	seq := r.Seq
	if r.Erased {
		seq |= erasedBit
	}
	if r.Deletion {
		seq |= deletionBit
	}
	at := len(block)
	block = binary.LittleEndian.AppendUint32(block, uint32(length))
	block = binary.LittleEndian.AppendUint64(block, seq)
	block = binary.LittleEndian.AppendUint64(block, uint64(r.At))
	block = binary.LittleEndian.AppendUint16(block, uint16(len(r.Subject)))
	block = append(block, r.Subject...)
	if r.Header != nil {
		block = binary.LittleEndian.AppendUint32(block, uint32(len(r.Header)))
		block = append(block, r.Header...)
	}
	block = append(block, r.Body...)
	return append(block, s.of(block[at+4:at+20], []byte(r.Subject), r.Header, r.Body)...)
}
