package journal

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
)

// Set is the partitions of one plane in this process.
type Set[S State] struct {
	parts []*Partition[S]
}

// OpenSet opens n partitions of one plane. config gives the Config of each; it
// is called in order. If one fails, those opened before are closed.
func OpenSet[S State](ctx context.Context, n int, config func(partition int) (Config[S], error)) (*Set[S], error) {
	if n < 1 {
		return nil, fmt.Errorf("journal: %d partitions, at least 1 is needed", n)
	}
	s := &Set[S]{}
	for i := range n {
		cfg, err := config(i)
		if err == nil {
			cfg.Partition = i
			var p *Partition[S]
			if p, err = Open(ctx, cfg); err == nil {
				s.parts = append(s.parts, p)
				continue
			}
		}
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// For returns the partition that holds an owner's state: an agent, or for
// boards a session. The same owner has the same partition as long as their
// number stays; changing it is an offline command.
func (s *Set[S]) For(namespace, owner string) *Partition[S] {
	if len(s.parts) == 1 {
		return s.parts[0]
	}
	h := fnv.New64a()
	// A hash never fails to write. The zero byte keeps ("ab","c") and ("a","bc") apart.
	_, _ = h.Write([]byte(namespace))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(owner))
	return s.parts[h.Sum64()%uint64(len(s.parts))]
}

// All returns the partitions in order. The slice must not be changed.
func (s *Set[S]) All() []*Partition[S] { return s.parts }

// Health is the first trouble of a partition, or nil.
func (s *Set[S]) Health() error {
	for _, p := range s.parts {
		if err := p.Health(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes all partitions. It is idempotent.
func (s *Set[S]) Close(ctx context.Context) error {
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
