package journal

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/pages"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
)

// tracker knows what of a state the newest snapshot does not have. A nil *tracker does nothing: no snapshots are written.
type tracker struct {
	paged     Paged
	touched   map[pages.Owner]struct{} // owners whose pages may have changed
	touch     func(pages.Owner)
	base      *snapshot.Base
	bytes     int64        // of the frames behind base
	requests  int          // additions to the request memory that base has
	frames    int          // entries of the index of frames that base has
	announced snapshot.Ref // by the last frame that announces one
	damaged   bool         // a line was quarantined: the pages do not say so
	cut       *cut         // from which a snapshot is being written
}

// cut is the state of a partition at a moment, from which a snapshot is written while the state goes on: the page of an owner is taken
// before the next event changes it.
type cut struct {
	snapshot.Cut
	bytes            int64
	requests, frames int                      // what base has once this is written
	all              []pages.Owner            // whose pages the snapshot writes
	left             map[pages.Owner]struct{} // whose pages were not taken
	taken            []takenPage              // and not yet written
}

// takenPage is the page of an owner as it was at a cut.
type takenPage struct {
	owner pages.Owner
	page  proto.Message
}

// snapshots is what a partition's loop knows of its snapshots.
type snapshots struct {
	due   bool                          // commands wait until all that was applied is durable; the loop's
	busy  atomic.Pointer[chan struct{}] // while one is written; closed then
	last  time.Time                     // of the last cut; the loop's
	retry atomic.Pointer[time.Time]
	idle  sync.WaitGroup
}

// snapshotRetry is how long no snapshot is tried after one has failed.
const snapshotRetry = 10 * time.Second

// errNotAnnounced means that the log does not have the frame that makes a snapshot valid.
var errNotAnnounced = errors.New("journal: no frame of the log announces the snapshot")

// errReplaced ends a snapshot of a state that was loaded again.
var errReplaced = errors.New("journal: the state was loaded again")

// newTracker returns the tracker of an empty state.
func newTracker(store snapshot.Store, state State) *tracker {
	paged, ok := state.(Paged)
	if store == nil || !ok {
		return nil
	}
	t := &tracker{paged: paged, touched: map[pages.Owner]struct{}{}, base: &snapshot.Base{}}
	t.touch = func(o pages.Owner) {
		t.touched[o] = struct{}{}
		if t.cut != nil {
			t.cut.take(t.paged, o)
		}
	}
	return t
}

// before notes whose pages an event may change, before it is applied.
func (t *tracker) before(ev *Event) {
	if t != nil {
		t.paged.Owners(ev, t.touch)
	}
}

// wrote counts the bytes of a frame.
func (t *tracker) wrote(n int) {
	if t != nil {
		t.bytes += int64(n)
	}
}

// damage notes that a line was quarantined.
func (t *tracker) damage() {
	if t != nil {
		t.damaged = true
	}
}

// take takes the page of an owner, if it is one of those that are left.
func (c *cut) take(state Paged, o pages.Owner) {
	if _, left := c.left[o]; left {
		delete(c.left, o)
		c.taken = append(c.taken, takenPage{o, state.Page(o)})
	}
}

// announcement returns the payload of snapshot_taken.
func announcement(r snapshot.Ref) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"snapshot": structpb.NewNumberValue(float64(r.Snapshot)),
		"manifest": structpb.NewNumberValue(float64(r.Number)),
		"hash":     structpb.NewStringValue(hex.EncodeToString(r.Hash[:])),
	}}
}

// announce reads what announcement returned.
func (t *tracker) announce(s *structpb.Struct) error {
	r := snapshot.Ref{Snapshot: uint64(s.GetFields()["snapshot"].GetNumberValue()), Number: uint64(s.GetFields()["manifest"].GetNumberValue())}
	hash, err := hex.DecodeString(s.GetFields()["hash"].GetStringValue())
	if err != nil || len(hash) != len(r.Hash) {
		return fmt.Errorf("%s has no hash", TypeSnapshotTaken)
	}
	if t != nil {
		copy(r.Hash[:], hash)
		t.announced = r
	}
	return nil
}

// unusable reports whether an error of a load may be one of the snapshot from which it began.
func unusable(err error) bool {
	var replay *replayError
	return errors.Is(err, errNotAnnounced) || errors.Is(err, snapshot.ErrNoObject) || errors.As(err, &replay)
}

// stored returns the snapshots of the partition, the newest first. It retries until ctx ends.
func (p *Partition[S]) stored(ctx context.Context) ([]*snapshot.Snapshot, error) {
	if newTracker(p.cfg.Snapshots, p.cfg.New()) == nil {
		return nil, nil
	}
	pacer := framelog.NewPacer()
	for {
		all, err := snapshot.Stored(ctx, p.cfg.Snapshots, framelog.PartitionName(p.cfg.Plane, p.cfg.Partition))
		if err == nil {
			return all, nil
		}
		p.cfg.Logger.Info("journal: the snapshots cannot be read yet", zap.Error(err))
		if !p.held() {
			return nil, ErrNotHeld
		}
		if pacer.Wait(ctx) != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// restored returns a core with the state of the first of some snapshots; an empty one if there are none. It retries until ctx ends, unless
// the snapshot cannot be read as one of this plane.
func (p *Partition[S]) restored(ctx context.Context, from []*snapshot.Snapshot) (*core[S], error) {
	if len(from) == 0 {
		return newCore(&p.cfg), nil
	}
	pacer := framelog.NewPacer()
	for {
		c := newCore(&p.cfg)
		err := c.restore(ctx, p.cfg.Snapshots, from)
		if err == nil {
			return c, nil
		}
		c.memory.Release()
		if !p.held() {
			return nil, ErrNotHeld
		}
		if errors.Is(err, snapshot.ErrNoObject) {
			return nil, err
		}
		p.cfg.Logger.Info("journal: the snapshot cannot be read yet", zap.Error(err))
		if pacer.Wait(ctx) != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// restore puts the first of some snapshots into an empty core.
func (c *core[S]) restore(ctx context.Context, store snapshot.Store, from []*snapshot.Snapshot) error {
	m := from[0].Manifest
	c.end, c.applied, c.generation = from[0].End, from[0].End.WalSeq, m.GetGeneration()
	for _, at := range m.GetPositions() {
		pos := c.position(sourceKey{at.GetPlane(), int(at.GetPartition())})
		pos.seq, pos.line = at.GetSequence(), int(at.GetLine())
		var err error
		if pos.consumed, err = framelog.ParseEnd(at.GetConsumed()); err != nil {
			return fmt.Errorf("%w: %w", snapshot.ErrNoObject, err)
		}
	}
	base, err := snapshot.Read(ctx, store, from[0], from[1:], c.addPage, func(k requests.Key, e requests.Entry) {
		e.Unix = uint32(c.ages.Of(time.Unix(int64(e.Unix), 0)).Unix())
		c.memory.Add(k, e)
	}, func(f snapshot.Frame) { c.frames.Add(f.WalSeq, f.Seq) })
	if err != nil {
		return err
	}
	c.track.base, c.track.requests, c.track.frames = base, c.memory.Additions(), c.frames.Len()
	return nil
}

// addPage puts a page into the state.
func (c *core[S]) addPage(o pages.Owner, content []byte) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	page := c.track.paged.NewPage()
	if err := proto.Unmarshal(content, page); err != nil {
		return err
	}
	return c.track.paged.AddPage(o, page)
}

// checkRestored compares a core that began at a snapshot with what the whole log gives, as far as that can be read.
func (p *Partition[S]) checkRestored(ctx context.Context, c *core[S]) error {
	whole := newCore(&p.cfg)
	defer whole.memory.Release()
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
		return fmt.Errorf("journal: %s restored: wal_seq %d, generation %d, %d frames; the log has %d, %d, %d", c.name, c.applied, c.generation, c.frames.Len(), whole.applied, whole.generation, whole.frames.Len())
	}
	var differs error
	whole.memory.Since(0, func(k requests.Key, e requests.Entry) {
		if got, ok := c.memory.Lookup(k, time.Unix(int64(e.Unix), 0)); !ok || got.First != e.First || got.Args != e.Args || got.Count != e.Count {
			differs = fmt.Errorf("journal: %s restored: request %x is %v, and in the log %v", c.name, k, got, e)
		}
	})
	return cmp.Or(differs, p.cfg.CheckRestored(c.state, whole.state))
}

// checkSnapshot makes a snapshot due, if enough was written since the last one.
func (p *Partition[S]) checkSnapshot() {
	t, s := p.core.track, &p.snapshots
	if t == nil || t.damaged || s.busy.Load() != nil || t.bytes < p.cfg.SnapshotBytes/16 {
		return
	}
	now := p.cfg.Mono()
	if s.last.IsZero() {
		s.last = now
	}
	if retry := s.retry.Load(); retry != nil && now.Before(*retry) {
		return
	}
	s.due = t.bytes >= p.cfg.SnapshotBytes || now.Sub(s.last) >= p.cfg.SnapshotTerm
}

// cut begins a snapshot that is due, once all that was applied is durable. Until then no command runs, which is for as long as
// the frames take that were begun.
func (p *Partition[S]) cut() {
	l, s, c := &p.loop, &p.snapshots, p.core
	if !s.due || len(l.frames) > 0 || l.sending || l.pendingReload != nil {
		return
	}
	s.due, s.last = false, p.cfg.Mono()
	t := c.track
	if t == nil || c.applied != c.end.WalSeq { // loaded meanwhile
		return
	}
	n := &cut{
		Cut:   snapshot.Cut{Partition: c.name, End: c.end, Generation: c.generation, At: p.cfg.Now()},
		bytes: t.bytes, requests: c.memory.Additions(), frames: c.frames.Len(),
	}
	c.memory.Since(t.requests, func(k requests.Key, e requests.Entry) {
		n.Requests = append(n.Requests, snapshot.Request{Key: k, Entry: e})
	})
	c.frames.Since(t.frames, func(walSeq, seq uint64) { n.Frames = append(n.Frames, snapshot.Frame{WalSeq: walSeq, Seq: seq}) })
	for k, pos := range c.positions {
		n.Positions = append(n.Positions, &snapshotv1.Position{
			Plane: k.plane, Partition: int32(k.partition), Sequence: pos.seq, Line: int32(pos.line), Consumed: pos.consumed.String(),
		})
	}
	slices.SortFunc(n.Positions, func(a, b *snapshotv1.Position) int {
		return cmp.Or(cmp.Compare(a.GetPlane(), b.GetPlane()), cmp.Compare(a.GetPartition(), b.GetPartition()))
	})
	n.all = slices.Collect(maps.Keys(t.touched))
	p.mu.Lock()
	n.left, t.touched, t.bytes, t.cut = t.touched, map[pages.Owner]struct{}{}, 0, n
	p.mu.Unlock()
	done := make(chan struct{})
	s.busy.Store(&done)
	s.idle.Go(func() {
		p.writeSnapshot(c, n)
		s.busy.Store(nil)
		close(done)
	})
}

// SettleSnapshot waits until a snapshot that is being written is announced or has failed. It is for tests.
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

// writeSnapshot writes the snapshot of a cut of a core, and announces it. If that fails, the next one has what this one should have had.
func (p *Partition[S]) writeSnapshot(c *core[S], n *cut) {
	t, began := c.track, p.cfg.Mono()
	d := snapshot.Begin(p.cfg.Snapshots, t.base)
	s, base, err := p.draft(d, c, n)
	if err == nil {
		err = p.announce(c, s.Ref)
	}
	p.mu.Lock()
	t.cut = nil
	if err == nil && p.core == c {
		t.base, t.requests, t.frames = base(), n.requests, n.frames
		for _, o := range t.base.Sparse() {
			t.touched[o] = struct{}{}
		}
	} else {
		for _, o := range n.all {
			t.touched[o] = struct{}{}
		}
		t.bytes += n.bytes
	}
	p.mu.Unlock()
	if err == nil {
		p.metrics.Snapshot(d.Pages(), d.Bytes(), p.cfg.Mono().Sub(began))
		err = t.base.Clean(p.ctx, p.cfg.Snapshots)
	}
	if err != nil && p.ctx.Err() == nil {
		retry := p.cfg.Mono().Add(snapshotRetry)
		p.snapshots.retry.Store(&retry)
		p.cfg.Logger.Warn("journal: a snapshot was not written, or older ones not removed; it is tried again", zap.Error(err))
	}
}

// cutBatch is how many pages are taken at a time while commands wait.
const cutBatch = 64

// draft stores the pages of a cut and its manifest.
func (p *Partition[S]) draft(d *snapshot.Draft, c *core[S], n *cut) (*snapshot.Snapshot, func() *snapshot.Base, error) {
	slices.SortFunc(n.all, pages.Owner.Compare)
	for batch := range slices.Chunk(n.all, cutBatch) {
		p.mu.Lock()
		if p.core != c {
			p.mu.Unlock()
			return nil, nil, errReplaced
		}
		for _, o := range batch {
			n.take(c.track.paged, o)
		}
		taken := n.taken
		n.taken = nil
		p.mu.Unlock()
		for _, page := range taken {
			if err := d.Add(p.ctx, page.owner, page.page); err != nil {
				return nil, nil, err
			}
		}
	}
	return d.Finish(p.ctx, n.Cut)
}

// announce writes the frame that makes a snapshot valid.
func (p *Partition[S]) announce(of *core[S], ref snapshot.Ref) error {
	c := &command[S]{method: "snapshot", done: make(chan struct{})}
	c.decide = func(S, Env) ([]*Event, error) {
		if p.core != of { // the loop's own
			return nil, errReplaced
		}
		return []*Event{{Type: TypeSnapshotTaken, Payload: announcement(ref)}}, nil
	}
	if err := p.run(p.ctx, c); err != nil {
		return err
	}
	return c.err
}
