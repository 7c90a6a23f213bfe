package past

import "encoding/binary"

// Seqs holds the wal_seqs of the events in an item's history, each as its distance from the
// one before, in two or three bytes. The journal holds everything else, so the whole history
// of an item costs less memory than one copy of its record (SPEC W11, ADR 0011). It is a
// value; With returns a longer one.
type Seqs struct {
	Last  uint64 // the newest wal_seq
	Steps []byte // the distances, as varints
}

// With returns the history with one more event, whose walSeq must be higher than the last.
func (s Seqs) With(walSeq uint64) Seqs {
	return Seqs{walSeq, binary.AppendUvarint(s.Steps, walSeq-s.Last)}
}

// All returns the wal_seqs, oldest first.
func (s Seqs) All() []uint64 {
	var out []uint64
	seq := uint64(0)
	for rest := s.Steps; len(rest) > 0; {
		step, n := binary.Uvarint(rest)
		seq += step
		out = append(out, seq)
		rest = rest[n:]
	}
	return out
}

// Valid reports whether the steps are varints that lead to the last event.
func (s Seqs) Valid() bool {
	seq := uint64(0)
	for rest := s.Steps; len(rest) > 0; {
		step, n := binary.Uvarint(rest)
		if n <= 0 {
			return false
		}
		seq, rest = seq+step, rest[n:]
	}
	return seq == s.Last
}
