package blockfile

import (
	"bytes"
	"fmt"
)

// Gap is a part of a block that cannot be read.
type Gap struct {
	From, To int    // the bytes From to To-1 of the block
	After    uint64 // sequence number of the last record before it that is no deletion; 0: none
	Before   uint64 // sequence number of the first record behind it; 0: none
	Cause    error  // why the record at From cannot be read
}

// Tail reports whether no intact record is behind the gap in its block.
func (g Gap) Tail() bool { return g.Before == 0 }

// String describes the gap.
func (g Gap) String() string {
	switch {
	case g.Tail() && g.After == 0:
		return fmt.Sprintf("bytes %d to %d: %v, and nothing in the block is intact", g.From, g.To, g.Cause)
	case g.Tail():
		return fmt.Sprintf("bytes %d to %d, behind message %d: %v, and nothing intact follows", g.From, g.To, g.After,
			g.Cause)
	}
	return fmt.Sprintf("bytes %d to %d, between messages %d and %d: %v", g.From, g.To, g.After, g.Before, g.Cause)
}

// compressed begins a block that is compressed.
var compressed = []byte("cmp")

// Read calls fn for each intact record of a block, in order, and returns the parts that cannot be read. Behind damage
// it goes on at the next intact record whose subject begins with one of subjects. It returns an error for a
// compressed block, and if fn returns one; then gaps has those before.
func Read(stream string, index int, block []byte, subjects []string, fn func(Record) error) ([]Gap, error) {
	sum := NewSum(stream, index)
	if bytes.HasPrefix(block, compressed) {
		if _, _, err := sum.parse(block); err != nil {
			return nil, fmt.Errorf("block %d of %s is compressed; a stream of Quartet is not", index, stream)
		}
	}
	var gaps []Gap
	last := uint64(0)
	for at := 0; at < len(block); {
		r, n, err := sum.parse(block[at:])
		if err != nil {
			gap := Gap{From: at, To: len(block), After: last, Cause: err}
			if to := sum.next(block, at+1, subjects); to >= 0 {
				next, _, _ := sum.parse(block[to:]) // next has found it intact
				gap.To, gap.Before = to, next.Seq
			}
			gaps = append(gaps, gap)
			at = gap.To
			continue
		}
		if err := fn(r); err != nil {
			return gaps, err
		}
		if !r.Deletion {
			last = r.Seq
		}
		at += n
	}
	return gaps, nil
}

// next returns where the first intact record at or behind from begins whose subject begins with one of subjects, or -1.
func (s *Sum) next(block []byte, from int, subjects []string) int {
	found := -1
	for _, subject := range subjects {
		for at := from; ; {
			i := bytes.Index(block[min(at+prefixBytes, len(block)):], []byte(subject))
			if i < 0 || found >= 0 && at+i >= found {
				break
			}
			at += i
			if _, _, err := s.parse(block[at:]); err == nil {
				found = at
				break
			}
			at++
		}
	}
	return found
}

// MaxCorrected is the length of the longest record that Correct tries to correct, which takes a few seconds.
const MaxCorrected = 64 << 10

// Correct returns the record that results from changing one bit of damaged so that the checksum is right. ok is false
// if no single bit has that effect. It does not change damaged, and the record does not share its bytes. The caller
// should compare the record with a hash that is stored elsewhere, since a checksum is no proof.
func Correct(stream string, index int, damaged []byte) (r Record, ok bool) {
	if len(damaged) > MaxCorrected {
		return r, false
	}
	sum, b := NewSum(stream, index), bytes.Clone(damaged)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if r, n, err := sum.parse(b); err == nil && n == len(b) {
				return r, true
			}
			b[i] ^= 1 << bit
		}
	}
	return r, false
}
