package model

import (
	"math/bits"
)

// Bitset is a set of small numbers that finds its smallest member from a position
// on quickly: it has one bit for each number, and one bit for each 64-bit word of
// those that is not empty. With 10 000 steps a search reads three words. It has no
// words behind its largest member. Len and Next take a nil *Bitset as an empty set; the
// other methods must not be called on one.
type Bitset struct {
	words  []uint64
	filled []uint64 // bit i is set: words[i] is not 0
	n      int      // how many members the set has
}

// Has reports whether i is a member. i must not be negative.
func (b *Bitset) Has(i int) bool {
	w := i >> 6
	return w < len(b.words) && b.words[w]&(1<<(i&63)) != 0
}

// add adds i, which must not be negative.
func (b *Bitset) add(i int) {
	w := i >> 6
	for len(b.words) <= w {
		b.words = append(b.words, 0)
	}
	for len(b.filled) <= w>>6 {
		b.filled = append(b.filled, 0)
	}
	if b.words[w]&(1<<(i&63)) != 0 {
		return
	}
	b.words[w] |= 1 << (i & 63)
	b.filled[w>>6] |= 1 << (w & 63)
	b.n++
}

// remove removes i, which must not be negative; nothing happens if it is no member.
func (b *Bitset) remove(i int) {
	if !b.Has(i) {
		return
	}
	w := i >> 6
	b.words[w] &^= 1 << (i & 63)
	b.n--
	if b.words[w] != 0 {
		return
	}
	b.filled[w>>6] &^= 1 << (w & 63)
	n := len(b.words)
	for n > 0 && b.words[n-1] == 0 {
		n--
	}
	b.words, b.filled = b.words[:n], b.filled[:(n+63)>>6]
}

// Len returns how many members the set has.
func (b *Bitset) Len() int {
	if b == nil {
		return 0
	}
	return b.n
}

// Next returns the smallest member that is at least from and, if within is not nil,
// also a member of within; -1 if there is none.
func (b *Bitset) Next(from int, within *Bitset) int {
	if b == nil {
		return -1
	}
	for w := from >> 6; w < len(b.words); {
		word := b.words[w]
		if within != nil {
			if w >= len(within.words) {
				return -1
			}
			word &= within.words[w]
		}
		if w == from>>6 {
			word &= ^uint64(0) << (from & 63)
		}
		if word != 0 {
			return w<<6 + bits.TrailingZeros64(word)
		}
		w = b.nextWord(w + 1)
		if w < 0 {
			return -1
		}
	}
	return -1
}

// nextWord returns the index of the first word from w on that is not empty, or -1.
func (b *Bitset) nextWord(w int) int {
	for s := w >> 6; s < len(b.filled); s++ {
		f := b.filled[s]
		if s == w>>6 {
			f &= ^uint64(0) << (w & 63)
		}
		if f != 0 {
			return s<<6 + bits.TrailingZeros64(f)
		}
	}
	return -1
}
