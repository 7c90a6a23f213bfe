package repair

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"

	"quartet/pkg/journal/framelog"
)

// copyOf is a frame as one of the places has it. Places are numbered in the order in which they are preferred.
type copyOf struct {
	seq     uint64
	at      int64 // nanoseconds of Unix time at which it was stored; 0: not known
	subject string
	header  []byte // as on the wire
	frame   framelog.Frame
	place   int
}

// chain is what can be put together of a partition's journal.
type chain struct {
	kept []*copyOf // continue each other, behind what is archived
	end  framelog.End
	// whole says that the chain has the witnessed frame or a newer incarnation than that, or that no frame behind its
	// beginning was witnessed. It says nothing about left.
	whole bool
	left  []*copyOf // intact frames behind the end that do not continue it, each once, in order
	// broken are frames whose content does not have their hash, or whose format is unknown.
	broken []*copyOf
}

// assemble puts the journal of a partition together from copies of its frames. It begins behind from, up to where the
// examined is known. Where several frames name the same predecessor, it takes that of the newest incarnation, since an
// operator who began that one gave up the others; then the one that leads to the witnessed frame; then the one of the
// preferred place.
func assemble(partition string, from framelog.End, copies []*copyOf, witnessed framelog.End) chain {
	c := chain{end: from}
	byHash, byPrev := map[framelog.Hash]*copyOf{}, map[framelog.Hash][]*copyOf{}
	var unchained []*copyOf
	removed := map[framelog.Hash]*copyOf{} // what stands for removed frames, by the hash before them
	for _, f := range copies {
		if f.frame.Removed.Seq > 0 {
			if known := removed[f.frame.Link.Prev]; known == nil || f.place < known.place {
				removed[f.frame.Link.Prev] = f
			}
			continue
		}
		if f.frame.Link.Format == 0 {
			unchained = append(unchained, f)
			continue
		}
		if _, intact := framelog.Anchor(partition, f.seq, f.frame); !intact || f.frame.Link.Format < 0 ||
			f.frame.Link.Format > framelog.Format {
			c.broken = append(c.broken, f)
			continue
		}
		h := f.frame.Link.Hash
		if known := byHash[h]; known == nil || f.place < known.place {
			byHash[h] = f
		}
	}
	for _, f := range byHash {
		byPrev[f.frame.Link.Prev] = append(byPrev[f.frame.Link.Prev], f)
	}
	slices.SortFunc(unchained, func(a, b *copyOf) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.place, b.place))
	})
	lineage := map[*copyOf]bool{}
	for f := byHash[witnessed.Hash]; f != nil && !lineage[f]; f = byHash[f.frame.Link.Prev] {
		lineage[f] = true
	}
	used := map[*copyOf]bool{}
	c.whole = witnessed.Seq <= from.Seq || from.Incarnation > witnessed.Incarnation
	for {
		next := best(partition, c.end, byPrev[c.end.Hash], lineage)
		if next == nil && c.end.Incarnation == 0 {
			next = continuing(c.end, unchained)
		}
		if next == nil { // a place that has the frames is better
			next = best(partition, c.end, []*copyOf{removed[c.end.Hash]}, lineage)
		}
		if next == nil {
			break
		}
		c.end, _, _ = c.end.Next(partition, next.seq, next.frame) // best and continuing have checked it
		c.kept, used[next] = append(c.kept, next), true
		c.whole = c.whole || c.end == witnessed || c.end.Incarnation > witnessed.Incarnation
	}
	for _, f := range byHash {
		if !used[f] && f.seq > c.end.Seq {
			c.left = append(c.left, f)
		}
	}
	slices.SortFunc(c.left, func(a, b *copyOf) int { return cmp.Compare(a.seq, b.seq) })
	return c
}

// best returns the frame that continues a log with the given end, or nil if none does. It chooses among frames, which
// name that end as their predecessor; nil entries are skipped. It prefers the newest incarnation, then a frame in
// lineage, which has those that lead to the witnessed frame, and then the place with the lowest number.
func best(partition string, end framelog.End, frames []*copyOf, lineage map[*copyOf]bool) (next *copyOf) {
	rank := func(f *copyOf) []int {
		of := []int{-int(f.frame.Link.Incarnation), 1, f.place}
		if lineage[f] {
			of[1] = 0
		}
		return of
	}
	for _, f := range frames {
		if f == nil {
			continue
		}
		if _, _, err := end.Next(partition, f.seq, f.frame); err != nil || f.seq <= end.Seq {
			continue
		}
		if next == nil || slices.Compare(rank(f), rank(next)) < 0 {
			next = f
		}
	}
	return next
}

// continuing returns the first frame of format 0 behind the end of a log if its lines continue those of the log. Frames
// of that format have no hashes; their lines are numbered.
func continuing(end framelog.End, unchained []*copyOf) *copyOf {
	i, _ := slices.BinarySearchFunc(unchained, end.Seq+1, func(f *copyOf, seq uint64) int {
		return cmp.Compare(f.seq, seq)
	})
	if i == len(unchained) {
		return nil
	}
	f := unchained[i]
	if first, ok := walSeq(f.frame.Body); ok && first == end.WalSeq+1 || len(f.frame.Body) == 0 {
		return f
	}
	return nil
}

// walSeq returns the wal_seq of the first line of a body.
func walSeq(body []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(body, []byte(`{"wal_seq":`))
	if !ok {
		return 0, false
	}
	number, _, ok := bytes.Cut(rest, []byte{','})
	n, err := strconv.ParseUint(string(number), 10, 64)
	return n, ok && err == nil
}

// lastWalSeq returns the wal_seq of the frame's last line. For a frame without lines it returns that of the last line
// before the frame, or 0 if the frame has format 0, which does not state it.
func (f *copyOf) lastWalSeq() uint64 {
	n := uint64(len(framelog.SplitLines(f.frame.Body)))
	if f.frame.Link.Format == 0 {
		first, _ := walSeq(f.frame.Body)
		return max(first+n, 1) - 1
	}
	return f.frame.Link.First + n - 1
}
