package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/snapshot"
)

// Erasable is a Paged state from which deleted owners can be erased, with everything that it has of them.
type Erasable interface {
	Paged
	// DeletedBefore returns the owners that were deleted before a time, with the namespace and agent id of their
	// events.
	DeletedBefore(before time.Time) []snapshot.Owner
	// Erase removes everything that the state has of the one deleted owner for which is returns true; nothing if there
	// is none. Before it changes a page, it calls touch with the page's owner. Like Apply it is pure.
	Erase(is func(namespace, id string) bool, touch func(snapshot.Owner))
	// UseErased gives an empty state the set of erased owners. The state must not change it, may read it under the same
	// lock as itself, and refuses new owners with names in it.
	UseErased(erased *event.ErasedSet)
}

// ErrNotErasable means that a partition has no archive or no snapshots, or a state of which nothing can be erased.
var ErrNotErasable = errors.New("journal: nothing can be erased without snapshots and an archive")

const (
	erasedAtOnce  = 8 // owners are removed from a state before other commands run
	closeAttempts = 3 // to close a segment: the closing frame may be refused, or a frame be on its way already
)

var errSnapshotBusy = errors.New("journal: a snapshot is being written")

// applyErased applies owner_erased: it adds the owner to erased, and erases it from the state.
func (c *core[S]) applyErased(walSeq uint64, payload *structpb.Struct) error {
	owner, err := c.erased.Add(walSeq, payload)
	if err != nil {
		return err
	}
	if of, can := any(c.state).(Erasable); can {
		of.Erase(func(namespace, id string) bool { return c.erased.HashOf(namespace, id) == owner }, c.track.Touch)
	}
	return nil
}

// Erase erases the owners that were deleted before a time from all that the partition stores, and returns how many
// lines it erased. First it calls elsewhere, if not nil, which must remove what else is stored of an owner. Then:
//
//  1. owner_erased, in the journal, removes them from the state and keeps a hash of each.
//  2. The segment with their last lines is closed, and a snapshot of all pages is written, which replaces all others.
//  3. All closed segments are archived, and the owners' lines in the archive are erased. elsewhere is called again.
//  4. A snapshot records that this was done.
//
// If a call fails, the next one continues. If there is nothing to erase, Erase returns 0. Calls must not overlap.
func (p *Partition[S]) Erase(ctx context.Context, before time.Time,
	elsewhere func(ctx context.Context, owner snapshot.Owner) error,
) (lines int64, err error) {
	owners, err := p.deleted(ctx, before)
	if err != nil {
		return 0, err
	}
	c, through, left, pending := p.unerased()
	switch {
	case len(owners) == 0 && !pending:
		return 0, nil
	case len(owners) == 0 && !left:
		return 0, p.recordErased(ctx, c, through)
	case c.track == nil || !p.roller.Archives():
		return 0, ErrNotErasable
	case c.track.Damaged:
		return 0, fmt.Errorf("%w: no snapshot is written of a partition with a damaged line; quartet repair mends it",
			ErrNotErasable)
	}
	if elsewhere == nil {
		elsewhere = func(context.Context, snapshot.Owner) error { return nil }
	}
	for _, o := range owners {
		if err := elsewhere(ctx, o); err != nil {
			return 0, err
		}
	}
	if len(owners) > 0 {
		if err := p.writeErased(ctx, owners); err != nil {
			return 0, err
		}
		if c, through, left, _ = p.unerased(); !left {
			return 0, nil // another state was loaded
		}
	}
	until, err := p.closeSegment(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.snapshotNow(ctx, true); err != nil {
		return 0, err
	}
	if err := p.roller.Settle(ctx); err != nil {
		return 0, err
	}
	p.mu.RLock()
	erased := c.erased.Clone()
	p.mu.RUnlock()
	if lines, err = p.roller.Erase(ctx, until, archive.Erasing{Owner: erased.Has, Line: erased.HasOwnerOf}); err !=
		nil {
		return lines, err
	}
	for _, o := range owners { // until its lines were erased, something may have been copied from them again
		if err := elsewhere(ctx, o); err != nil {
			return lines, err
		}
	}
	p.mu.Lock()
	same := p.core == c
	if same {
		c.erasedThrough = max(c.erasedThrough, through)
	}
	p.mu.Unlock()
	if !same {
		return lines, errReplaced
	}
	p.cfg.Logger.Info("journal: what deleted owners had is erased", zap.Int("owners", len(owners)),
		zap.Int64("lines", lines))
	return lines, p.recordErased(ctx, c, through)
}

// recordErased writes a snapshot, which records c.erasedThrough, and then sets c.erasedRecorded to through or more.
func (p *Partition[S]) recordErased(ctx context.Context, c *core[S], through uint64) error {
	if err := p.snapshotNow(ctx, false); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core != c {
		return errReplaced
	}
	c.erasedRecorded = max(c.erasedRecorded, through)
	return nil
}

// deleted returns the owners that were deleted before a time and not erased yet.
func (p *Partition[S]) deleted(ctx context.Context, before time.Time) ([]snapshot.Owner, error) {
	owners, _, err := View(ctx, p, func(s S) ([]snapshot.Owner, error) {
		if of, can := any(s).(Erasable); can {
			return of.DeletedBefore(before), nil
		}
		return nil, nil
	})
	return owners, err
}

// unerased returns the core and the wal_seq of its last owner_erased. left says that lines of erased owners may still
// be stored, and pending that no snapshot records their removal.
func (p *Partition[S]) unerased() (c *core[S], through uint64, left, pending bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	through = p.core.erased.Last()
	return p.core, through, through > p.core.erasedThrough, through > p.core.erasedRecorded
}

// writeErased writes owner_erased for each of some owners.
func (p *Partition[S]) writeErased(ctx context.Context, owners []snapshot.Owner) error {
	secret := p.cfg.NewSecret()
	for few := range slices.Chunk(owners, erasedAtOnce) {
		err := p.internalCommand(ctx, "erase", func(S, Env) ([]*Event, error) {
			set := p.core.erased // the loop's own
			var events []*Event
			for _, o := range few {
				if !set.Has(o.Namespace, o.ID) {
					events = append(events,
						&Event{Type: event.TypeOwnerErased, Payload: set.Payload(secret[:], o.Namespace, o.ID)})
				}
			}
			return events, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// internalCommand runs a command of the journal itself, and returns its error once what it wrote is durable.
func (p *Partition[S]) internalCommand(ctx context.Context, method string,
	decide func(S, Env) ([]*Event, error),
) error {
	c := &command[S]{method: method, frees: true, done: make(chan struct{}), decide: decide}
	if err := p.run(ctx, c); err != nil {
		return err
	}
	return c.err
}

// segment returns the number of the segment in which the next frame will be.
func (p *Partition[S]) segment(ctx context.Context) (uint64, error) {
	var n uint64
	err := p.internalCommand(ctx, "segment", func(S, Env) ([]*Event, error) {
		n = p.core.end.Segment // the loop's own
		return nil, nil
	})
	if err != nil { // the command may run later, and then write n
		return 0, err
	}
	return n, nil
}

// closeSegment closes the journal's last segment and returns its number. Only later frames are behind it.
func (p *Partition[S]) closeSegment(ctx context.Context) (uint64, error) {
	segment, err := p.segment(ctx)
	if err != nil {
		return 0, err
	}
	for range closeAttempts {
		if err := p.roller.Close(ctx, segment); err != nil {
			return 0, err
		}
		err := p.internalCommand(ctx, "close_segment", func(S, Env) ([]*Event, error) {
			p.frameFor(0, 0) // an empty frame, before which the segment is closed
			return nil, nil
		})
		if err != nil {
			return 0, err
		}
		if now, err := p.segment(ctx); err != nil || now > segment {
			return segment, err
		}
	}
	return 0, fmt.Errorf("journal: segment %d could not be closed", segment)
}

// snapshotNow writes a snapshot and waits until it is announced. If whole is set, the snapshot has all pages, not
// only those that changed, and all other snapshots are removed.
func (p *Partition[S]) snapshotNow(ctx context.Context, whole bool) error {
	newest := func() (*snapshot.Base, uint64) {
		p.mu.RLock()
		defer p.mu.RUnlock()
		base := p.core.track.Base()
		if s := base.Newest(); s != nil {
			return base, s.Snapshot
		}
		return base, 0
	}
	_, before := newest()
	for {
		if err := p.SettleSnapshot(ctx); err != nil {
			return err
		}
		err := p.internalCommand(ctx, "begin_snapshot", func(S, Env) ([]*Event, error) {
			if p.snapshots.busy.Load() != nil {
				return nil, errSnapshotBusy
			}
			p.snapshots.due, p.snapshots.whole = true, whole
			return nil, nil
		})
		if err == nil { // no command runs before it is begun
			break
		}
		if !errors.Is(err, errSnapshotBusy) {
			return err
		}
	}
	if _, err := p.segment(ctx); err != nil {
		return err
	}
	if err := p.SettleSnapshot(ctx); err != nil {
		return err
	}
	base, now := newest()
	switch {
	case now <= before:
		return errors.New("journal: the snapshot was not written")
	case whole:
		return base.Clean(ctx, p.cfg.Snapshots)
	}
	return nil
}
