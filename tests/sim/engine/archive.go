package engine

import (
	"context"
	"fmt"

	"quartet/pkg/journal/archive"
)

// Archive is a store of an archive as one process sees it. Each call is a crossing, at which the simulation may delay
// it, let it fail or end the process. Only Begin is none.
type Archive struct {
	Queue *Queue
	Of    *Process
	Name  string
	Inner archive.Store
	Disk  *Disk
}

var _ archive.Store = (*Archive)(nil)

func (s *Archive) write(ctx context.Context, what string, call func() error) error {
	return change(ctx, s.Queue, s.Of, s.Disk, "archive "+s.Name+" "+what, call)
}

func (s *Archive) read(ctx context.Context, what string) error {
	return look(ctx, s.Queue, s.Of, "archive "+s.Name+" "+what)
}

// simDraft is a segment that is being stored.
type simDraft struct {
	archive.Draft
	store *Archive
	what  string
}

// Begin implements archive.Store. It is no crossing, but Add and Commit of the draft are.
func (s *Archive) Begin(ctx context.Context, segment uint64) (archive.Draft, error) {
	if s.Of.isDead() {
		return nil, ErrDead
	}
	d, err := s.Inner.Begin(ctx, segment)
	return &simDraft{d, s, fmt.Sprint(segment)}, err
}

// Add implements archive.Draft.
func (d *simDraft) Add(ctx context.Context, object []byte) (at uint64, err error) {
	err = d.store.write(ctx, "add "+d.what, func() (err error) {
		at, err = d.Draft.Add(context.WithoutCancel(ctx), object)
		return err
	})
	return at, err
}

// Commit implements archive.Draft.
func (d *simDraft) Commit(ctx context.Context) (name string, err error) {
	err = d.store.write(ctx, "commit "+d.what, func() (err error) {
		name, err = d.Draft.Commit(context.WithoutCancel(ctx))
		return err
	})
	return name, err
}

// Get implements archive.Store.
func (s *Archive) Get(ctx context.Context, name string, at uint64, n int64) ([]byte, error) {
	if err := s.read(ctx, fmt.Sprintf("get %s %d", name, at)); err != nil {
		return nil, err
	}
	return s.Inner.Get(ctx, name, at, n)
}

// Last implements archive.Store.
func (s *Archive) Last(ctx context.Context, name string) ([]byte, uint64, error) {
	if err := s.read(ctx, "last "+name); err != nil {
		return nil, 0, err
	}
	return s.Inner.Last(ctx, name)
}

// Names implements archive.Store.
func (s *Archive) Names(ctx context.Context) (map[string]uint64, error) {
	if err := s.read(ctx, "names"); err != nil {
		return nil, err
	}
	return s.Inner.Names(ctx)
}

// Remove implements archive.Store.
func (s *Archive) Remove(ctx context.Context, name string) error {
	return s.write(ctx, "remove "+name, func() error { return s.Inner.Remove(context.WithoutCancel(ctx), name) })
}

// Catalog implements archive.Store.
func (s *Archive) Catalog(ctx context.Context) ([]byte, uint64, error) {
	if err := s.read(ctx, "catalog"); err != nil {
		return nil, 0, err
	}
	return s.Inner.Catalog(ctx)
}

// ReplaceCatalog implements archive.Store.
func (s *Archive) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	return s.write(ctx, fmt.Sprintf("catalog behind %d", version), func() error {
		return s.Inner.ReplaceCatalog(context.WithoutCancel(ctx), version, content)
	})
}
