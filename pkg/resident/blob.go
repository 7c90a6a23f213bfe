package resident

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Blob is a sequence of bytes that a File has. If there is no File, or if it could not be written, the bytes are in
// memory. Blobs are values: a copy is the same Blob. The zero Blob has no bytes.
type Blob struct {
	file   *File
	stored place  // zero: in memory
	kept   []byte // if they are in memory
}

// NewBlob stores bytes, which must not be changed any more, in f; in memory if f is nil or cannot be written.
func NewBlob(f *File, b []byte) Blob {
	stored, _ := Blob{kept: b}.Store(f)
	return stored
}

// Store returns a Blob with the same bytes, in f if they were in memory. With an error, which is one of the file, it
// returns b itself.
func (b Blob) Store(f *File) (Blob, error) {
	if f == nil || len(b.kept) == 0 {
		return b, nil
	}
	p, err := f.put(b.kept)
	if err != nil {
		return b, err
	}
	return Blob{file: f, stored: p}, nil
}

// Stored reports whether the bytes are in a File.
func (b Blob) Stored() bool { return b.stored != (place{}) }

// IsZero reports whether a Blob has no bytes.
func (b Blob) IsZero() bool { return !b.Stored() && len(b.kept) == 0 }

// Bytes returns the bytes, which the caller must not change. It panics with ErrUnreadable if the file cannot be read.
func (b Blob) Bytes() []byte {
	if !b.Stored() {
		return b.kept
	}
	plain, err := b.file.get(b.stored, nil)
	if err != nil {
		panic(fmt.Errorf("%w: %w", ErrUnreadable, err))
	}
	return plain
}

// Free makes the place of a Blob available for others. No copy of it may be used any more.
func (b Blob) Free() {
	if b.Stored() {
		b.file.remove(b.stored)
	}
}

// Comparable implements pagestest.Comparable: tests compare Blobs by their bytes, in the file or in memory.
func (b Blob) Comparable() any { return b.Bytes() }

// The first byte of what Ref returns.
const (
	refStored = iota + 1 // the place follows
	refKept              // the bytes follow
)

// Ref returns bytes from which BlobOf makes the same Blob: for values of a Map that have Blobs of its File.
func (b Blob) Ref() []byte {
	if !b.Stored() {
		return append([]byte{refKept}, b.kept...)
	}
	ref := binary.LittleEndian.AppendUint32([]byte{refStored}, b.stored.at)
	return binary.LittleEndian.AppendUint32(ref, b.stored.size)
}

// BlobOf returns the Blob of a File for which Ref returned some bytes.
func BlobOf(f *File, ref []byte) (Blob, error) {
	switch {
	case len(ref) > 1 && ref[0] == refKept:
		return Blob{kept: ref[1:]}, nil
	case len(ref) == 9 && ref[0] == refStored && f != nil:
		return Blob{file: f, stored: place{
			at:   binary.LittleEndian.Uint32(ref[1:]),
			size: binary.LittleEndian.Uint32(ref[5:]),
		}}, nil
	}
	return Blob{}, errors.New("resident: no blob has these bytes as its reference")
}
