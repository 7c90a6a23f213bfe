package journaltest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"quartet/pkg/journal/snapshot"
)

// MemSnapshots keeps the objects of one partition. NewMemSnapshots returns an empty one.
type MemSnapshots struct {
	// Fail, if set, is called before each call with its name, and its error is returned. Tests only.
	Fail func(call string) error

	mu      sync.Mutex
	last    uint64
	objects map[uint64][]byte
	slots   map[int]uint64
}

var _ snapshot.Store = (*MemSnapshots)(nil)

// NewMemSnapshots returns an empty store.
func NewMemSnapshots() *MemSnapshots {
	return &MemSnapshots{objects: map[uint64][]byte{}, slots: map[int]uint64{}}
}

// begin locks the store, or returns the error of Fail.
func (s *MemSnapshots) begin(ctx context.Context, call string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.Fail != nil {
		if err := s.Fail(call); err != nil {
			return err
		}
	}
	s.mu.Lock()
	return nil
}

// Put implements snapshot.Store.
func (s *MemSnapshots) Put(ctx context.Context, objects [][]byte) ([]uint64, error) {
	if err := s.begin(ctx, "put"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var numbers []uint64
	for _, o := range objects {
		numbers = append(numbers, s.put(o))
	}
	return numbers, nil
}

func (s *MemSnapshots) put(o []byte) uint64 {
	s.last++
	s.objects[s.last] = bytes.Clone(o)
	return s.last
}

// PutManifest implements snapshot.Store.
func (s *MemSnapshots) PutManifest(ctx context.Context, slot int, manifest []byte) (uint64, error) {
	if err := s.begin(ctx, "put manifest"); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	s.slots[slot] = s.put(manifest)
	return s.last, nil
}

// Get implements snapshot.Store.
func (s *MemSnapshots) Get(ctx context.Context, number uint64) ([]byte, error) {
	if err := s.begin(ctx, "get"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	o, has := s.objects[number]
	if !has {
		return nil, fmt.Errorf("%w: %d", snapshot.ErrNoObject, number)
	}
	return bytes.Clone(o), nil
}

// Manifests implements snapshot.Store.
func (s *MemSnapshots) Manifests(ctx context.Context) (map[uint64][]byte, error) {
	if err := s.begin(ctx, "manifests"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	all := map[uint64][]byte{}
	for _, number := range s.slots {
		if o, has := s.objects[number]; has {
			all[number] = bytes.Clone(o)
		}
	}
	return all, nil
}

// Numbers implements snapshot.Store. It returns the numbers of all objects and manifests, in ascending order.
func (s *MemSnapshots) Numbers(ctx context.Context) ([]uint64, error) {
	if err := s.begin(ctx, "numbers"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects)), nil
}

// Remove implements snapshot.Store.
func (s *MemSnapshots) Remove(ctx context.Context, numbers []uint64) error {
	if err := s.begin(ctx, "remove"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, n := range numbers {
		delete(s.objects, n)
	}
	return nil
}

// Damage changes a byte of an object, or removes it if at is beyond its end. Tests only.
func (s *MemSnapshots) Damage(number uint64, at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[number]; at < len(o) {
		o[at] ^= 1
	} else {
		delete(s.objects, number)
	}
}
