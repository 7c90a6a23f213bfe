package snapshot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/event"
)

// Tracker tracks the changes of one state. A nil *Tracker does nothing: no snapshots are written. The caller of a
// method must hold the lock under which the state changes, unless the method says otherwise.
type Tracker struct {
	// Begins is the snapshot from which the state was read, zero if it was read from the log alone. Valid says that a
	// frame of the log behind the snapshot announces Begins.
	Begins Ref
	Valid  bool
	// Announced is the snapshot of the last snapshot_taken event, zero if there was none.
	Announced Ref
	// Damaged says that a line was quarantined. No snapshot is written then, since its pages would not say so.
	Damaged bool
	// Bytes is the size of the frames behind the newest snapshot. It is counted without the lock.
	Bytes atomic.Int64

	state   State
	touched map[Owner]struct{}
	touch   func(Owner)
	cut     *PageCut // from which a snapshot is being written; nil: none is
	has     Extent
	base    *Base
}

// Extent is how many entries a snapshot has of the two lists that only grow.
type Extent struct {
	Requests int // additions to the request memory
	Frames   int // entries of the index of frames
}

// NewTracker returns the Tracker of an empty state, or nil if it is not written in pages.
func NewTracker(state any) *Tracker {
	paged, ok := state.(State)
	if !ok {
		return nil
	}
	t := &Tracker{state: paged, touched: map[Owner]struct{}{}, base: &Base{}}
	// touch is called before the page of o changes: the snapshot that is being written takes it as it is.
	t.touch = func(o Owner) {
		t.touched[o] = struct{}{}
		if t.cut != nil {
			t.cut.take(t.state, o)
		}
	}
	return t
}

// Before records the owners whose pages an event may change. It must be called before the event is applied.
func (t *Tracker) Before(ev *event.Event) {
	if t != nil {
		t.state.Owners(ev, t.touch)
	}
}

// Touch records that the page of an owner changes. It must be called before the change.
func (t *Tracker) Touch(o Owner) {
	if t != nil {
		t.touch(o)
	}
}

// Wrote counts the bytes of a frame. It needs no lock.
func (t *Tracker) Wrote(n int) {
	if t != nil {
		t.Bytes.Add(int64(n))
	}
}

// Damage records that a line was quarantined, so that no snapshot is written any more.
func (t *Tracker) Damage() {
	if t != nil {
		t.Damaged = true
	}
}

// Announcement returns the payload of snapshot_taken.
func Announcement(r Ref) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"snapshot": structpb.NewNumberValue(float64(r.Snapshot)),
		"manifest": structpb.NewNumberValue(float64(r.Number)),
		"hash":     structpb.NewStringValue(hex.EncodeToString(r.Hash[:])),
	}}
}

// Announce records the snapshot that a snapshot_taken event announces. s is its payload, which Announcement returned.
func (t *Tracker) Announce(s *structpb.Struct) error {
	r := Ref{
		Snapshot: uint64(s.GetFields()["snapshot"].GetNumberValue()),
		Number:   uint64(s.GetFields()["manifest"].GetNumberValue()),
	}
	hash, err := hex.DecodeString(s.GetFields()["hash"].GetStringValue())
	if err != nil || len(hash) != len(r.Hash) {
		return errors.New("an announcement of a snapshot without a hash")
	}
	if t != nil {
		copy(r.Hash[:], hash)
		t.Announced = r
		t.Valid = t.Valid || r == t.Begins
	}
	return nil
}

// DecodePage decodes a page into a message of the state's type. It needs no lock.
func (t *Tracker) DecodePage(content []byte) (proto.Message, error) {
	page := t.state.NewPage()
	return page, proto.Unmarshal(content, page)
}

// AddPage puts a page into the state. A panic becomes an error.
func (t *Tracker) AddPage(o Owner, page proto.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return t.state.AddPage(o, page)
}

// Restored records that the state was read from the snapshot from. base is what the next one continues.
func (t *Tracker) Restored(from Ref, base *Base, has Extent) {
	t.Begins, t.base, t.has = from, base, has
}

// Base returns the Base that the next snapshot continues; nil if t is nil.
func (t *Tracker) Base() *Base {
	if t == nil {
		return nil
	}
	return t.base
}

// Has returns the Extent of the newest snapshot.
func (t *Tracker) Has() Extent { return t.has }

// PageCut is a state at a moment, from which a snapshot is written while the state changes: the page of an owner is
// taken before the next event changes it.
type PageCut struct {
	Cut

	bytes     int64
	has       Extent // what the snapshot has once it is written
	owners    []Owner
	remaining map[Owner]struct{} // whose pages were not taken
	taken     []OwnerPage        // and not yet written
}

// OwnerPage is the page of an owner as it was at a cut; nil if the state had nothing of it.
type OwnerPage struct {
	Owner Owner
	Page  proto.Message
}

// Begin begins a cut of the state as it is now, with the owners that changed since the newest snapshot. has is the
// Extent that the snapshot will have.
func (t *Tracker) Begin(c Cut, has Extent) *PageCut {
	n := &PageCut{
		Cut: c, bytes: t.Bytes.Swap(0), has: has, owners: slices.Collect(maps.Keys(t.touched)), remaining: t.touched,
	}
	t.touched, t.cut = map[Owner]struct{}{}, n
	return n
}

// Owners returns whose pages the snapshot has to write, in order. It needs no lock.
func (c *PageCut) Owners() []Owner {
	slices.SortFunc(c.owners, Owner.Compare)
	return c.owners
}

// Take returns pages as they were at the cut: those of owners, and those that were taken since the last call because
// an event was about to change them. No call returns a page that an earlier one returned.
func (t *Tracker) Take(c *PageCut, owners []Owner) []OwnerPage {
	for _, o := range owners {
		c.take(t.state, o)
	}
	taken := c.taken
	c.taken = nil
	return taken
}

// take takes the page of an owner, if the cut needs it and it was not taken yet.
func (c *PageCut) take(state State, o Owner) {
	if _, needed := c.remaining[o]; needed {
		delete(c.remaining, o)
		c.taken = append(c.taken, OwnerPage{o, state.Page(o)})
	}
}

// Written records that the snapshot of a cut is announced, and that the next one continues base.
func (t *Tracker) Written(c *PageCut, base *Base) {
	t.cut, t.base, t.has = nil, base, c.has
}

// Clean removes from the store what no kept snapshot needs, and makes the next snapshot write again the pages in
// objects that are mostly outdated (snapshot.Base.Sparse). The caller must not hold lock, which Clean holds while it
// changes the Tracker.
func (t *Tracker) Clean(ctx context.Context, store Store, lock sync.Locker) error {
	base := t.base
	if err := base.Clean(ctx, store); err != nil {
		return err
	}
	sparse, err := base.Sparse(ctx, store)
	lock.Lock()
	defer lock.Unlock()
	for _, o := range sparse {
		t.touch(o)
	}
	return err
}

// Failed records that the snapshot of a cut was not written: the next one has its changes too.
func (t *Tracker) Failed(c *PageCut) {
	t.cut = nil
	t.Bytes.Add(c.bytes)
	for _, o := range c.owners {
		t.touched[o] = struct{}{}
	}
}

// StartOver makes the next snapshot have all pages and be the only one that is kept. It is for a store that lost
// something of a snapshot, or that must not keep the present ones.
func (t *Tracker) StartOver() {
	t.base, t.has = &Base{}, Extent{}
	t.state.AllOwners(func(o Owner) { t.touched[o] = struct{}{} })
}
