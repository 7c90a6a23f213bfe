package engine

import (
	"context"
	"fmt"

	"quartet/pkg/journal/snapshot"
)

// Snapshots is a store of snapshots as one process sees it: each call is a crossing. A call that changes something,
// or only its answer, may be lost.
type Snapshots struct {
	Queue *Queue
	Of    *Process
	Name  string
	Inner snapshot.Store
	Disk  *Disk
}

var _ snapshot.Store = (*Snapshots)(nil)

func (s *Snapshots) write(ctx context.Context, what string, call func() error) error {
	return change(ctx, s.Queue, s.Of, s.Disk, "snapshots "+s.Name+" "+what, call)
}

func (s *Snapshots) read(ctx context.Context, what string) error {
	return look(ctx, s.Queue, s.Of, "snapshots "+s.Name+" "+what)
}

// Put implements snapshot.Store.
func (s *Snapshots) Put(ctx context.Context, objects [][]byte) (numbers []uint64, err error) {
	err = s.write(ctx, fmt.Sprintf("put %d", len(objects)), func() (err error) {
		numbers, err = s.Inner.Put(context.WithoutCancel(ctx), objects)
		return err
	})
	return numbers, err
}

// PutManifest implements snapshot.Store.
func (s *Snapshots) PutManifest(ctx context.Context, slot int, manifest []byte) (number uint64, err error) {
	err = s.write(ctx, fmt.Sprintf("put manifest %d", slot), func() (err error) {
		number, err = s.Inner.PutManifest(context.WithoutCancel(ctx), slot, manifest)
		return err
	})
	return number, err
}

// Get implements snapshot.Store.
func (s *Snapshots) Get(ctx context.Context, number uint64) ([]byte, error) {
	if err := s.read(ctx, fmt.Sprintf("get %d", number)); err != nil {
		return nil, err
	}
	return s.Inner.Get(ctx, number)
}

// Manifests implements snapshot.Store.
func (s *Snapshots) Manifests(ctx context.Context) (map[uint64][]byte, error) {
	if err := s.read(ctx, "manifests"); err != nil {
		return nil, err
	}
	return s.Inner.Manifests(ctx)
}

// Numbers implements snapshot.Store.
func (s *Snapshots) Numbers(ctx context.Context) ([]uint64, error) {
	if err := s.read(ctx, "numbers"); err != nil {
		return nil, err
	}
	return s.Inner.Numbers(ctx)
}

// Remove implements snapshot.Store.
func (s *Snapshots) Remove(ctx context.Context, numbers []uint64) error {
	return s.write(ctx, fmt.Sprintf("remove %v", numbers),
		func() error { return s.Inner.Remove(context.WithoutCancel(ctx), numbers) })
}
