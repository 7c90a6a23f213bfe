package sim

import (
	"context"
	"fmt"

	"quartet/pkg/journal/snapshot"
)

// Snapshots is a store of snapshots as one process sees it: each call is a crossing, and so is the answer of one that changes something.
type Snapshots struct {
	Queue *Queue
	Of    *Process
	Name  string
	Inner snapshot.Store
	Disk  *Disk
}

var _ snapshot.Store = (*Snapshots)(nil)

// writeFaults are those of a call that stores or removes something: it is lost, or its answer is.
var writeFaults = []Outcome{Lost, Unanswered}

// change parks a call that changes something, and calls it unless it is lost. A call that needs room is lost if disk is full; nil: it needs none.
func change(ctx context.Context, q *Queue, of *Process, disk *Disk, edge string, call func() error) error {
	o, err := q.Park(ctx, Crossing{Edge: edge, Of: of, Faults: writeFaults})
	if err != nil {
		return err
	}
	if disk != nil && disk.Full() && o != Died {
		o = Lost
	}
	switch o {
	case Died:
		return ErrDead
	case Kept:
		_ = call()
		return ErrDead
	case Lost:
		return ErrNoAnswer
	case Unanswered:
		_ = call()
		return ErrNoAnswer
	default:
		return call()
	}
}

// look parks a call that changes nothing. An error means that it is not made.
func look(ctx context.Context, q *Queue, of *Process, edge string) error {
	o, err := q.Park(ctx, Crossing{Edge: edge, Of: of, Faults: readFaults})
	switch {
	case err != nil:
		return err
	case o == Died || o == Kept:
		return ErrDead
	case o == Lost:
		return ErrNoAnswer
	}
	return nil
}

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
	return s.write(ctx, fmt.Sprintf("remove %v", numbers), func() error { return s.Inner.Remove(context.WithoutCancel(ctx), numbers) })
}
