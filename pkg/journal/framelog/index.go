package framelog

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"
)

// blockFrames is how many frames a block has. To find a frame, one block is decoded.
const blockFrames = 64

// Index holds, for each frame of a partition, its first wal_seq and its sequence number in the
// log. It takes 2 to 4 bytes for a frame: a partition has as many frames as it ever wrote, and 10^7 of them took 160 MB
// when both numbers were kept. Its zero value is empty and ready to use. It is not safe for concurrent use.
type Index struct {
	blocks []indexBlock
	// of all blocks; for each frame but the first of a block, the differences from the one before, as varints
	deltas []byte
	last   indexEntry
	n      int
}

// indexBlock is the first frame of a block, and where the others are.
type indexBlock struct {
	indexEntry
	offset int // of the others, in deltas
}

type indexEntry struct {
	first uint64 // wal_seq of the frame's first event
	seq   uint64 // sequence number of the frame in the log
}

// Add appends a frame. The caller must add frames in ascending order of both numbers; this is not checked.
func (x *Index) Add(firstWalSeq, seq uint64) {
	e := indexEntry{firstWalSeq, seq}
	if x.n%blockFrames == 0 {
		x.blocks = append(x.blocks, indexBlock{e, len(x.deltas)})
	} else {
		x.deltas = binary.AppendUvarint(x.deltas, e.first-x.last.first)
		x.deltas = binary.AppendUvarint(x.deltas, e.seq-x.last.seq)
	}
	x.last = e
	x.n++
}

// Len returns how many frames were added.
func (x *Index) Len() int { return x.n }

// Equal reports whether two indexes hold the same frames.
func (x *Index) Equal(other *Index) bool {
	return x.n == other.n && slices.Equal(x.blocks, other.blocks) && bytes.Equal(x.deltas, other.deltas)
}

// Find returns the sequence number of the last frame that begins at walSeq or before. It returns
// false if there is none. It does not know where frames end: for a walSeq behind the last event of the
// index it returns the last frame, so the caller must exclude that.
func (x *Index) Find(walSeq uint64) (seq uint64, ok bool) {
	i := sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].first > walSeq })
	if i == 0 {
		return 0, false
	}
	x.decode(i-1, func(e indexEntry) bool {
		if e.first <= walSeq {
			seq = e.seq
		}
		return e.first <= walSeq
	})
	return seq, true
}

// Since calls fn with the frames behind the first n, in order: the wal_seq of the first event and the sequence number.
func (x *Index) Since(n int, fn func(firstWalSeq, seq uint64)) {
	for i := n / blockFrames; i < len(x.blocks); i++ {
		index := i * blockFrames
		x.decode(i, func(e indexEntry) bool {
			if index >= n {
				fn(e.first, e.seq)
			}
			index++
			return true
		})
	}
}

// decode calls fn with the frames of a block until fn returns false.
func (x *Index) decode(i int, fn func(indexEntry) bool) {
	e, rest := x.blocks[i].indexEntry, x.deltas[x.blocks[i].offset:]
	frames := min(blockFrames, x.n-i*blockFrames)
	for decoded := 1; fn(e) && decoded < frames; decoded++ {
		first, n := binary.Uvarint(rest)
		seq, m := binary.Uvarint(rest[n:])
		e.first, e.seq, rest = e.first+first, e.seq+seq, rest[n+m:]
	}
}
