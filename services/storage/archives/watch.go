package archives

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/life"
)

const (
	// lookPeriod is how often a bucket is checked that could not be used the last time, and usablePeriod how often
	// one that could: each check costs a few requests.
	lookPeriod   = time.Minute
	usablePeriod = 5 * time.Minute
	// remembered is for how long a catalog is not read again for an overview.
	remembered = time.Minute
)

// Watch checks periodically whether the bucket can be used, and remembers the result, so that Err sends no request.
type Watch struct {
	life.Periodic
	bucket *Bucket
	logger *zap.Logger

	mu    sync.Mutex
	err   error     // the result of the last check
	until time.Time // when the next check is due after one without an error
}

// NewWatch returns a module that looks at a bucket.
func NewWatch(bucket *Bucket, logger *zap.Logger) *Watch {
	w := &Watch{bucket: bucket, logger: logger}
	w.Periodic = life.Periodic{Label: "archive", Period: lookPeriod, Do: w.look}
	return w
}

func (w *Watch) look(ctx context.Context) {
	now := clock.System().Now()
	if w.usable(now) {
		return
	}
	err := w.bucket.Check(ctx)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	was := w.err
	w.err, w.until = err, now.Add(usablePeriod)
	w.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		w.logger.Error("the bucket of the archive cannot be used; segments stay in the journals, and what is "+
			"archived cannot be read", zap.Error(err))
	case err == nil && was != nil:
		w.logger.Info("the bucket of the archive can be used again")
	}
}

// usable reports whether the bucket could be used a short time ago.
func (w *Watch) usable(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && now.Before(w.until)
}

// Err returns the error of the last check of the bucket; nil if it could be used, or was not checked yet.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Overview returns stores whose catalogs are read again only after a while, for those who look at all of them often.
type Overview struct {
	stores func(plane string, partition int) (archive.Store, error)

	mu  sync.Mutex
	all map[string]*rare
}

// NewOverview returns an Overview of stores.
func NewOverview(stores func(plane string, partition int) (archive.Store, error)) *Overview {
	return &Overview{stores: stores, all: map[string]*rare{}}
}

// Store returns the store of a partition.
func (o *Overview) Store(plane string, partition int) (archive.Store, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := framelog.PartitionName(plane, partition)
	if o.all[name] == nil {
		store, err := o.stores(plane, partition)
		if err != nil {
			return nil, err
		}
		o.all[name] = &rare{Store: store}
	}
	return o.all[name], nil
}

// rare is a store whose catalog is read rarely.
type rare struct {
	archive.Store
	mu      sync.Mutex
	until   time.Time
	content []byte
	version uint64
	err     error
}

// Catalog returns what the store returned last, also if that was an error, and asks the store only if that is older
// than remembered.
func (r *rare) Catalog(ctx context.Context) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := clock.System().Now(); !now.Before(r.until) {
		r.content, r.version, r.err = r.Store.Catalog(ctx)
		r.until = now.Add(remembered)
	}
	return r.content, r.version, r.err
}

// SegmentNames returns the names of the segments that are in the archive of a partition, by their numbers.
func SegmentNames(stores func(plane string, partition int) (archive.Store, error)) func(ctx context.Context,
	plane string, partition int) (map[uint64]string, error) {
	return func(ctx context.Context, plane string, partition int) (map[uint64]string, error) {
		store, err := stores(plane, partition)
		if err != nil {
			return nil, err
		}
		c, err := archive.Read(ctx, store, framelog.PartitionName(plane, partition))
		if err != nil {
			return nil, err
		}
		names := make(map[uint64]string, len(c.Segments))
		for _, s := range c.Segments {
			names[s.GetNumber()] = s.GetName()
		}
		return names, nil
	}
}
