package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
)

// A cursor is a position in every journal at once, so that a stream which is
// resumed from it has neither gap nor duplicate, whatever interleaving of the
// journals the client had seen (SPEC X10). It is opaque to clients:
//
//	base64url( version, {plane, partitions, {sequence, hash, line}…}…, CRC-32 )
//
// The checksum detects truncation and mistyping, not forgery: a cursor gives access to
// nothing that its bearer's credential does not.
const (
	cursorVersion   = 2
	cursorMaxText   = 32 << 10
	cursorMaxParts  = 1024
	cursorMaxLine   = 1 << 24
	cursorMaxPlanes = 16
)

// planeNumbers are the numbers of the planes in cursors. A number is never reused.
var planeNumbers = map[string]byte{"agent": 1, "work": 2, "task": 3, "waiting": 4, "board": 5}

// position is a place in a journal: everything before it was sent or did not pass the filter. It has the number and
// hash of the last frame that is completely before it, so that a loss of frames just there is noticed.
type position struct {
	seq  uint64          // of the frame; 0 before the first one
	sum  [cursorSum]byte // how its hash begins
	line uint64          // number of lines before the place in the frame after it
}

// cursorSum is how many bytes of a frame's hash are in a cursor.
const cursorSum = 8

// positionAt returns the position behind a frame.
func positionAt(end framelog.End) position {
	p := position{seq: end.Seq}
	copy(p.sum[:], end.Hash[:])
	return p
}

// track has the positions in one plane's partitions, in order of partition. plane is from
// planeNumbers.
type track struct {
	plane byte
	parts []position
}

// vector is a decoded cursor: a track for each plane, in order of their numbers.
type vector []track

// encode returns the cursor as clients get it.
func (v vector) encode() string {
	b := make([]byte, 1, 64)
	b[0] = cursorVersion
	for _, t := range v {
		b = append(b, t.plane)
		b = binary.AppendUvarint(b, uint64(len(t.parts)))
		for _, p := range t.parts {
			b = binary.AppendUvarint(b, p.seq)
			if p.seq > 0 {
				b = append(b, p.sum[:]...)
			}
			b = binary.AppendUvarint(b, p.line)
		}
	}
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor returns the positions of a cursor, or CURSOR_INVALID. It does not check that
// the journals have them.
func decodeCursor(text string) (vector, error) {
	if len(text) > cursorMaxText {
		return nil, badCursor("is too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 5 || b[0] != cursorVersion {
		return nil, badCursor("was not made by this server")
	}
	sum := len(b) - 4
	if binary.BigEndian.Uint32(b[sum:]) != crc32.ChecksumIEEE(b[:sum]) {
		return nil, badCursor("is damaged")
	}
	var v vector
	for rest := b[1:sum]; len(rest) > 0; {
		var t track
		var ok bool
		if t, rest, ok = decodeTrack(rest); !ok || len(v) == cursorMaxPlanes || len(v) > 0 &&
			v[len(v)-1].plane >= t.plane {
			return nil, badCursor("is damaged")
		}
		v = append(v, t)
	}
	return v, nil
}

// decodeTrack reads a track from the beginning of b, which must not be empty, and returns
// what follows it. ok is false if b is malformed.
func decodeTrack(b []byte) (t track, rest []byte, ok bool) {
	t.plane = b[0]
	n, rest, ok := uvarint(b[1:])
	if !ok || n == 0 || n > cursorMaxParts || n > uint64(len(rest)) {
		return t, nil, false
	}
	t.parts = make([]position, n)
	for i := range t.parts {
		p := &t.parts[i]
		if p.seq, rest, ok = uvarint(rest); !ok || p.seq > 0 && len(rest) < cursorSum {
			return t, nil, false
		}
		if p.seq > 0 {
			rest = rest[copy(p.sum[:], rest):]
		}
		if p.line, rest, ok = uvarint(rest); !ok || p.line > cursorMaxLine {
			return t, nil, false
		}
	}
	return t, rest, true
}

// uvarint reads a number from the beginning of b and returns what follows it. ok is false for
// encodings that are not the shortest, so that a position has one cursor.
func uvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 || !bytes.Equal(binary.AppendUvarint(nil, v), b[:n]) {
		return 0, nil, false
	}
	return v, b[n:], true
}

// badCursor returns CURSOR_INVALID. what says what is wrong with the cursor.
func badCursor(what string) error {
	return fault.CursorInvalid.New("the cursor "+what+"; use one that an event brought, or none", "field", "cursor").
		WithField("cursor", "must be the cursor of an event or a heartbeat")
}

// foreignCursor returns CURSOR_OUT_OF_RANGE for a well-formed cursor that is outside of the
// journals. Journals are complete, so it belongs to another installation.
func foreignCursor(what string) error {
	return fault.CursorOutOfRange.New("the cursor "+what+"; read the state afresh and watch from now", "field",
		"cursor").
		WithField("cursor", "must be a cursor of this installation")
}
