package snapshot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
)

// Snapshot is a snapshot that is stored: its manifest and the name of that.
type Snapshot struct {
	Ref
	// End is the end of the log up to which the events are in its state.
	End      framelog.End
	Manifest *snapshotv1.Manifest
}

// Stored returns the snapshots of a partition that a store has, the newest first. It leaves out those whose manifest
// cannot be read. Whether a snapshot is valid only the log says, which announces it.
func Stored(ctx context.Context, store Store, partition string) ([]*Snapshot, error) {
	found, err := store.Manifests(ctx)
	if err != nil {
		return nil, fmt.Errorf("snapshot: manifests of %s: %w", partition, err)
	}
	var snapshots []*Snapshot
	for number, b := range found {
		s := &Snapshot{Ref: Ref{Number: number, Hash: sha256.Sum256(b)}, Manifest: &snapshotv1.Manifest{}}
		if unpack(b, s.Manifest) != nil || s.Manifest.GetFormat() < 1 || s.Manifest.GetFormat() > Format ||
			s.Manifest.GetPartition() != partition {
			continue // damaged, or of a later version: an older one can be used
		}
		if s.End, err = framelog.ParseEnd(s.Manifest.GetEnd()); err != nil {
			continue
		}
		s.Snapshot = s.Manifest.GetNumber() // Number is only where the manifest is stored
		snapshots = append(snapshots, s)
	}
	// Of two snapshots with one number, as two processes may write, the one stored later is the newer.
	slices.SortFunc(snapshots, func(a, b *Snapshot) int {
		return cmp.Or(cmp.Compare(b.Snapshot, a.Snapshot), cmp.Compare(b.Number, a.Number))
	})
	return snapshots, nil
}

// objects calls fn with each object that the manifest of a snapshot names. The manifest is not one of them.
func (s *Snapshot) objects(fn func(*snapshotv1.Object)) {
	for _, objects := range [][]*snapshotv1.Object{
		s.Manifest.GetPages(), s.Manifest.GetRequests(),
		s.Manifest.GetFrames(),
	} {
		for _, o := range objects {
			fn(o)
		}
	}
}

// Base describes the kept snapshots of a partition, which the next one continues. The zero Base is that of a
// partition without a snapshot. Draft.Finish returns a new Base for each snapshot.
type Base struct {
	kept   []*Snapshot // the newest first
	owners map[ownerHash]owned
	live   map[uint64]int64 // bytes of the pages that are current, by the object's number
}

// ownerHash stands for an owner, since there may be millions. Two owners do not have the same one: it has 128 bits, and
// nobody knows the seeds.
type ownerHash [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func hashOf(o Owner) ownerHash {
	return ownerHash{maphash.Comparable(seeds[0], o), maphash.Comparable(seeds[1], o)}
}

// owned says where the page of an owner is: the number of the object, and in its lowest bits the bytes of the page
// before it was compressed.
type owned uint64

const sizeBits = 28

func ownedAt(object uint64, size int64) owned {
	return owned(object<<sizeBits | uint64(min(size, 1<<sizeBits-1)))
}

func (o owned) object() uint64 { return uint64(o >> sizeBits) }

func (o owned) bytes() int64 { return int64(o & (1<<sizeBits - 1)) }

// Newest returns the snapshot that the next one continues, nil if there is none.
func (b *Base) Newest() *Snapshot {
	if b == nil || len(b.kept) == 0 {
		return nil
	}
	return b.kept[0]
}

// Needed returns the End of the oldest kept snapshot: the log behind it is needed to load any of the kept ones.
// Without a snapshot it returns the zero End.
func (b *Base) Needed() framelog.End {
	if b == nil || len(b.kept) == 0 {
		return framelog.End{}
	}
	return b.kept[len(b.kept)-1].End
}

// garbageRoom is how many bytes of outdated pages the objects of a snapshot may have beyond the bytes of its current
// pages.
const garbageRoom = 1 << 20

// Sparse returns the owners whose pages the next snapshot should write again although they did not change, so that
// the objects with these pages, which have mostly outdated ones, are not needed any more. It reads these objects. It
// returns none if the outdated pages have at most garbageRoom bytes more than the current ones.
func (b *Base) Sparse(ctx context.Context, store Store) (owners []Owner, err error) {
	newest := b.Newest()
	if newest == nil {
		return nil, nil
	}
	var live, total int64
	for _, o := range newest.Manifest.GetPages() {
		live, total = live+b.live[o.GetNumber()], total+o.GetEntries() // of an object with pages, Entries is bytes
	}
	if total <= 2*live+garbageRoom {
		return nil, nil
	}

	// Return the owners of the current pages in each object that is mostly outdated.
	for _, o := range newest.Manifest.GetPages() {
		if 2*b.live[o.GetNumber()] >= o.GetEntries() {
			continue
		}
		var in snapshotv1.Pages
		if err := read(ctx, store, o, &in); err != nil {
			return nil, err
		}
		for _, p := range in.GetPages() {
			owner := Owner{Namespace: p.GetNamespace(), ID: p.GetId()}
			if b.owners[hashOf(owner)].object() == o.GetNumber() {
				owners = append(owners, owner)
			}
		}
	}
	return owners, nil
}

// Into is where Read puts what it reads.
type Into interface {
	// DecodePage returns a page as a message. It may be called while another method runs.
	DecodePage(content []byte) (proto.Message, error)
	// AddPage adds the page of an owner, each once.
	AddPage(o Owner, page proto.Message) error
	// AddRequest adds a request that is remembered; the oldest is the first.
	AddRequest(k requests.Key, e requests.Entry)
	// AddFrame adds a frame to the index, in order.
	AddFrame(f Frame)
}

// Read adds what the snapshot s has to into, and returns the Base for the next snapshot. older are the snapshots
// before s, the newest first; the Base remembers s and the first Kept-1 of them, whose objects Clean does not remove.
// After an error into may have a part of s. ErrNoObject means that s cannot be used; any other error is one of the
// store, and reading may succeed later.
func Read(ctx context.Context, store Store, s *Snapshot, older []*Snapshot, into Into) (*Base, error) {
	b := &Base{
		kept: append([]*Snapshot{s}, older[:min(len(older), Kept-1)]...), owners: map[ownerHash]owned{},
		live: map[uint64]int64{},
	}
	if err := b.readPages(ctx, store, s, into); err != nil {
		return nil, err
	}
	for _, o := range s.Manifest.GetRequests() {
		var in snapshotv1.Requests
		if err := read(ctx, store, o, &in); err != nil {
			return nil, err
		}
		if err := eachRequest(&in, into.AddRequest); err != nil {
			return nil, err
		}
	}
	for _, o := range s.Manifest.GetFrames() {
		var in snapshotv1.Frames
		if err := read(ctx, store, o, &in); err != nil {
			return nil, err
		}
		if err := eachFrame(&in, into.AddFrame); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// decoded is an object whose pages are decoded.
type decoded struct {
	number   uint64
	pages    []*snapshotv1.Page
	messages []proto.Message // of pages; nil for an owner of whom the state has nothing
	err      error
}

// readPages reads the objects with pages, the newest first, and adds the newest page of each owner. The next objects
// are decoded while the pages of one are added. The goroutine that decodes has ended when readPages returns.
func (b *Base) readPages(ctx context.Context, store Store, s *Snapshot, into Into) error {
	ctx, cancel := context.WithCancel(ctx)
	objects := make(chan decoded, 2)
	defer func() {
		cancel()
		for range objects { // until it has ended
		}
	}()

	// Decode.
	go func() {
		defer close(objects)
		for _, o := range slices.Backward(s.Manifest.GetPages()) {
			d := decode(ctx, store, o, into)
			select {
			case objects <- d:
			case <-ctx.Done():
				return
			}
			if d.err != nil {
				return
			}
		}
	}()

	// Add.
	var namespace string
	for d := range objects {
		if d.err != nil {
			return d.err
		}
		for i, p := range d.pages {
			if namespace != p.GetNamespace() { // the owners of a namespace share one copy of its name
				namespace = p.GetNamespace()
			}
			owner := Owner{Namespace: namespace, ID: p.GetId()}
			h := hashOf(owner)
			if _, newer := b.owners[h]; newer {
				continue
			}
			page := ownedAt(d.number, size(p))
			b.owners[h] = page
			b.live[d.number] += page.bytes()
			if p.GetGone() { // the state has nothing of the owner; the older pages of it do not count
				continue
			}
			if err := into.AddPage(owner, d.messages[i]); err != nil {
				return fmt.Errorf("snapshot: %w: page of %s/%s: %w", ErrNoObject, owner.Namespace, owner.ID, err)
			}
		}
	}
	return ctx.Err()
}

// decode reads an object and decodes its pages; a failure is in decoded.err.
func decode(ctx context.Context, store Store, o *snapshotv1.Object, into Into) decoded {
	var in snapshotv1.Pages
	if err := read(ctx, store, o, &in); err != nil {
		return decoded{err: err}
	}
	d := decoded{number: o.GetNumber(), pages: in.GetPages(), messages: make([]proto.Message, len(in.GetPages()))}
	for i, p := range d.pages {
		if p.GetGone() {
			continue
		}
		page, err := into.DecodePage(p.GetContent())
		if err != nil {
			return decoded{err: fmt.Errorf("snapshot: %w: page of %s/%s: %w", ErrNoObject, p.GetNamespace(), p.GetId(),
				err)}
		}
		d.messages[i] = page
	}
	return d
}

// size returns about how many bytes a page takes in an object.
func size(p *snapshotv1.Page) int64 {
	return int64(len(p.GetNamespace())+len(p.GetId())+len(p.GetContent())) + 16
}

// eachRequest calls fn with the requests in the content of a snapshot's object, in order. If the fields of in have
// different numbers of requests, it returns ErrNoObject and does not call fn. FirstSteps has the differences between
// the wal_seqs of one request and the next.
func eachRequest(in *snapshotv1.Requests, fn func(requests.Key, requests.Entry)) error {
	n := len(in.GetFirstSteps())
	if len(in.GetKeys()) != n*len(requests.Key{}) || len(in.GetArguments()) != n || len(in.GetCounts()) != n ||
		len(in.GetExecutedAt()) != n {
		return fmt.Errorf("%w: the requests of it are of different numbers", ErrNoObject)
	}
	var first uint64
	for i := range n {
		first += in.GetFirstSteps()[i]
		fn(requests.Key(in.GetKeys()[i*len(requests.Key{}):]), requests.Entry{
			First: first, Args: in.GetArguments()[i],
			Count: in.GetCounts()[i], Unix: in.GetExecutedAt()[i],
		})
	}
	return nil
}

// eachFrame calls fn with the frames in the content of a snapshot's object, in order. The fields of in have the
// differences from one frame to the next; if they have different numbers of frames, it returns ErrNoObject and does not
// call fn.
func eachFrame(in *snapshotv1.Frames, fn func(Frame)) error {
	if len(in.GetWalSeqSteps()) != len(in.GetSequenceSteps()) {
		return fmt.Errorf("%w: the frames of it are of different numbers", ErrNoObject)
	}
	var f Frame
	for i, step := range in.GetWalSeqSteps() {
		f.WalSeq, f.Seq = f.WalSeq+step, f.Seq+in.GetSequenceSteps()[i]
		fn(f)
	}
	return nil
}

// Clean removes the objects that no kept snapshot needs. Those that were stored after the newest manifest are left,
// since another process may be writing them. If the store does not have an object of the newest snapshot any more,
// nothing is removed, and the error is ErrNoObject.
func (b *Base) Clean(ctx context.Context, store Store) error {
	newest := b.Newest()
	if newest == nil {
		return nil
	}
	stored, err := store.Numbers(ctx)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}

	// Collect what is needed. That of the newest snapshot, which comes first, must be there.
	needed := map[uint64]bool{}
	for i, s := range b.kept {
		needed[s.Number] = true
		s.objects(func(o *snapshotv1.Object) {
			needed[o.GetNumber()] = true
			for _, part := range o.GetEarlier() {
				needed[part] = true
			}
		})
		if i > 0 {
			continue
		}
		found := 0
		for _, n := range stored {
			if needed[n] && n <= s.Number {
				found++
			}
		}
		if found < len(needed) {
			return fmt.Errorf("%w: %d of %d of snapshot %d", ErrNoObject, len(needed)-found, len(needed), s.Snapshot)
		}
	}

	gone := slices.DeleteFunc(stored, func(n uint64) bool { return needed[n] || n > newest.Number })
	if len(gone) == 0 {
		return nil
	}
	if err := store.Remove(ctx, gone); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// with returns the Base after the snapshot s, whose own pages are in written. It takes over and changes b.owners.
func (b *Base) with(s *Snapshot, written map[ownerHash]owned) *Base {
	next := &Base{
		kept: append([]*Snapshot{s}, b.kept[:min(len(b.kept), Kept-1)]...), owners: b.owners,
		live: maps.Clone(b.live),
	}
	if next.owners == nil {
		next.owners, next.live = map[ownerHash]owned{}, map[uint64]int64{}
	}
	for owner, page := range written {
		if previous, ok := next.owners[owner]; ok {
			next.live[previous.object()] -= previous.bytes()
		}
		next.owners[owner] = page
		next.live[page.object()] += page.bytes()
	}
	return next
}
