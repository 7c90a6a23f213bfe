// Package frameindex finds the frame of a log that holds an event.
package frameindex

import "sort"

// Index holds, for each frame of a partition, its first wal_seq and its sequence number in the
// log. It is not safe for concurrent use.
type Index []entry

type entry struct {
	first uint64 // wal_seq of the frame's first event
	seq   uint64 // sequence number of the frame in the log
}

// Add appends a frame. Frames must be added in the order of the log.
func (x *Index) Add(firstWalSeq, seq uint64) { *x = append(*x, entry{firstWalSeq, seq}) }

// Find returns the sequence number of the last frame that begins at walSeq or before. It returns
// false if there is none. The caller must know that walSeq is not beyond that frame's end.
func (x Index) Find(walSeq uint64) (seq uint64, ok bool) {
	i := sort.Search(len(x), func(i int) bool { return x[i].first > walSeq })
	if i == 0 {
		return 0, false
	}
	return x[i-1].seq, true
}

// Since calls fn with the frames behind the first n, in order: the wal_seq of the first event and the sequence number.
func (x Index) Since(n int, fn func(firstWalSeq, seq uint64)) {
	for _, e := range x[n:] {
		fn(e.first, e.seq)
	}
}
