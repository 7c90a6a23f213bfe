package framelog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rest is what is kept of the hash of a line in a frame of which lines were erased, so that the frame can still be
// verified. The frame has no salt any more: with it, a guess of what was erased could be confirmed.
type Rest struct {
	Erased bool
	Hash   Hash // of a line that was erased
	Salt   Salt // of a line that was not: the line's own, from which that of no other line can be derived
}

// The mark that is in place of a line that was erased. Its wal_seq is between them.
const (
	markBegin = `{"wal_seq":`
	markEnd   = `,"event_type":"line_erased","payload":{}}` + "\n"
)

// Mark returns the line that is in place of the line with a wal_seq that was erased.
func Mark(walSeq uint64) []byte {
	return append(strconv.AppendUint([]byte(markBegin), walSeq, 10), markEnd...)
}

// isMark reports whether a line is a mark for walSeq; for any number if walSeq is 0.
func isMark(line []byte, walSeq uint64) bool {
	number, begins := bytes.CutPrefix(line, []byte(markBegin))
	number, ends := bytes.CutSuffix(number, []byte(markEnd))
	n, err := strconv.ParseUint(string(number), 10, 64)
	return begins && ends && err == nil && (walSeq == 0 || n == walSeq) && bytes.Equal(line, Mark(n))
}

// Erase returns f with a Mark in place of each line for which erase returns true, and the number of these lines.
// first is the wal_seq of the first line of f. The hash of the frame stays as it is. f itself is not changed; it is
// returned if there is nothing to erase. Lines that were erased before are not passed to erase, and not counted.
func (f Frame) Erase(first uint64, erase func(line []byte) bool) (out Frame, erased int) {
	// Determine the lines to erase.
	var gone []int
	n := 0
	for line := range bytes.Lines(f.Body) {
		if (n >= len(f.Rests) || !f.Rests[n].Erased) && erase(line) {
			gone = append(gone, n)
		}
		n++
	}
	if len(gone) == 0 {
		return f, 0
	}

	// Write a mark in place of each, and keep the hash of what was there, or for the others the salt of their own.
	rests, body := make([]Rest, 0, n), make([]byte, 0, len(f.Body))
	for line := range bytes.Lines(f.Body) {
		i := len(rests)
		var r Rest
		if f.Rests != nil {
			r = f.Rests[i]
		} else {
			r.Salt = lineSalt(f.Link.Salt, uint32(i))
		}
		if len(gone) > 0 && gone[0] == i {
			gone, erased = gone[1:], erased+1
			r = Rest{Erased: true, Hash: saltedHash(r.Salt, line)}
			line = Mark(first + uint64(i))
		}
		rests, body = append(rests, r), append(body, line...)
	}
	f.Body, f.Rests, f.Link.Salt = body, rests, Salt{}
	return f, erased
}

// Erased returns how many lines of the frame were erased.
func (f Frame) Erased() (n int) {
	for _, r := range f.Rests {
		if r.Erased {
			n++
		}
	}
	return n
}

// Hollow reports whether all lines of the frame were erased. A frame without lines, such as a fence, is hollow too.
func (f Frame) Hollow() bool {
	return f.Erased() == bytes.Count(f.Body, []byte("\n"))
}

// content returns the content of the frame's lines, of an erased line from the hash that Rests has of it. intact is
// false if Rests does not belong to these lines; the content may then lack some.
func (f Frame) content() (c *Content, intact bool) {
	c = NewContent(f.Link.Salt)
	if f.Rests == nil {
		c.Add(f.Body)
		return c, true
	}
	rests := f.Rests
	intact = f.Link.Salt == Salt{} // Erase removes the salt; see Rest
	for line := range bytes.Lines(f.Body) {
		if len(rests) == 0 {
			return c, false
		}
		r := rests[0]
		rests = rests[1:]
		if !r.Erased {
			c.AddErased(saltedHash(r.Salt, line))
			continue
		}
		var walSeq uint64 // a frame of format 0 does not have it
		if f.Link.Format > 0 {
			walSeq = f.Link.First + c.Lines()
		}
		intact = intact && isMark(line, walSeq)
		c.AddErased(r.Hash)
	}
	return c, intact && len(rests) == 0
}

// lineSalt returns the salt of the line with an index. Neither the frame's salt nor that of another line can be
// derived from it.
func lineSalt(frameSalt Salt, index uint32) (salt Salt) {
	var input [len(frameSalt) + 4]byte
	copy(input[:], frameSalt[:])
	binary.BigEndian.PutUint32(input[len(frameSalt):], index)
	sum := sha256.Sum256(input[:])
	copy(salt[:], sum[:])
	return salt
}

// saltedHash returns the hash of a line with its own salt.
func saltedHash(salt Salt, line []byte) (out Hash) {
	h := sha256.New()
	h.Write(salt[:])
	h.Write(line)
	h.Sum(out[:0])
	return out
}

// The kinds of lines in what Message adds to the body of a frame: a byte before the salt or the hash of each line.
const (
	restKept   = 0
	restErased = 1
)

// Removed returns the Frame that stands for the removed frames between two ends of a log.
func Removed(before, end End) Frame {
	return Frame{Link: Link{Prev: before.Hash}, Removed: end}
}

// removedPrefix begins a link that stands for frames that were removed.
var removedPrefix = strconv.Itoa(formatRemoved) + "."

// Message returns the link and the body of the message that stores the frame. If lines of the frame were erased, the
// link has the format formatErased, which versions without erasure refuse as unknown, and the body has Rests as one
// more line. If the frame stands for frames that were removed, the link has Removed, and the body is nil.
func (f Frame) Message() (link string, body []byte) {
	if f.Removed.Seq > 0 {
		return removedPrefix + text.EncodeToString(f.Link.Prev[:]) + "." + f.Removed.String(), nil
	}
	if f.Rests == nil {
		return f.Link.String(), f.Body
	}
	l := f.Link
	l.Format, l.Salt = formatErased, Salt{byte(f.Link.Format)}
	rests := make([]byte, 0, len(f.Rests)*(1+sha256.Size))
	for _, r := range f.Rests {
		if r.Erased {
			rests = append(append(rests, restErased), r.Hash[:]...)
		} else {
			rests = append(append(rests, restKept), r.Salt[:]...)
		}
	}
	body = text.AppendEncode(slices.Clone(f.Body), rests)
	return l.String(), append(body, '\n')
}

// ParseMessage returns the frame for which Message returned link and body, without its id and generation. It does not
// copy body.
func ParseMessage(link string, body []byte) (f Frame, err error) {
	if rest, ok := strings.CutPrefix(link, removedPrefix); ok {
		return parseRemoved(rest, body)
	}
	if f.Link, err = ParseLink(link); err != nil {
		return f, err
	}
	f.Body = body
	if f.Link.Format != formatErased {
		return f, nil
	}

	// The link of a frame with erased lines has the frame's own format in place of the salt, and the last line of the
	// body has Rests.
	f.Link.Format, f.Link.Salt = int(f.Link.Salt[0]), Salt{}
	n := bytes.LastIndexByte(bytes.TrimSuffix(body, []byte("\n")), '\n') + 1
	rests, err := text.DecodeString(string(bytes.TrimSuffix(body[n:], []byte("\n"))))
	if err == nil && f.Link.Format > formatChained { // a frame that closes its segment, or an unknown format
		err = fmt.Errorf("a frame of format %d has no lines", f.Link.Format)
	}
	f.Body, f.Rests = body[:n], []Rest{}
	for err == nil && len(rests) > 0 {
		r := Rest{Erased: rests[0] == restErased}
		kept := r.Salt[:]
		if r.Erased {
			kept = r.Hash[:]
		}
		rests = rests[1:]
		if copy(kept, rests) < len(kept) {
			err = errors.New("the hash of a line is cut short")
			break
		}
		f.Rests, rests = append(f.Rests, r), rests[len(kept):]
	}
	if err != nil {
		return Frame{}, fmt.Errorf("framelog: what is kept of erased lines cannot be read: %w", err)
	}
	return f, nil
}

// parseRemoved parses what Message wrote behind removedPrefix.
func parseRemoved(link string, body []byte) (f Frame, err error) {
	// The hash of the frame before has to be whole, and is followed by the end.
	prev, end, _ := strings.Cut(link, ".")
	hash, err := text.DecodeString(prev)
	if err == nil && copy(f.Link.Prev[:], hash) != len(hash) || len(hash) != len(f.Link.Prev) || len(body) > 0 {
		err = errors.New("a hash and no body are expected")
	}
	if err == nil {
		f.Removed, err = ParseEnd(end)
	}
	if err == nil && f.Removed.Seq == 0 {
		err = errors.New("they end before the first frame")
	}
	if err != nil {
		return Frame{}, fmt.Errorf("framelog: %q does not say which frames were removed: %w", link, err)
	}
	return f, nil
}
