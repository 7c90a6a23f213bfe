package journal

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Share is the range of a plane's partitions that a process holds.
type Share struct {
	First, Count int
	Of           int // number of partitions of the plane
}

// WholeShare returns the share of all n partitions of a plane.
func WholeShare(n int) Share { return Share{Count: n, Of: n} }

// SingleShare returns the share of a single partition of a plane with n.
func SingleShare(partition, n int) Share { return Share{First: partition, Count: 1, Of: n} }

func (h Share) validate() error {
	if h.First < 0 || h.Count < 1 || h.First+h.Count > h.Of {
		return fmt.Errorf("partitions: %d partitions from %d on of %d; there must be at least 1, and no more than "+
			"there are", h.Count, h.First, h.Of)
	}
	return nil
}

// PartitionOf returns the partition among n that holds the state of an owner: an agent, or for boards a
// session. It depends on the arguments only, so changing the number of partitions is an offline operation.
func PartitionOf(namespace, owner string, n int) int {
	if n <= 1 {
		return 0
	}
	h := fnv.New64a()
	// A hash never fails to write. The zero byte keeps ("ab","c") and ("a","bc") apart.
	_, _ = h.Write([]byte(namespace))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(owner))
	return int(h.Sum64() % uint64(n))
}

// Partitions is the partitions of one plane that are held together.
type Partitions[S State] struct {
	share   Share
	parts   []*Partition[S]
	foreign *Partition[S] // refuses everything; for owners in other partitions
}

// OpenShare opens the partitions of a share, as many at a time as there are processors, since loading is computing.
// Before that it calls config for each partition, in order. A partition whose log is damaged refuses everything, see
// journal.Damaged. If another one cannot be opened, OpenShare closes those that are open and returns the error.
func OpenShare[S State](ctx context.Context, share Share, config func(partition int) (Config[S], error)) (
	*Partitions[S], error,
) {
	if err := share.validate(); err != nil {
		return nil, err
	}
	configs := make([]Config[S], share.Count)
	for i := range configs {
		var err error
		if configs[i], err = config(share.First + i); err != nil {
			return nil, err
		}
		configs[i].Partition = share.First + i
	}

	parts := make([]*Partition[S], share.Count)
	g, open := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, cfg := range configs {
		g.Go(func() (err error) {
			if parts[i], err = Open(open, cfg); err != nil && IsDamage(err) {
				parts[i], err = Damaged(cfg, err), nil
			}
			return err
		})
	}
	err := g.Wait()

	s := &Partitions[S]{share: share, parts: slices.DeleteFunc(parts, func(p *Partition[S]) bool { return p == nil })}
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	s.foreign = NotHeld[S](configs[0])
	return s, nil
}

// For returns the partition that holds an owner's state. If that is not in the share, it returns one that
// refuses everything with journal.ErrNotHeld.
func (s *Partitions[S]) For(namespace, owner string) *Partition[S] {
	i := PartitionOf(namespace, owner, s.share.Of) - s.share.First
	if i < 0 || i >= len(s.parts) {
		return s.foreign
	}
	return s.parts[i]
}

// All returns the partitions in order. The slice must not be changed.
func (s *Partitions[S]) All() []*Partition[S] { return s.parts }

// Health returns the first error of a partition, or nil.
func (s *Partitions[S]) Health() error {
	for _, p := range s.parts {
		if err := p.Health(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes all partitions concurrently, each as Partition.Close does, and joins their errors. It is idempotent.
func (s *Partitions[S]) Close(ctx context.Context) error {
	errs := make([]error, len(s.parts))
	done := make(chan struct{})
	for i, p := range s.parts {
		go func() {
			errs[i] = p.Close(ctx)
			done <- struct{}{}
		}()
	}
	for range s.parts {
		<-done
	}
	return errors.Join(errs...)
}
