package resident

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/s2"
)

// unit is what places in a File are multiples of, in bytes.
const unit = 64

// maxBytes bounds a blob, so that damaged bytes do not take all memory.
const maxBytes = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrUnreadable means that a File does not have what was stored.
var ErrUnreadable = errors.New("resident: what was evicted cannot be read")

// ErrFull means that a File has no room for more.
var ErrFull = errors.New("resident: the file is full")

// place is where a File has a blob. The zero place is no blob.
type place struct {
	at   uint32 // in units
	size uint32 // in bytes
}

// File holds blobs, compressed and with a checksum. Freed places are used again. It is safe for concurrent use, but a
// blob must not be freed while it is read.
type File struct {
	f *os.File

	mu   sync.Mutex
	end  uint64 // in units
	free map[uint32][]uint32

	live atomic.Int64 // bytes of all blobs
}

// Create makes a File in a directory, which it makes if it is not there; "" is that for temporary files. The name of
// the file is removed at once where the system allows it, otherwise by Close.
func Create(dir string) (*File, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("resident: %w", err)
		}
	}
	f, err := os.CreateTemp(dir, "resident-*")
	if err != nil {
		return nil, fmt.Errorf("resident: %w", err)
	}
	_ = os.Remove(f.Name())
	return &File{f: f, end: 1, free: map[uint32][]uint32{}}, nil
}

// Close ends a File. Nothing may be read from it any more.
func (f *File) Close() error {
	err := f.f.Close()
	_ = os.Remove(f.f.Name())
	return err
}

// Bytes returns how many bytes the blobs have.
func (f *File) Bytes() int64 { return f.live.Load() }

// Size returns how many bytes of the disk the places of blobs take, also those that were freed.
func (f *File) Size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(f.end-1) * unit
}

// buffers are used again, since a blob is read or written for a moment and may be large.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keptBuffer is how large a buffer may be that is used again.
const keptBuffer = 1 << 20

// giveBack makes a buffer available that buffers returned.
func giveBack(b *[]byte) {
	if cap(*b) <= keptBuffer {
		buffers.Put(b)
	}
}

// put stores a blob.
func (f *File) put(plain []byte) (place, error) {
	buffer := buffers.Get().(*[]byte)
	defer giveBack(buffer)
	if n := s2.MaxEncodedLen(len(plain)); n > cap(*buffer) {
		*buffer = make([]byte, 0, n+crc32.Size)
	}
	block := s2.EncodeBetter((*buffer)[:cap(*buffer)], plain)
	block = binary.LittleEndian.AppendUint32(block, crc32.Checksum(block, castagnoli))
	if len(block) > maxBytes {
		return place{}, fmt.Errorf("resident: %d bytes are too many", len(block))
	}
	at, err := f.take(room(len(block)))
	if err != nil {
		return place{}, err
	}
	p := place{at: at, size: uint32(len(block))}
	if _, err := f.f.WriteAt(block, int64(p.at)*unit); err != nil {
		f.give(p)
		return place{}, fmt.Errorf("resident: %w", err)
	}
	f.live.Add(int64(p.size))
	return p, nil
}

// get returns the blob at p. It overwrites the memory of into if the capacity is large enough, and allocates new
// memory if not. into may be nil.
func (f *File) get(p place, into []byte) ([]byte, error) {
	buffer := buffers.Get().(*[]byte)
	defer giveBack(buffer)
	*buffer = slices.Grow((*buffer)[:0], int(p.size))
	block := (*buffer)[:p.size]
	if _, err := f.f.ReadAt(block, int64(p.at)*unit); err != nil {
		return nil, fmt.Errorf("resident: %w", err)
	}
	n := len(block) - crc32.Size
	if n < 0 || crc32.Checksum(block[:n], castagnoli) != binary.LittleEndian.Uint32(block[n:]) {
		return nil, errors.New("resident: the checksum is another one")
	}
	size, err := s2.DecodedLen(block[:n])
	if err == nil && size > maxBytes {
		err = fmt.Errorf("%d bytes", size)
	}
	var plain []byte
	if err == nil {
		plain, err = s2.Decode(into[:cap(into)], block[:n])
	}
	if err != nil {
		return nil, fmt.Errorf("resident: %w", err)
	}
	return plain, nil
}

// remove frees the place of a blob.
func (f *File) remove(p place) {
	f.live.Add(-int64(p.size))
	f.give(p)
}

// room returns how many units a blob of so many bytes gets: up to 32 as many as it needs, and above that a multiple
// of an eighth to a sixteenth of its size, so that a freed place fits other blobs.
func room(size int) uint32 {
	units := uint32((size + unit - 1) / unit)
	if units <= 32 {
		return units
	}
	step := uint32(1) << (bits.Len32(units-1) - 4)
	return (units + step - 1) / step * step
}

// take returns a free place of so many units, or ErrFull.
func (f *File) take(units uint32) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if free := f.free[units]; len(free) > 0 {
		at := free[len(free)-1]
		f.free[units] = free[:len(free)-1]
		return at, nil
	}
	if f.end+uint64(units) > math.MaxUint32 {
		return 0, ErrFull
	}
	at := uint32(f.end)
	f.end += uint64(units)
	return at, nil
}

// give makes the place of a blob available to others of the same number of units.
func (f *File) give(p place) {
	units := room(int(p.size))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free[units] = append(f.free[units], p.at)
}
