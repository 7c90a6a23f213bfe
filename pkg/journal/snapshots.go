package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
	"quartet/pkg/resident"
)

// snapshots says when snapshots are due and written. Only the loop uses due, whole and last.
type snapshots struct {
	due   bool                          // one is to be cut; commands wait until all that was applied is durable
	whole bool                          // the next one has all pages, and replaces all snapshots before it
	busy  atomic.Pointer[chan struct{}] // set while one is being written; the channel is closed when that has ended
	last  time.Time                     // of the last cut
	retry atomic.Pointer[time.Time]     // after a failure: none is due before this time
	idle  sync.WaitGroup
}

// snapshotRetry is for how long after a failed snapshot no other one is due.
const snapshotRetry = 10 * time.Second

// errNotAnnounced means that the log does not have the frame that makes a snapshot valid.
var errNotAnnounced = errors.New("journal: no frame of the log announces the snapshot")

// errReplaced means that a snapshot could not be finished because the partition reloaded.
var errReplaced = errors.New("journal: the state was loaded again")

// unusable reports whether an error of a load may be one of the snapshot from which it began.
func unusable(err error) bool {
	var replay *replayError
	return errors.Is(err, errNotAnnounced) || errors.Is(err, snapshot.ErrNoObject) || errors.As(err, &replay)
}

// storedSnapshots returns the snapshots of the partition, the newest first; none if the partition writes none. It
// retries as readStore does.
func (p *Partition[S]) storedSnapshots(ctx context.Context) (stored []*snapshot.Snapshot, err error) {
	if p.cfg.Snapshots == nil || snapshot.NewTracker(p.cfg.New()) == nil {
		return nil, nil
	}
	err = p.readStore(ctx, func() (err error) {
		stored, err = snapshot.Stored(ctx, p.cfg.Snapshots, framelog.PartitionName(p.cfg.Plane, p.cfg.Partition))
		return err
	})
	return stored, err
}

// coreFrom returns a core with the state of the snapshot from[0]; an empty core if from is empty. It retries as
// readStore does. snapshot.ErrNoObject means that the snapshot cannot be used. Unless there is an error, the caller
// must release the core.
func (p *Partition[S]) coreFrom(ctx context.Context, from []*snapshot.Snapshot) (c *core[S], err error) {
	if len(from) == 0 {
		return newCore(&p.cfg), nil
	}
	err = p.readStore(ctx, func() error {
		c = newCore(&p.cfg)
		err := c.restore(ctx, p.cfg.Snapshots, from)
		if err != nil {
			c.release()
		}
		return err
	})
	return c, err
}

// readStore calls read, with pauses, until it returns nil or snapshot.ErrNoObject, and returns that. After any other
// error it returns ErrNotHeld if the lease is not held any more, or the error of ctx if that ends during a pause.
func (p *Partition[S]) readStore(ctx context.Context, read func() error) error {
	pacer := framelog.NewPacer()
	for {
		err := read()
		switch {
		case err == nil || errors.Is(err, snapshot.ErrNoObject):
			return err
		case !p.held():
			return ErrNotHeld
		}
		p.cfg.Logger.Info("journal: the store of snapshots cannot be read yet", zap.Error(err))
		if pacer.Wait(ctx) != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// restore reads the snapshot from[0] into an empty core; from[1:] are older ones, which are kept beside it. After an
// error, c is restored in part and must be released.
func (c *core[S]) restore(ctx context.Context, store snapshot.Store, from []*snapshot.Snapshot) error {
	m := from[0].Manifest
	c.end, c.applied, c.generation = from[0].End, from[0].End.WalSeq, m.GetGeneration()
	c.erasedThrough, c.erasedRecorded = m.GetErasedThrough(), m.GetErasedThrough()
	if err := c.erased.Restore(m.GetErased()); err != nil {
		return fmt.Errorf("%w: %w", snapshot.ErrNoObject, err)
	}
	for _, stored := range m.GetPositions() {
		pos := c.position(sourceKey{stored.GetPlane(), int(stored.GetPartition())})
		pos.seq, pos.line = stored.GetSequence(), int(stored.GetLine())
		var err error
		if pos.consumed, err = framelog.ParseEnd(stored.GetConsumed()); err != nil {
			return fmt.Errorf("%w: %w", snapshot.ErrNoObject, err)
		}
	}
	base, err := snapshot.Read(ctx, store, from[0], from[1:], restoring[S]{c.track, c})
	if err != nil {
		return err
	}
	c.track.Restored(from[0].Ref, base, c.extent())
	return nil
}

// restoring is a core into which a snapshot is read.
type restoring[S State] struct {
	*snapshot.Tracker
	core *core[S]
}

// AddRequest implements snapshot.Into. A time that is in the future, since the writer's clock was ahead, becomes now.
func (r restoring[S]) AddRequest(k requests.Key, e requests.Entry) {
	e.Unix = uint32(r.core.ages.Of(time.Unix(int64(e.Unix), 0)).Unix())
	r.core.memory.Add(k, e)
}

// AddPage implements snapshot.Into.
func (r restoring[S]) AddPage(o snapshot.Owner, page proto.Message) error {
	err := r.Tracker.AddPage(o, page)
	r.core.evictor.PageAdded()
	return err
}

// AddFrame implements snapshot.Into.
func (r restoring[S]) AddFrame(f snapshot.Frame) { r.core.frames.Add(f.WalSeq, f.Seq) }

// extent returns how many additions to the request memory and entries of the index of frames there were so far.
func (c *core[S]) extent() snapshot.Extent {
	return snapshot.Extent{Requests: c.memory.Additions(), Frames: c.frames.Len()}
}

// loadedFrom returns the number of the snapshot from which the core was loaded, 0 if it was read from the log alone.
func (c *core[S]) loadedFrom() uint64 {
	if c.track == nil {
		return 0
	}
	return c.track.Begins.Snapshot
}

// quietFrames is below how many frames a load without a snapshot is logged at level debug only.
const quietFrames = 1000

// reportLoaded logs from which snapshot a core was loaded, and how many frames behind it were read. It also lets the
// segments be archived that no kept snapshot needs.
func (p *Partition[S]) reportLoaded(c *core[S], frames int) {
	p.roller.Below(c.track.Base().Needed())
	if t := c.track; t != nil && t.Announced != t.Begins && t.Announced.Snapshot > 0 {
		p.cfg.Logger.Warn("journal: the newest snapshot is missing or damaged; an older one was read, or the log alone",
			zap.Uint64("snapshot", t.Announced.Snapshot))
	}
	level := zap.InfoLevel
	if c.loadedFrom() == 0 && frames < quietFrames {
		level = zap.DebugLevel
	}
	p.cfg.Logger.Log(level, "journal: loaded", zap.Uint64("snapshot", c.loadedFrom()), zap.Int("frames", frames))
}

// checkRestored returns an error if a core that began at a snapshot differs from that of the whole log. It returns nil
// too if the log cannot be read, or does not lead to the end of c. It is for tests.
func (p *Partition[S]) checkRestored(ctx context.Context, c *core[S]) error {
	// Replay the log up to the end of c.
	whole := newCore(&p.cfg)
	whole.skip = c.erased
	defer whole.release()
	err := p.cfg.Log.Scan(ctx, 1, func(seq uint64, f framelog.Frame) error {
		if seq > c.end.Seq {
			return nil
		}
		return whole.replay(p.cfg.Registry, seq, f, nil)
	})

	switch {
	case err != nil || whole.end != c.end:
		return nil // the log cannot be read now
	case whole.applied != c.applied || whole.generation != c.generation || !whole.frames.Equal(&c.frames):
		return fmt.Errorf("journal: %s restored: wal_seq %d, generation %d, %d frames; the log has %d, %d, %d", c.name,
			c.applied, c.generation, c.frames.Len(), whole.applied, whole.generation, whole.frames.Len())
	}
	var differs error
	whole.memory.Since(0, func(k requests.Key, e requests.Entry) {
		if got, ok := c.memory.Lookup(k, time.Unix(int64(e.Unix), 0)); !ok || got.First != e.First ||
			got.Args != e.Args || got.Count != e.Count {
			differs = fmt.Errorf("journal: %s restored: request %x is %v, and in the log %v", c.name, k, got, e)
		}
	})
	return cmp.Or(differs, p.cfg.CheckRestored(c.state, whole.state))
}

// checkSnapshot makes a snapshot due if SnapshotBytes were written since the last one, or if a sixteenth of that was
// written and SnapshotTerm has passed. It makes none due while one is being written, while the store has no room
// outside its reserve, in the pause after a failed one, or if the state is not tracked or has a quarantined line.
func (p *Partition[S]) checkSnapshot() {
	t, s := p.core.track, &p.snapshots
	if t == nil || t.Damaged || s.busy.Load() != nil || t.Bytes.Load() < p.cfg.SnapshotBytes/16 ||
		p.cfg.Room.Full() {
		return
	}
	now := p.cfg.Mono()
	if s.last.IsZero() {
		s.last = now
	}
	if retry := s.retry.Load(); retry != nil && now.Before(*retry) {
		return
	}
	s.due = t.Bytes.Load() >= p.cfg.SnapshotBytes || now.Sub(s.last) >= p.cfg.SnapshotTerm
}

// cutDueSnapshot begins a snapshot if one is due and all that was applied is durable. Commands wait for that, until the
// frames that were begun are written. The snapshot itself is written by another goroutine while commands run.
func (p *Partition[S]) cutDueSnapshot() {
	l, s, c := &p.loop, &p.snapshots, p.core
	if !s.due || len(l.frames) > 0 || l.sending || l.pendingReload != nil {
		return
	}
	s.due, s.last = false, p.cfg.Mono()
	t := c.track
	if t == nil || c.applied != c.end.WalSeq { // none are written, or the log does not end where the state does
		return
	}

	if s.whole {
		p.mu.Lock()
		t.StartOver()
		p.mu.Unlock()
		s.whole = false
	}

	// Copy what belongs to the loop: positions, and what is new in the request memory and the index of frames.
	n := snapshot.Cut{
		Partition: c.name, End: c.end, Generation: c.generation, At: p.cfg.Now(), Now: p.cfg.ages.Now(),
		Erased: c.erased.Encode(), ErasedThrough: c.erasedThrough,
	}
	c.memory.Since(t.Has().Requests, func(k requests.Key, e requests.Entry) {
		n.Requests = append(n.Requests, snapshot.Request{Key: k, Entry: e})
	})
	c.frames.Since(t.Has().Frames, func(walSeq, seq uint64) {
		n.Frames = append(n.Frames, snapshot.Frame{WalSeq: walSeq, Seq: seq})
	})
	for k, pos := range c.positions {
		n.Positions = append(n.Positions, &snapshotv1.Position{
			Plane: k.plane, Partition: int32(k.partition), Sequence: pos.seq, Line: int32(pos.line),
			Consumed: pos.consumed.String(),
		})
	}
	slices.SortFunc(n.Positions, func(a, b *snapshotv1.Position) int {
		return cmp.Or(cmp.Compare(a.GetPlane(), b.GetPlane()), cmp.Compare(a.GetPartition(), b.GetPartition()))
	})

	p.mu.Lock()
	began := t.Begin(n, c.extent())
	p.mu.Unlock()
	done := make(chan struct{})
	s.busy.Store(&done)
	s.idle.Go(func() {
		p.writeSnapshot(c, began)
		s.busy.Store(nil)
		close(done)
	})
}

// SettleSnapshot waits until a snapshot that is being written is announced or has failed. It returns nil at once if
// none is being written, and the error of ctx if that ends first.
func (p *Partition[S]) SettleSnapshot(ctx context.Context) error {
	done := p.snapshots.busy.Load()
	if done == nil {
		return nil
	}
	select {
	case <-*done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeSnapshot writes and announces the snapshot of a cut of c, and removes older ones. If that fails, it logs the
// error, and the next snapshot has the changes. It runs beside the loop, and only once at a time (snapshots.busy).
func (p *Partition[S]) writeSnapshot(c *core[S], n *snapshot.PageCut) {
	t, began := c.track, p.cfg.Mono()
	d := snapshot.Begin(p.cfg.Snapshots, t.Base(), t.Announced.Snapshot)
	s, base, err := p.draft(d, c, n)
	if err == nil {
		err = p.announce(c, s.Ref)
	}
	if errors.Is(err, resident.ErrUnreadable) {
		err = cmp.Or(p.awaitReload(p.ctx, err), errReplaced)
	}

	// Record what the store has now.
	p.mu.Lock()
	if err == nil && p.core == c {
		t.Written(n, base())
	} else {
		t.Failed(n)
	}
	p.mu.Unlock()
	if err == nil {
		p.metrics.Snapshot(d.Pages(), d.Bytes(), p.cfg.Mono().Sub(began))
		p.cfg.Room.Wrote(int(d.Bytes()))
		p.roller.Below(t.Base().Needed())
		err = t.Clean(p.ctx, p.cfg.Snapshots, &p.mu)
	}

	switch {
	case errors.Is(err, snapshot.ErrNoObject):
		p.mu.Lock()
		t.StartOver()
		p.mu.Unlock()
		p.cfg.Logger.Warn("journal: the store of snapshots lost some of what it had; the next snapshot is a whole one",
			zap.Error(err))
	case err != nil && p.ctx.Err() == nil:
		retry := p.cfg.Mono().Add(snapshotRetry)
		p.snapshots.retry.Store(&retry)
		p.cfg.Logger.Warn("journal: a snapshot was not written, or older ones not removed; it is tried again",
			zap.Error(err))
	}
}

// cutBatch is how many pages are taken at a time while commands wait. The largest page of an agent takes 0.3 ms.
const cutBatch = 16

// draft stores the pages of a cut of c and its manifest. It returns the snapshot, and a function that returns the Base
// for the next one and must be called only if the snapshot is announced. It takes the pages in batches, so that
// commands run in between. It returns errReplaced if the partition was reloaded.
func (p *Partition[S]) draft(d *snapshot.Draft, c *core[S], n *snapshot.PageCut) (
	*snapshot.Snapshot, func() *snapshot.Base, error,
) {
	for batch := range slices.Chunk(n.Owners(), cutBatch) {
		p.mu.Lock()
		if p.core != c {
			p.mu.Unlock()
			return nil, nil, errReplaced
		}
		var taken []snapshot.OwnerPage
		err := snapshot.Guarded(func() { taken = c.track.Take(n, batch) })
		p.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		for _, page := range taken {
			if err := d.Add(p.ctx, page.Owner, page.Page); err != nil {
				return nil, nil, err
			}
		}
	}
	return d.Finish(p.ctx, n.Cut)
}

// announce writes snapshot_taken, which makes the snapshot of the core cut valid, and returns once it is durable. It
// returns errReplaced if the partition was reloaded.
func (p *Partition[S]) announce(cut *core[S], ref snapshot.Ref) error {
	c := &command[S]{method: "snapshot", done: make(chan struct{})}
	c.decide = func(S, Env) ([]*Event, error) {
		if p.core != cut {
			return nil, errReplaced
		}
		return []*Event{{Type: TypeSnapshotTaken, Payload: snapshot.Announcement(ref)}}, nil
	}
	if err := p.run(p.ctx, c); err != nil {
		return err
	}
	return c.err
}
