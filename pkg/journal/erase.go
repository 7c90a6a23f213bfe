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
	DeletedBefore(cutoff time.Time) []snapshot.Owner
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
	if erasable, ok := any(c.state).(Erasable); ok {
		isOwner := func(namespace, id string) bool { return c.erased.HashOf(namespace, id) == owner }
		erasable.Erase(isOwner, c.track.Touch)
	}
	return nil
}

// Erase erases the owners that were deleted before cutoff from all that the partition stores, and returns how many
// lines it erased. First it calls eraseElsewhere, if not nil, which must remove everything else that is stored of an
// owner. Then:
//
//  1. owner_erased, in the journal, removes them from the state and keeps a hash of each.
//  2. The segment with their last lines is closed, and a snapshot of all pages is written, which replaces all others.
//  3. All closed segments are archived, the owners' lines in the archive are erased, and eraseElsewhere is called
//     again.
//  4. A snapshot records that this was done.
//
// If a call fails, the next one continues. If there is nothing to erase, Erase returns 0. Without an archive or
// snapshots, or with a damaged line, it returns ErrNotErasable. Calls must not overlap.
func (p *Partition[S]) Erase(ctx context.Context, cutoff time.Time,
	eraseElsewhere func(ctx context.Context, owner snapshot.Owner) error,
) (lines int64, err error) {
	// Determine what is left to do.
	owners, err := p.deletedOwners(ctx, cutoff)
	if err != nil {
		return 0, err
	}
	c, through, linesLeft, unrecorded := p.erasureState()
	switch {
	case len(owners) == 0 && !unrecorded:
		return 0, nil
	case len(owners) == 0 && !linesLeft:
		return 0, p.recordErased(ctx, c, through)
	case c.track == nil || !p.roller.Archives():
		return 0, ErrNotErasable
	case c.track.Damaged:
		return 0, fmt.Errorf("%w: no snapshot is written of a partition with a damaged line; quartet repair mends it",
			ErrNotErasable)
	}

	// Step 1: remove the owners from the state.
	if eraseElsewhere == nil {
		eraseElsewhere = func(context.Context, snapshot.Owner) error { return nil }
	}
	for _, o := range owners {
		if err := eraseElsewhere(ctx, o); err != nil {
			return 0, err
		}
	}
	if len(owners) > 0 {
		if err := p.writeErased(ctx, owners); err != nil {
			return 0, err
		}
		if c, through, linesLeft, _ = p.erasureState(); !linesLeft {
			return 0, nil // another state was loaded, which records that the lines of all its erased owners are erased
		}
	}

	// Step 2: after it, neither a snapshot nor the segment that is being written has the owners.
	lastSegment, err := p.closeSegment(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.snapshotNow(ctx, allPages); err != nil {
		return 0, err
	}

	// Step 3: archive, and erase in the archive.
	if err := p.roller.Settle(ctx); err != nil {
		return 0, err
	}
	p.mu.RLock()
	erased := c.erased.Clone()
	p.mu.RUnlock()
	lines, err = p.roller.Erase(ctx, lastSegment, archive.Erasing{Owner: erased.Has, Line: erased.HasOwnerOf})
	if err != nil {
		return lines, err
	}
	for _, o := range owners { // until its lines were erased, something may have been copied from them again
		if err := eraseElsewhere(ctx, o); err != nil {
			return lines, err
		}
	}

	// Step 4: record it, unless another state was loaded, with which the next call repeats the erasure.
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

// recordErased writes a snapshot, which records c.erasedThrough, and then sets c.erasedRecorded to through or more. It
// returns errReplaced if the partition was reloaded.
func (p *Partition[S]) recordErased(ctx context.Context, c *core[S], through uint64) error {
	if err := p.snapshotNow(ctx, changedPages); err != nil {
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

// deletedOwners returns the owners that were deleted before cutoff and not erased yet.
func (p *Partition[S]) deletedOwners(ctx context.Context, cutoff time.Time) ([]snapshot.Owner, error) {
	owners, _, err := View(ctx, p, func(s S) ([]snapshot.Owner, error) {
		if erasable, ok := any(s).(Erasable); ok {
			return erasable.DeletedBefore(cutoff), nil
		}
		return nil, nil
	})
	return owners, err
}

// erasureState returns the core and the wal_seq of its last owner_erased. linesLeft says that lines of erased owners
// may still be stored, and unrecorded that no snapshot records their removal.
func (p *Partition[S]) erasureState() (c *core[S], through uint64, linesLeft, unrecorded bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	through = p.core.erased.Last()
	return p.core, through, through > p.core.erasedThrough, through > p.core.erasedRecorded
}

// writeErased writes owner_erased for each of the owners that has none yet, and returns once these are durable.
func (p *Partition[S]) writeErased(ctx context.Context, owners []snapshot.Owner) error {
	secret := p.cfg.NewSecret() // the key of the hashes, unless the set of erased owners has one already
	for batch := range slices.Chunk(owners, erasedAtOnce) {
		err := p.internalCommand(ctx, "erase", func(S, Env) ([]*Event, error) {
			set := p.core.erased
			var events []*Event
			for _, o := range batch {
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

// internalCommand runs a command of the journal itself, and returns once the events of decide, or the state that it
// saw, are durable. decide runs in the loop, so it may use what belongs to the loop. If the error is not that of
// decide, decide may still run later.
func (p *Partition[S]) internalCommand(ctx context.Context, method string,
	decide func(S, Env) ([]*Event, error),
) error {
	c := &command[S]{method: method, frees: true, done: make(chan struct{}), decide: decide}
	if err := p.run(ctx, c); err != nil {
		return err
	}
	return c.err
}

// nextSegment returns the number of the segment in which the next frame will be.
func (p *Partition[S]) nextSegment(ctx context.Context) (uint64, error) {
	var n uint64
	err := p.internalCommand(ctx, "segment", func(S, Env) ([]*Event, error) {
		n = p.core.end.Segment
		return nil, nil
	})
	if err != nil { // the command may run later, and then write n
		return 0, err
	}
	return n, nil
}

// closeSegment closes the journal's last segment and returns its number. All that was durable before the call is in
// that segment or an earlier one.
func (p *Partition[S]) closeSegment(ctx context.Context) (uint64, error) {
	segment, err := p.nextSegment(ctx)
	if err != nil {
		return 0, err
	}
	for range closeAttempts {
		if err := p.roller.Close(ctx, segment); err != nil {
			return 0, err
		}
		err := p.internalCommand(ctx, "close_segment", func(S, Env) ([]*Event, error) {
			p.openEmptyFrame() // the writer closes the segment before it
			return nil, nil
		})
		if err != nil {
			return 0, err
		}
		if now, err := p.nextSegment(ctx); err != nil || now > segment {
			return segment, err
		}
	}
	return 0, fmt.Errorf("journal: segment %d could not be closed", segment)
}

// The argument of snapshotNow.
const (
	changedPages = false
	allPages     = true
)

// snapshotNow writes a snapshot and waits until it is announced. If whole is set (allPages), the snapshot has all
// pages, not only those that changed, and all other snapshots are removed.
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
	_, previous := newest()

	// Make a snapshot due, once none is being written.
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

	// A command that runs after it shows that the snapshot was begun. Wait until it is announced.
	if _, err := p.nextSegment(ctx); err != nil {
		return err
	}
	if err := p.SettleSnapshot(ctx); err != nil {
		return err
	}
	base, current := newest()
	switch {
	case current <= previous:
		return errors.New("journal: the snapshot was not written")
	case whole:
		return base.Clean(ctx, p.cfg.Snapshots)
	}
	return nil
}
