package resident

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"sort"
)

const (
	// bucketEntries is how many entries a bucket has before it is divided; they are read together.
	bucketEntries = 512
	// pendingEntries is how many changes of a bucket are in memory before they are written to the file.
	pendingEntries = bucketEntries / 4
	// maxDepth bounds the directory of an Index, whatever its hashes are.
	maxDepth = 24
	// entryBytes is the size of an entry in the file.
	entryBytes = 16
)

// Index finds numbers by a hash under which they were added. The hashes must be spread evenly over all uint64.
// Entries are in buckets, each with those whose hashes begin with the same bits; a bucket is in the file, but for its
// last changes, so that an entry takes about five bytes of memory. For most hashes under which there is nothing, Find
// does not read the file. Without a file all entries are in memory. Methods that only read may be called concurrently
// with each other, all others exclusively.
type Index struct {
	file    *File
	depth   uint
	buckets []*bucket // by the first depth bits of a hash; a bucket of a smaller depth is there several times
	len     int
	entries []entry // of the bucket that was written last, for the next one
}

// bucket has the entries whose hashes share their first depth bits.
type bucket struct {
	depth  uint
	stored place   // of sorted entries: their hashes, then their numbers; zero: there are none
	filter filter  // of what is stored
	added  []entry // sorted; none of them is stored
	// removed are stored entries that are not there any more, sorted.
	removed []entry
	// limit is how many changes there may be before they are written: more than pendingEntries if the file could not be
	// written.
	limit int
}

// entry is a number that was added under a hash.
type entry struct{ hash, number uint64 }

func compareEntries(x, y entry) int {
	return cmp.Or(cmp.Compare(x.hash, y.hash), cmp.Compare(x.number, y.number))
}

// NewIndex returns an empty Index with a file; f may be nil.
func NewIndex(f *File) *Index {
	return &Index{file: f, buckets: []*bucket{{limit: pendingEntries}}}
}

// Len returns the number of entries.
func (x *Index) Len() int { return x.len }

// Add adds an entry. An entry may be there several times; each Remove removes it once.
func (x *Index) Add(hash, number uint64) {
	x.len++
	b, e := x.bucket(hash), entry{hash, number}
	if i, was := slices.BinarySearchFunc(b.removed, e, compareEntries); was {
		b.removed = slices.Delete(b.removed, i, i+1)
		return
	}
	i, _ := slices.BinarySearchFunc(b.added, e, compareEntries)
	b.added = slices.Insert(b.added, i, e)
	x.tidy(b)
}

// Remove removes an entry. The Index must have it.
func (x *Index) Remove(hash, number uint64) {
	x.len--
	b, e := x.bucket(hash), entry{hash, number}
	if i, is := slices.BinarySearchFunc(b.added, e, compareEntries); is {
		b.added = slices.Delete(b.added, i, i+1)
		return
	}
	i, _ := slices.BinarySearchFunc(b.removed, e, compareEntries)
	b.removed = slices.Insert(b.removed, i, e)
	x.tidy(b)
}

// Find returns the numbers that were added under a hash, in order. It panics with ErrUnreadable if the file cannot be
// read.
func (x *Index) Find(hash uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		b := x.bucket(hash)
		var found []uint64
		if b.filter.mayHave(hash) {
			buffer := buffers.Get().(*[]byte)
			*buffer = x.read(b, *buffer)
			found = slices.Collect(b.find(hash, *buffer))
			giveBack(buffer)
		}
		i, _ := slices.BinarySearchFunc(b.added, entry{hash: hash}, compareEntries)
		for ; i < len(b.added) && b.added[i].hash == hash; i++ {
			found = append(found, b.added[i].number)
		}
		slices.Sort(found)
		for _, number := range found {
			if !yield(number) {
				return
			}
		}
	}
}

// All returns all entries, in the order of their hashes. It panics with ErrUnreadable if the file cannot be read.
func (x *Index) All() iter.Seq2[uint64, uint64] {
	return func(yield func(hash, number uint64) bool) {
		for i := 0; i < len(x.buckets); i += 1 << (x.depth - x.buckets[i].depth) {
			b := x.buckets[i]
			for _, e := range b.entries(nil, x.read(b, nil)) {
				if !yield(e.hash, e.number) {
					return
				}
			}
		}
	}
}

// bucket returns the bucket of a hash.
func (x *Index) bucket(hash uint64) *bucket { return x.buckets[hash>>(64-x.depth)] }

// tidy writes a bucket that has many changes, or divides one without a file that has many entries. If the file cannot
// be read or written, the changes stay in memory, and it is tried again when there are twice as many.
func (x *Index) tidy(b *bucket) {
	changes := len(b.added) + len(b.removed)
	if x.file == nil {
		if b.divisible(b.added) {
			x.divide(b, b.added)
		}
		return
	}
	if changes < b.limit {
		return
	}
	buffer := buffers.Get().(*[]byte)
	stored, err := x.load(b, *buffer)
	if err == nil {
		*buffer = stored
		x.entries = b.entries(x.entries[:0], stored)
		err = x.write(b, x.entries)
	}
	giveBack(buffer)
	if err != nil {
		b.limit = 2 * changes
	}
}

// write replaces what is stored of a bucket by all its entries, in more than one bucket if there are many.
func (x *Index) write(b *bucket, entries []entry) error {
	if b.divisible(entries) {
		before := b.stored
		for _, half := range x.divide(b, entries) {
			// What cannot be written stays in memory, as what was added.
			if err := x.write(half, half.added); err != nil {
				half.limit = max(pendingEntries, 2*len(half.added))
			}
		}
		x.free(before)
		return nil
	}
	var stored place
	var of filter
	if len(entries) > 0 {
		of = newFilter(entries)
		buffer := buffers.Get().(*[]byte)
		defer giveBack(buffer)
		blob := slices.Grow((*buffer)[:0], entryBytes*len(entries))
		for _, e := range entries {
			blob = binary.LittleEndian.AppendUint64(blob, e.hash)
		}
		for _, e := range entries {
			blob = binary.LittleEndian.AppendUint64(blob, e.number)
		}
		*buffer = blob
		var err error
		if stored, err = x.file.put(blob); err != nil {
			return err
		}
	}
	x.free(b.stored)
	b.stored, b.filter, b.added, b.removed, b.limit = stored, of, nil, nil, pendingEntries
	return nil
}

// filter is a Bloom filter of the hashes of entries: of a hundred hashes that no entry has, mayHave takes about one
// for one that an entry has. nil has no hashes.
type filter []uint64

const (
	filterBits   = 10 // for each entry
	filterProbes = 5
)

func newFilter(entries []entry) filter {
	f := make(filter, (filterBits*len(entries)+63)/64)
	for _, e := range entries {
		for bit := range f.probes(e.hash) {
			f[bit/64] |= 1 << (bit % 64)
		}
	}
	return f
}

// mayHave reports whether an entry may have a hash.
func (f filter) mayHave(hash uint64) bool {
	for bit := range f.probes(hash) {
		if f[bit/64]&(1<<(bit%64)) == 0 {
			return false
		}
	}
	return len(f) > 0
}

// probes returns the bits that an entry with a hash has set. They follow from the last bits of the hash, since the
// first ones are the same in a bucket.
func (f filter) probes(hash uint64) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if len(f) == 0 {
			return
		}
		at, step := uint32(hash), uint32(hash*0x9e3779b97f4a7c15>>32)|1
		for range filterProbes {
			if !yield(uint32(uint64(at) * uint64(64*len(f)) >> 32)) {
				return
			}
			at += step
		}
	}
}

// free frees a place of the file, if it is one.
func (x *Index) free(p place) {
	if p != (place{}) {
		x.file.remove(p)
	}
}

// divisible reports whether a bucket with some entries should be divided: not if all would be on one side.
func (b *bucket) divisible(entries []entry) bool {
	return len(entries) > bucketEntries && b.depth < maxDepth &&
		(entries[0].hash^entries[len(entries)-1].hash)&b.nextBit() != 0
}

// nextBit is the bit of a hash by which a bucket is divided.
func (b *bucket) nextBit() uint64 { return 1 << (63 - b.depth) }

// divide replaces a bucket by two, in each of which the hashes share one bit more, with its entries in memory.
func (x *Index) divide(b *bucket, entries []entry) [2]*bucket {
	if b.depth == x.depth {
		wider := make([]*bucket, 0, 2*len(x.buckets))
		for _, each := range x.buckets {
			wider = append(wider, each, each)
		}
		x.buckets, x.depth = wider, x.depth+1
	}
	first := slices.Index(x.buckets, b)
	at := sort.Search(len(entries), func(i int) bool { return entries[i].hash&b.nextBit() != 0 })
	halves := [2]*bucket{
		{depth: b.depth + 1, added: slices.Clone(entries[:at]), limit: pendingEntries},
		{depth: b.depth + 1, added: slices.Clone(entries[at:]), limit: pendingEntries},
	}
	places := 1 << (x.depth - b.depth)
	for i := range places {
		x.buckets[first+i] = halves[2*i/places]
	}
	return halves
}

// load returns what is stored of a bucket, in the memory of into if that is large enough.
func (x *Index) load(b *bucket, into []byte) ([]byte, error) {
	if b.stored == (place{}) {
		return into[:0], nil
	}
	blob, err := x.file.get(b.stored, into)
	if err == nil && len(blob)%entryBytes != 0 {
		err = fmt.Errorf("%d bytes are not entries", len(blob))
	}
	return blob, err
}

// read is load that panics with ErrUnreadable.
func (x *Index) read(b *bucket, into []byte) []byte {
	blob, err := x.load(b, into)
	if err != nil {
		panic(fmt.Errorf("%w: %w", ErrUnreadable, err))
	}
	return blob
}

// find returns the numbers under a hash in stored, which is what the file has of the bucket, without those that were
// removed.
func (b *bucket) find(hash uint64, stored []byte) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		n := len(stored) / entryBytes
		i := sort.Search(n, func(i int) bool { return storedAt(stored, i).hash >= hash })
		for ; i < n && storedAt(stored, i).hash == hash; i++ {
			e := storedAt(stored, i)
			if _, gone := slices.BinarySearchFunc(b.removed, e, compareEntries); !gone && !yield(e.number) {
				return
			}
		}
	}
}

// entries appends all entries of a bucket to all, sorted. stored is what the file has of the bucket.
func (b *bucket) entries(all []entry, stored []byte) []entry {
	added, removed := b.added, b.removed
	for i := range len(stored) / entryBytes {
		e := storedAt(stored, i)
		if len(removed) > 0 && removed[0] == e {
			removed = removed[1:]
			continue
		}
		for len(added) > 0 && compareEntries(added[0], e) < 0 {
			all, added = append(all, added[0]), added[1:]
		}
		all = append(all, e)
	}
	return append(all, added...)
}

// storedAt returns an entry that is stored.
func storedAt(stored []byte, i int) entry {
	numbers := stored[len(stored)/2:]
	return entry{binary.LittleEndian.Uint64(stored[8*i:]), binary.LittleEndian.Uint64(numbers[8*i:])}
}
