// Package archive keeps closed segments of a log outside of it, compressed, and reads them as the log had them.
//
// A segment is stored as objects with some of its frames each, and an index, which is the last of its objects. A
// catalog names the segments of a partition and the hashes of their indexes. A segment is part of the archive once it
// is in the catalog, and only then the log may drop it. See ADR 0037.
package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// The versions of the format. Something without erased and removed lines is written in formatWhole, which earlier
// versions read.
const (
	formatWhole   = 1
	formatErased  = 2
	formatRemoved = 3
	// Format is the newest version that is read and written.
	Format = formatRemoved
)

// formatOf returns the version of the format for something with so many erased and removed lines.
func formatOf(erased, removed int64) uint32 {
	switch {
	case removed > 0:
		return formatRemoved
	case erased > 0:
		return formatErased
	}
	return formatWhole
}

// knownFormat reports whether a version of the format can be read.
func knownFormat(format uint32) bool { return format >= formatWhole && format <= Format }

// objectBytes is about how many bytes the frames of an object have before they are compressed.
const objectBytes = 512 << 10

// maxObject is how many bytes the frames of an object may have. A frame is not divided, and has at most as many as a
// message.
const maxObject = objectBytes + 64<<20

// The errors of a Store.
var (
	// ErrNoObject means that a store does not have what was asked for, or not as it was stored.
	ErrNoObject = errors.New("archive: missing or changed")
	// ErrReplaced means that another writer replaced the catalog since it was read.
	ErrReplaced = errors.New("archive: the catalog was replaced")
)

// Store keeps the archive of one partition. It is safe for concurrent use. More than one process may write to it: a
// catalog replaces only the one that its writer has read.
type Store interface {
	// Begin begins to store a segment, under a name of its own.
	Begin(ctx context.Context, segment uint64) (Draft, error)
	// Get returns so many bytes, from at on, of what is stored under a name; ErrNoObject if they are not there.
	Get(ctx context.Context, name string, at uint64, bytes int64) ([]byte, error)
	// Last returns the last object that is stored under a name, and where it is.
	Last(ctx context.Context, name string) (object []byte, at uint64, err error)
	// Names returns the names of the segments that were stored completely, in the catalog or not, and their numbers.
	Names(ctx context.Context) (map[string]uint64, error)
	// Remove removes what is stored under a name. It is no error if that is not there.
	Remove(ctx context.Context, name string) error
	// Catalog returns the catalog and its version; no bytes and 0 if there is none.
	Catalog(ctx context.Context) (content []byte, version uint64, err error)
	// ReplaceCatalog stores a catalog durably in place of the one with a version, or returns ErrReplaced.
	ReplaceCatalog(ctx context.Context, version uint64, content []byte) error
}

// Draft is a segment that is being stored.
type Draft interface {
	// Add appends an object and returns where it is.
	Add(ctx context.Context, object []byte) (at uint64, err error)
	// Commit makes the objects durable and returns the name under which they are.
	Commit(ctx context.Context) (name string, err error)
	// Close removes the objects unless they are committed.
	Close()
}

// get returns an object, whose hash is verified.
func get(ctx context.Context, store Store, name string, o *archivev1.Object) ([]byte, error) {
	b, err := store.Get(ctx, name, o.GetAt(), o.GetBytes())
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); string(sum[:]) != string(o.GetHash()) {
		return nil, fmt.Errorf("%w: the object at %d of %s has another hash", ErrNoObject, o.GetAt(), name)
	}
	return b, nil
}

// object returns the description of an object that is stored.
func object(at uint64, b []byte) *archivev1.Object {
	sum := sha256.Sum256(b)
	return &archivev1.Object{At: at, Bytes: int64(len(b)), Hash: sum[:]}
}
