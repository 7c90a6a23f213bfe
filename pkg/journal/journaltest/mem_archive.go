package journaltest

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"quartet/pkg/journal/archive"
)

// MemArchive keeps the archive of one partition. Its zero value is empty and ready to use.
type MemArchive struct {
	mu       sync.Mutex
	begun    int
	segments map[string]*archivedSegment
	catalog  []byte
	version  uint64
}

// archivedSegment is one that is stored completely.
type archivedSegment struct {
	number  uint64
	objects [][]byte
}

var _ archive.Store = (*MemArchive)(nil)

// archiveDraft is a segment that is being stored. The place of an object is its index.
type archiveDraft struct {
	store *MemArchive
	name  string
	archivedSegment
}

// Begin implements archive.Store.
func (s *MemArchive) Begin(_ context.Context, number uint64) (archive.Draft, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	return &archiveDraft{
		store: s, name: fmt.Sprintf("%d-%d", number, s.begun), archivedSegment: archivedSegment{number: number},
	}, nil
}

// Add implements archive.Draft.
func (d *archiveDraft) Add(_ context.Context, object []byte) (uint64, error) {
	d.objects = append(d.objects, bytes.Clone(object))
	return uint64(len(d.objects) - 1), nil
}

// Commit implements archive.Draft.
func (d *archiveDraft) Commit(context.Context) (string, error) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	if d.store.segments == nil {
		d.store.segments = map[string]*archivedSegment{}
	}
	d.store.segments[d.name] = &d.archivedSegment
	return d.name, nil
}

// Close implements archive.Draft.
func (d *archiveDraft) Close() {}

// Get implements archive.Store.
func (s *MemArchive) Get(_ context.Context, name string, at uint64, n int64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.segments[name]
	if of == nil || at >= uint64(len(of.objects)) || int64(len(of.objects[at])) != n {
		return nil, fmt.Errorf("%w: %d of %s", archive.ErrNoObject, at, name)
	}
	return bytes.Clone(of.objects[at]), nil
}

// Last implements archive.Store.
func (s *MemArchive) Last(_ context.Context, name string) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.segments[name]
	if of == nil || len(of.objects) == 0 {
		return nil, 0, fmt.Errorf("%w: %s", archive.ErrNoObject, name)
	}
	at := len(of.objects) - 1
	return bytes.Clone(of.objects[at]), uint64(at), nil
}

// Names implements archive.Store.
func (s *MemArchive) Names(context.Context) (map[string]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]uint64{}
	for name, of := range s.segments {
		all[name] = of.number
	}
	return all, nil
}

// Remove implements archive.Store.
func (s *MemArchive) Remove(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.segments, name)
	return nil
}

// Catalog implements archive.Store.
func (s *MemArchive) Catalog(context.Context) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.catalog), s.version, nil
}

// ReplaceCatalog implements archive.Store.
func (s *MemArchive) ReplaceCatalog(_ context.Context, version uint64, content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version != s.version {
		return archive.ErrReplaced
	}
	s.catalog, s.version = bytes.Clone(content), version+1
	return nil
}
