// Package snapshot writes and reads the state of a partition, so that a log need not be read from its beginning.
//
// A snapshot is a manifest and objects. An object has pages of owners, remembered requests, or a part of the index of
// frames. A page is written when its owner changed, and a manifest names the objects of earlier snapshots that are
// still needed, so the cost of a snapshot is that of what changed. Objects are named by their hashes in the manifest,
// and the manifest by its hash in a frame of the log that announces it: without that frame it is not valid. See ADR
// 0036.
//
// The pages are also the unit in which a state leaves memory: an Evictor writes owners that are not used to a file.
package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
	"google.golang.org/protobuf/proto"

	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
)

const (
	// Format is the newest version of the format that is written.
	Format = 4
	// formatWhole is the format of a snapshot of a partition in which no owner was erased. Earlier versions read it.
	formatWhole = 3
	// Kept is how many snapshots are kept.
	Kept = 3
	// Slots is how many manifests a Store keeps for a partition: those that are kept, and one that was not announced.
	Slots = Kept + 1
	// ObjectBytes is about how large an object with pages is before it is compressed.
	ObjectBytes = 256 << 10
	// PartBytes is how many bytes of an object are stored together; a larger object is stored in parts.
	PartBytes = 512 << 10
	// mergedEntries bounds the requests or frames of an object that is merged from smaller ones.
	mergedEntries = 1 << 16
)

// MaxObject is how many bytes an object may have when it is decompressed. A page is not divided, so it may be larger
// than ObjectBytes.
const MaxObject = 512 << 20

// ErrNoObject means that a store does not have an object, or not the one that was stored.
var ErrNoObject = errors.New("snapshot: no such object")

// Store keeps the objects of a partition. It is safe for concurrent use. More than one process may write to it: objects
// have numbers of their own, and a snapshot is valid only if the log announces it.
type Store interface {
	// Put stores objects durably and returns their numbers, in order. Numbers grow, and those of earlier calls are
	// smaller.
	Put(ctx context.Context, objects [][]byte) ([]uint64, error)
	// PutManifest is Put for a manifest, which Manifests returns as long as no later one was stored in the same slot.
	PutManifest(ctx context.Context, slot int, manifest []byte) (uint64, error)
	// Get returns an object, or ErrNoObject.
	Get(ctx context.Context, number uint64) ([]byte, error)
	// Manifests returns the newest manifest of each slot, by number.
	Manifests(ctx context.Context) (map[uint64][]byte, error)
	// Numbers returns the numbers of all objects and manifests.
	Numbers(ctx context.Context) ([]uint64, error)
	// Remove removes objects. Those that are not there are no error.
	Remove(ctx context.Context, numbers []uint64) error
}

// Ref names a manifest.
type Ref struct {
	Snapshot uint64 // number of the snapshot
	Number   uint64 // under which the manifest is stored
	Hash     [sha256.Size]byte
}

// Frame is an entry of the index of frames.
type Frame struct{ WalSeq, Seq uint64 }

// pack returns a message as the bytes of an object.
func pack(m proto.Message) ([]byte, error) {
	b, err := EncodePage(m)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return s2.EncodeBetter(nil, b), nil
}

// unpack reads what pack returned.
func unpack(b []byte, m proto.Message) error {
	n, err := s2.DecodedLen(b)
	if err == nil && n > MaxObject {
		err = fmt.Errorf("an object of %d bytes", n)
	}
	var plain []byte
	if err == nil {
		plain, err = s2.Decode(nil, b)
	}
	if err == nil {
		err = proto.Unmarshal(plain, m)
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// read returns the content of an object. A damaged one is ErrNoObject.
func read(ctx context.Context, store Store, o *snapshotv1.Object, into proto.Message) error {
	var b []byte
	for _, number := range append(slices.Clone(o.GetEarlier()), o.GetNumber()) {
		part, err := store.Get(ctx, number)
		if err != nil {
			return fmt.Errorf("snapshot: object %d: %w", number, err)
		}
		b = append(b, part...)
	}
	if sum := sha256.Sum256(b); string(sum[:]) != string(o.GetHash()) {
		return fmt.Errorf("%w: %d has another hash", ErrNoObject, o.GetNumber())
	}
	if err := unpack(b, into); err != nil {
		return fmt.Errorf("%w: %d: %w", ErrNoObject, o.GetNumber(), err)
	}
	return nil
}
