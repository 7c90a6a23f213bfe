// Package changes knows what of a state its newest snapshot does not have, and takes the pages of the next one while the state goes on.
package changes

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
	"quartet/pkg/journal/pages"
	"quartet/pkg/journal/snapshot"
)

// Tracker follows a state. A nil *Tracker does nothing: no snapshots are written. It is not safe for concurrent use: the caller has the
// lock under which the state changes.
type Tracker struct {
	// Begins is the snapshot from which the state was read, zero if it was read from the log alone. Valid says that a frame behind it
	// announces it.
	Begins snapshot.Ref
	Valid  bool
	// Announced is the snapshot that the last frame names which announces one.
	Announced snapshot.Ref
	// Damaged says that a line was quarantined, which the pages do not tell.
	Damaged bool
	// Bytes are those of the frames behind the snapshot. They are counted without the lock.
	Bytes atomic.Int64

	state   pages.State
	touched map[pages.Owner]struct{}
	touch   func(pages.Owner)
	cut     *Cut // from which a snapshot is being written
	has     Extent
	base    *snapshot.Base
}

// Extent is how many entries a snapshot has of what only grows.
type Extent struct {
	Requests int // additions to the request memory
	Frames   int // entries of the index of frames
}

// New returns the Tracker of an empty state, or nil if it is not written in pages.
func New(state any) *Tracker {
	paged, ok := state.(pages.State)
	if !ok {
		return nil
	}
	t := &Tracker{state: paged, touched: map[pages.Owner]struct{}{}, base: &snapshot.Base{}}
	t.touch = func(o pages.Owner) {
		t.touched[o] = struct{}{}
		if t.cut != nil {
			t.cut.take(t.state, o)
		}
	}
	return t
}

// Before notes whose pages an event may change. It is called before the event is applied.
func (t *Tracker) Before(ev *event.Event) {
	if t != nil {
		t.state.Owners(ev, t.touch)
	}
}

// Touch notes that the page of an owner is about to change.
func (t *Tracker) Touch(o pages.Owner) {
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

// Damage notes that a line was quarantined.
func (t *Tracker) Damage() {
	if t != nil {
		t.Damaged = true
	}
}

// Announcement returns the payload of snapshot_taken.
func Announcement(r snapshot.Ref) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"snapshot": structpb.NewNumberValue(float64(r.Snapshot)),
		"manifest": structpb.NewNumberValue(float64(r.Number)),
		"hash":     structpb.NewStringValue(hex.EncodeToString(r.Hash[:])),
	}}
}

// Announce reads what Announcement returned.
func (t *Tracker) Announce(s *structpb.Struct) error {
	r := snapshot.Ref{Snapshot: uint64(s.GetFields()["snapshot"].GetNumberValue()), Number: uint64(s.GetFields()["manifest"].GetNumberValue())}
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

// DecodePage returns a page that was read as the state's message. It needs no lock.
func (t *Tracker) DecodePage(content []byte) (proto.Message, error) {
	page := t.state.NewPage()
	return page, proto.Unmarshal(content, page)
}

// AddPage puts a page into the state. A panic becomes an error.
func (t *Tracker) AddPage(o pages.Owner, page proto.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return t.state.AddPage(o, page)
}

// Restored notes that the state was read from a snapshot.
func (t *Tracker) Restored(from snapshot.Ref, base *snapshot.Base, has Extent) {
	t.Begins, t.base, t.has = from, base, has
}

// Base returns what the next snapshot continues, nil for nothing.
func (t *Tracker) Base() *snapshot.Base {
	if t == nil {
		return nil
	}
	return t.base
}

// Has returns what the snapshot has of what only grows.
func (t *Tracker) Has() Extent { return t.has }

// Cut is a state at a moment, from which a snapshot is written while the state goes on: the page of an owner is taken before the next event
// changes it.
type Cut struct {
	snapshot.Cut

	bytes int64
	has   Extent // what the snapshot has once it is written
	all   []pages.Owner
	left  map[pages.Owner]struct{} // whose pages were not taken
	taken []Page                   // and not yet written
}

// Page is the page of an owner as it was at a cut; nil if the state had nothing of it.
type Page struct {
	Owner pages.Owner
	Page  proto.Message
}

// Begin begins a cut. It returns once it knows which owners changed.
func (t *Tracker) Begin(c snapshot.Cut, has Extent) *Cut {
	n := &Cut{Cut: c, bytes: t.Bytes.Swap(0), has: has, all: slices.Collect(maps.Keys(t.touched)), left: t.touched}
	t.touched, t.cut = map[pages.Owner]struct{}{}, n
	return n
}

// Owners returns whose pages the snapshot has to write, in order. It needs no lock.
func (c *Cut) Owners() []pages.Owner {
	slices.SortFunc(c.all, pages.Owner.Compare)
	return c.all
}

// Take returns the pages of some owners as they were at the cut, and those that were taken since the last call.
func (t *Tracker) Take(c *Cut, owners []pages.Owner) []Page {
	for _, o := range owners {
		c.take(t.state, o)
	}
	taken := c.taken
	c.taken = nil
	return taken
}

// take takes the page of an owner, if it is one of those that are left.
func (c *Cut) take(state pages.State, o pages.Owner) {
	if _, left := c.left[o]; left {
		delete(c.left, o)
		c.taken = append(c.taken, Page{o, state.Page(o)})
	}
}

// Written notes that the snapshot of a cut is announced, and that the next one continues base.
func (t *Tracker) Written(c *Cut, base *snapshot.Base) {
	t.cut, t.base, t.has = nil, base, c.has
}

// Clean removes from the store what no snapshot needs, and has the next snapshot write pages again that keep large objects. It has the lock while it
// changes the Tracker.
func (t *Tracker) Clean(ctx context.Context, store snapshot.Store, lock sync.Locker) error {
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

// Failed notes that the snapshot of a cut was not written: the next one has what it should have had.
func (t *Tracker) Failed(c *Cut) {
	t.cut = nil
	t.Bytes.Add(c.bytes)
	for _, o := range c.all {
		t.touched[o] = struct{}{}
	}
}

// StartOver forgets the snapshot, since its store does not have all of it any more, or is not to have it any more: the next one has all pages,
// and is the only one that is kept.
func (t *Tracker) StartOver() {
	t.base, t.has = &snapshot.Base{}, Extent{}
	t.state.AllOwners(func(o pages.Owner) { t.touched[o] = struct{}{} })
}
