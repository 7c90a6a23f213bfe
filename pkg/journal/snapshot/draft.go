package snapshot

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
)

// Cut is what a snapshot has beside the pages, as it was at a moment when everything that the partition had applied
// was durable.
type Cut struct {
	Partition  string
	End        framelog.End
	Generation uint64
	At         time.Time // by the wall clock
	Now        time.Time // by the clock by which the ages of requests count, which does not step
	Positions  []*snapshotv1.Position
	// Requests and Frames are those that were added since the snapshot before, oldest first.
	Requests []Request
	Frames   []Frame
	// Erased are the owners of owner_erased events, as event.ErasedSet encodes them, and ErasedThrough is the wal_seq
	// of the last of these events whose owner's lines are erased everywhere.
	Erased        []byte
	ErasedThrough uint64
}

// Request is a request that is remembered.
type Request struct {
	requests.Key
	requests.Entry
}

// Draft is a snapshot that is being written. It is not safe for concurrent use.
type Draft struct {
	store   Store
	base    *Base
	number  uint64
	pending snapshotv1.Pages
	bytes   int64 // of pending
	written map[ownerHash]owned
	objects []*snapshotv1.Object
	total   int64 // bytes that were stored
}

// Begin begins the snapshot that continues base, with a number that is higher than after and than that of the newest
// snapshot in base.
func Begin(store Store, base *Base, after uint64) *Draft {
	if before := base.Newest(); before != nil {
		after = max(after, before.Snapshot)
	}
	return &Draft{store: store, base: base, number: after + 1, written: map[ownerHash]owned{}}
}

// Add adds the page of an owner, nil if the state has nothing of it. Each owner is added once.
func (d *Draft) Add(ctx context.Context, owner Owner, page proto.Message) error {
	p := &snapshotv1.Page{Namespace: owner.Namespace, Id: owner.ID, Gone: page == nil}
	if page != nil {
		var err error
		if p.Content, err = EncodePage(page); err != nil {
			return fmt.Errorf("snapshot: page of %s/%s: %w", owner.Namespace, owner.ID, err)
		}
	} else if _, had := d.base.owners[hashOf(owner)]; !had {
		return nil // no snapshot has a page of the owner that this one would have to replace
	}
	d.pending.Pages = append(d.pending.Pages, p)
	d.bytes += size(p)
	if d.bytes >= ObjectBytes {
		return d.flush(ctx)
	}
	return nil
}

// flush stores the pages that were added since the last time as one object. It does nothing if there are none.
func (d *Draft) flush(ctx context.Context) error {
	if len(d.pending.GetPages()) == 0 {
		return nil
	}
	o, err := d.put(ctx, &d.pending, d.bytes)
	if err != nil {
		return err
	}
	for _, p := range d.pending.GetPages() {
		d.written[hashOf(Owner{Namespace: p.GetNamespace(), ID: p.GetId()})] = ownedAt(o.GetNumber(), size(p))
	}
	d.objects = append(d.objects, o)
	d.pending.Pages, d.bytes = nil, 0
	return nil
}

// put stores a message as an object, in parts of PartBytes. entries is how many requests or frames the object has, or
// how many bytes of pages.
func (d *Draft) put(ctx context.Context, m proto.Message, entries int64) (*snapshotv1.Object, error) {
	b, err := pack(m)
	if err != nil {
		return nil, err
	}
	numbers, err := d.store.Put(ctx, slices.Collect(slices.Chunk(b, PartBytes)))
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	d.total += int64(len(b))
	sum, last := sha256.Sum256(b), len(numbers)-1
	return &snapshotv1.Object{
		Number: numbers[last], Earlier: numbers[:last], Hash: sum[:], Bytes: int64(len(b)),
		Entries: entries,
	}, nil
}

// Finish stores what the snapshot has beside the pages, and the manifest. The snapshot becomes valid when a frame
// behind cut.End announces it. Then base returns the Base for the next snapshot; it changes the former Base, which
// must not be used any more. If the snapshot is not announced, base must not be called.
func (d *Draft) Finish(ctx context.Context, cut Cut) (s *Snapshot, base func() *Base, err error) {
	if err := d.flush(ctx); err != nil {
		return nil, nil, err
	}
	m := &snapshotv1.Manifest{
		Format: formatWhole, Partition: cut.Partition, Number: d.number, End: cut.End.String(),
		Generation: cut.Generation, TakenAt: timestamppb.New(cut.At), Positions: cut.Positions,
	}
	if len(cut.Erased) > 0 {
		m.Format, m.Erased, m.ErasedThrough = Format, cut.Erased, cut.ErasedThrough
	}

	// Keep the objects of the snapshot before that still have current pages, remembered requests, or frames.
	if before := d.base.Newest(); before != nil {
		superseded := map[uint64]int64{}
		for owner := range d.written {
			if previous, ok := d.base.owners[owner]; ok {
				superseded[previous.object()] += previous.bytes()
			}
		}
		for _, o := range before.Manifest.GetPages() {
			if d.base.live[o.GetNumber()] > superseded[o.GetNumber()] {
				m.Pages = append(m.Pages, o)
			}
		}
		m.Requests = slices.DeleteFunc(slices.Clone(before.Manifest.GetRequests()), func(o *snapshotv1.Object) bool {
			// Until is the time of the youngest request in o.
			return cut.Now.Unix()-o.GetUntil() > int64(requests.Term/time.Second)
		})
		m.Frames = slices.Clone(before.Manifest.GetFrames())
	}

	// Add the new ones.
	m.Pages = append(m.Pages, d.objects...)
	if m.Requests, err = d.addRequests(ctx, m.GetRequests(), cut.Requests); err != nil {
		return nil, nil, err
	}
	if m.Frames, err = d.addFrames(ctx, m.GetFrames(), cut.Frames); err != nil {
		return nil, nil, err
	}

	b, err := pack(m)
	if err != nil {
		return nil, nil, err
	}
	number, err := d.store.PutManifest(ctx, int(m.GetNumber()%Slots), b)
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot: %w", err)
	}
	d.total += int64(len(b))
	s = &Snapshot{Ref: Ref{m.GetNumber(), number, sha256.Sum256(b)}, End: cut.End, Manifest: m}
	return s, func() *Base { return d.base.with(s, d.written) }, nil
}

// Bytes returns how many bytes were stored.
func (d *Draft) Bytes() int64 { return d.total }

// Pages returns how many pages were stored.
func (d *Draft) Pages() int { return len(d.written) }

// mergeWith returns how many of the last objects are to be merged with an object of n entries, so that there are few
// objects and each entry is written a few times only.
func mergeWith(objects []*snapshotv1.Object, n int64) (count int) {
	for count < len(objects) {
		o := objects[len(objects)-1-count]
		if o.GetEntries() > 2*n || o.GetEntries()+n > mergedEntries {
			break
		}
		n += o.GetEntries()
		count++
	}
	return count
}

// addRequests stores the added requests as an object, together with those of the last objects of stored that mergeWith
// selects, and returns stored with the new object in place of these.
func (d *Draft) addRequests(ctx context.Context, stored []*snapshotv1.Object, added []Request) ([]*snapshotv1.Object,
	error,
) {
	if len(added) == 0 {
		return stored, nil
	}
	count := mergeWith(stored, int64(len(added)))
	var merged []Request
	for _, o := range stored[len(stored)-count:] {
		var in snapshotv1.Requests
		if err := read(ctx, d.store, o, &in); err != nil {
			return nil, err
		}
		if err := eachRequest(&in, func(k requests.Key, e requests.Entry) {
			merged = append(merged, Request{k, e})
		}); err != nil {
			return nil, err
		}
	}
	stored, merged = stored[:len(stored)-count], append(merged, added...)
	var out snapshotv1.Requests
	var last uint64
	var until uint32
	for _, r := range merged {
		out.Keys = append(out.Keys, r.Key[:]...)
		out.FirstSteps = append(out.FirstSteps, r.First-last)
		out.Arguments = append(out.Arguments, r.Args)
		out.Counts = append(out.Counts, r.Count)
		out.ExecutedAt = append(out.ExecutedAt, r.Unix)
		last, until = r.First, max(until, r.Unix)
	}
	o, err := d.put(ctx, &out, int64(len(merged)))
	if err != nil {
		return nil, err
	}
	o.Until = int64(until)
	return append(stored, o), nil
}

// addFrames stores the added entries of the index of frames as addRequests stores requests.
func (d *Draft) addFrames(ctx context.Context, stored []*snapshotv1.Object, added []Frame) ([]*snapshotv1.Object,
	error,
) {
	if len(added) == 0 {
		return stored, nil
	}
	count := mergeWith(stored, int64(len(added)))
	var merged []Frame
	for _, o := range stored[len(stored)-count:] {
		var in snapshotv1.Frames
		if err := read(ctx, d.store, o, &in); err != nil {
			return nil, err
		}
		if err := eachFrame(&in, func(f Frame) { merged = append(merged, f) }); err != nil {
			return nil, err
		}
	}
	stored, merged = stored[:len(stored)-count], append(merged, added...)
	var out snapshotv1.Frames
	var last Frame
	for _, f := range merged {
		out.WalSeqSteps = append(out.WalSeqSteps, f.WalSeq-last.WalSeq)
		out.SequenceSteps = append(out.SequenceSteps, f.Seq-last.Seq)
		last = f
	}
	o, err := d.put(ctx, &out, int64(len(merged)))
	if err != nil {
		return nil, err
	}
	return append(stored, o), nil
}
