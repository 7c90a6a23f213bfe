package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/salvage"
)

// Archive is the archive of a partition that is damaged.
type Archive struct {
	Status Status // Repairable or Lost
	Damage []string
	// Copies are the numbers of frames that come from elsewhere than from the archive, by place.
	Copies map[string]int
	// Lost are the frames of which there is no copy. The partition works without them, but nothing can read the
	// journal from its beginning past them.
	Lost []Range
}

// Range is a part of a journal.
type Range struct {
	First, Last             uint64 // sequence numbers between which the frames are, both included
	FirstWalSeq, LastWalSeq uint64
}

// part is an archived segment, or several of which nothing is stored.
type part struct {
	row         *archive.Segment // nil: nothing is stored
	before, end framelog.End     // if nothing is stored, end is what the segment or frame behind the part says
	damage      error
	found       []*copyOf // of a damaged part the frames of which there are copies; see complete
}

// mendable is a store of which what is damaged can be put aside.
type mendable interface {
	archive.Store
	// Empty reports whether nothing was ever stored.
	Empty(ctx context.Context) (bool, error)
	// PutAside moves what is stored under a name into a directory of the data directory, durably. It is no error if
	// that is not there.
	PutAside(ctx context.Context, name, dir string) error
}

// archiveOf is the archive of a partition.
type archiveOf struct {
	Archive
	store   mendable
	name    string
	content []byte // the catalog, as it is
	version uint64
	rewrite bool              // the catalog does not have the parts
	parts   []*part           // in order
	spare   []archive.Segment // stored, and in none of the parts
}

// examineArchive reads the archive of a partition: that each segment of its catalog is as it was written, and if the
// catalog is damaged or lost, which segments there are.
func (r *run) examineArchive(ctx context.Context, of partition, live []*copyOf) (*archiveOf, error) {
	store, ok := r.Archives.Config(of.plane, of.number).Store.(mendable)
	if !ok {
		return nil, errors.New("it cannot be repaired where it is")
	}
	a := &archiveOf{store: store, name: of.String()}
	a.Status = Intact
	if empty, err := a.store.Empty(ctx); err != nil || empty {
		return a, err
	}
	stored, unreadable, err := archive.Stored(ctx, a.store, a.name)
	if err != nil {
		return nil, err
	}
	if a.content, a.version, err = a.store.Catalog(ctx); err != nil {
		return nil, err
	}
	c, err := archive.Read(ctx, a.store, a.name)
	readable := err == nil && a.version > 0
	switch {
	case errors.Is(err, archive.ErrDamaged):
		a.Damage, a.rewrite = append(a.Damage, err.Error()), true
		c = &archive.Catalog{Partition: a.name}
	case err != nil:
		return nil, err
	}
	for _, row := range c.Segments {
		delete(stored, row.GetName())
		if row.Before != a.end() {
			a.missing(row.Before)
		}
		a.add(row, row.Verify(ctx, a.store))
	}
	if err := a.extend(ctx, stored, live, readable); err != nil {
		return nil, err
	}
	if a.rewrite && len(a.Damage) == 0 {
		a.Damage = append(a.Damage, "the catalog does not have all segments that the journal needs")
	}
	for _, p := range a.parts {
		if p.damage != nil {
			a.Damage = append(a.Damage, p.damage.Error())
		}
	}
	if len(a.Damage) > 0 {
		for _, name := range slices.Sorted(maps.Keys(unreadable)) {
			a.Damage = append(a.Damage, fmt.Sprintf("%s cannot be read: %s", name, unreadable[name]))
		}
		a.Status = Repairable
	}
	if slices.ContainsFunc(a.parts, func(p *part) bool { return p.damage != nil }) {
		a.Status = Lost // until copies are found
	}
	a.spare = slices.Collect(maps.Values(stored))
	return a, nil
}

// add adds a segment behind the others.
func (a *archiveOf) add(row archive.Segment, damage error) {
	a.parts = append(a.parts, &part{row: &row, before: row.Before, end: row.End, damage: damage})
}

// end returns the end of the log behind what is archived.
func (a *archiveOf) end() framelog.End {
	if n := len(a.parts); n > 0 {
		return a.parts[n-1].end
	}
	return framelog.End{}
}

// extend adds stored segments behind the parts that the catalog has, in order, damaged ones included, and removes
// them from stored. It adds none if all frames of live behind the catalog form a chain from its end. It stops at a
// segment that does not begin at the end of the parts if the catalog could be read or an intact frame of live
// continues the parts, and in the latter case also at a damaged segment. If the catalog cannot be read, extend adds
// parts without a segment for the gaps between segments, and for the gap before the first intact frame of live unless
// that frame is in segment 0 or an intact frame of live continues the parts. Its only error is that of ctx.
func (a *archiveOf) extend(ctx context.Context, stored map[string]archive.Segment, live []*copyOf,
	readable bool,
) error {
	if c := assemble(a.name, a.end(), slices.DeleteFunc(slices.Clone(live), func(f *copyOf) bool {
		return f.seq <= a.end().Seq
	}), framelog.End{}); len(c.kept) > 0 && len(c.left) == 0 {
		return nil
	}
	follows := map[framelog.Hash]bool{} // the hashes of the frames that are continued in the journal
	var first *copyOf
	for _, f := range live {
		if _, intact := framelog.Anchor(a.name, f.seq, f.frame); !intact {
			continue
		}
		follows[f.frame.Link.Prev] = true
		if first == nil || f.seq < first.seq {
			first = f
		}
	}
	for {
		end := a.end()
		next, damage := a.next(ctx, stored, end)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case next == nil && first != nil && first.frame.Link.Segment > 0 && first.seq > end.Seq && !follows[end.Hash] &&
			!readable:
			a.missing(endBefore(first))
			return nil
		case next == nil:
			return nil
		case next.Before != end && (readable || follows[end.Hash]), damage != nil && follows[end.Hash]:
			return nil
		case next.Before != end:
			a.missing(next.Before)
		}
		delete(stored, next.GetName())
		a.add(*next, damage)
		a.rewrite = true
	}
}

// next returns the stored segment that is the next one behind an end of the log, an intact one if there is one, and its
// damage. Of two intact ones it is that of which more lines were erased or removed.
func (a *archiveOf) next(ctx context.Context, stored map[string]archive.Segment, end framelog.End) (
	next *archive.Segment, damage error,
) {
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		s := stored[name]
		if s.Before != end && s.Before.Seq <= end.Seq || next != nil &&
			(s.Before.Seq > next.Before.Seq || s.Before == next.Before && damage == nil &&
				s.GetErasedLines()+s.GetRemovedLines() <= next.GetErasedLines()+next.GetRemovedLines()) {
			continue
		}
		if broken := s.Verify(ctx, a.store); next == nil || s.Before != next.Before || damage != nil || broken == nil {
			next, damage = &s, broken
		}
	}
	return next, damage
}

// missing adds a part of which nothing is stored, up to an end.
func (a *archiveOf) missing(end framelog.End) {
	a.rewrite = true
	before := a.end()
	a.parts = append(a.parts, &part{before: before, end: end, damage: fmt.Errorf("of frames %d to %d, wal_seq %d to "+
		"%d, nothing is stored", before.Seq+1, end.Seq, before.WalSeq+1, end.WalSeq)})
}

// endBefore returns the end of the log before a frame, as far as the frame itself says it.
func endBefore(f *copyOf) framelog.End {
	l := f.frame.Link
	return framelog.End{
		Seq: f.seq - 1, WalSeq: max(l.First, 1) - 1, Hash: l.Prev, Incarnation: l.Incarnation,
		Segment: l.Segment,
	}
}

// span is some sequence numbers, both ends included.
type span struct{ first, last uint64 }

// wanted returns the frames of a journal of which copies are needed.
func (j *examined) wanted() (all []span) {
	for _, p := range j.archived.parts {
		if p.damage != nil {
			all = append(all, span{p.before.Seq + 1, p.end.Seq})
		}
	}
	if j.Status != Intact {
		all = append(all, span{j.archived.end().Seq + 1, math.MaxUint64})
	}
	return all
}

// readArchived adds the frames of an archived segment that can be read and are wanted.
func (s *stream) readArchived(ctx context.Context, store archive.Store, of partition, seg archive.Segment, place int) {
	x, err := seg.Index(ctx, store)
	if err != nil || x.GetPartition() != of.String() {
		return
	}
	in := jetlog.Place{Plane: of.plane, Partition: of.number, Segment: seg.GetNumber(), Shared: seg.GetShared()}
	for i, o := range x.GetObjects() {
		before, err := framelog.ParseEnd(o.GetBefore())
		if err != nil || !s.wants(of.number, before.Seq+1, o.GetLast()) {
			continue
		}
		frames, err := seg.Frames(ctx, store, x, i)
		if err != nil {
			continue // it is damaged
		}
		last := before.Seq
		for _, f := range frames {
			if last < seg.GetFirst() {
				last = 0 // it is in the segment before
			}
			s.add(&copyOf{
				seq: f.Seq, subject: in.Subject(), header: onWire(jetlog.Header(in.Stream(), last, f.Frame)),
				frame: f.Frame, place: place,
			})
			last = f.Seq
		}
	}
}

// readArchives adds what the archives of another data directory have.
func (s *stream) readArchives(ctx context.Context, dir string) error {
	n, err := archive.DirectoryPartitions(dir, s.plane)
	if err != nil {
		return err
	}
	for i := range n {
		of := partition{s.plane, i}
		store := archive.NewDirectory(dir, s.plane, i)
		all, _, err := archive.Stored(ctx, store, of.String())
		if err != nil {
			return err
		}
		for _, seg := range all {
			s.readArchived(ctx, store, of, seg, placeOther)
		}
	}
	return nil
}

// readArchive adds the frames that can be read of the damaged segments of a journal's archive, and of what is stored
// beside its catalog.
func (j *examined) readArchive(ctx context.Context, s *stream) {
	for _, p := range j.archived.parts {
		if p.row != nil && p.damage != nil {
			s.readArchived(ctx, j.archived.store, j.of, *p.row, placeArchive)
		}
	}
	for _, seg := range j.archived.spare {
		s.readArchived(ctx, j.archived.store, j.of, seg, placeArchive)
	}
}

// mend sets Status, Copies and Lost of a damaged archive. copies are the copies of the partition's frames that were
// found.
func (a *archiveOf) mend(copies []*copyOf) {
	a.Status, a.Copies = Repairable, map[string]int{}
	for _, p := range a.parts {
		if p.damage == nil {
			continue
		}
		of := slices.DeleteFunc(slices.Clone(copies), func(f *copyOf) bool {
			return f.seq <= p.before.Seq ||
				f.seq > p.end.Seq
		})
		lost := a.lost(p, of)
		if len(lost) > 0 {
			a.Status, a.Lost = Lost, append(a.Lost, lost...)
			continue
		}
		for _, f := range p.found {
			if f.place != placeArchive {
				a.Copies[placeNames[f.place]]++
			}
		}
	}
}

// lost sets p.found from copies of the frames of a part, and returns the ranges of those that have no copy.
func (a *archiveOf) lost(p *part, copies []*copyOf) (all []Range) {
	for at := p.before; ; {
		c := assemble(a.name, at, copies, p.end)
		p.found = append(p.found, c.kept...)
		if c.end.Hash == p.end.Hash {
			return all
		}
		up := p.end
		if len(c.left) > 0 {
			up = endBefore(c.left[0])
		}
		all = append(all, Range{
			First: c.end.Seq + 1, Last: up.Seq, FirstWalSeq: c.end.WalSeq + 1,
			LastWalSeq: up.WalSeq,
		})
		if len(c.left) == 0 {
			return all
		}
		at = up
	}
}

// mendArchives writes the damaged archives as far as they can be repaired, and returns the directory to which it
// moved what was damaged; "" if it changed none. An interruption leaves the old catalog in force, or the new one.
func (r *run) mendArchives(ctx context.Context) (replaced string, err error) {
	for _, j := range r.journals {
		a := j.archived
		if last := len(a.parts) - 1; a.Status == Intact || last >= 0 && a.parts[last].row == nil &&
			!a.complete(a.parts[last]) {
			continue // a catalog without the last part would not end where the log goes on
		}
		rows, gone, err := a.rows(ctx, r)
		if err != nil {
			return "", fmt.Errorf("the archive of %s: %w", a.name, err)
		}
		if len(rows) == 0 || !a.rewrite {
			continue
		}
		to := filepath.Join(r.replaced(), "archive", fmt.Sprintf("%s-%d", j.of.plane, j.of.number))
		if err := os.MkdirAll(to, 0o700); err != nil {
			return "", err
		}
		if a.version > 0 {
			if err := salvage.Write(filepath.Join(to, fmt.Sprintf("catalog-%d", a.version)), a.content); err != nil {
				return "", err
			}
		}
		if _, err := archive.Replace(ctx, a.store, a.name, a.version, rows); err != nil {
			return "", fmt.Errorf("the archive of %s: %w", a.name, err)
		}
		for _, name := range gone {
			if err := a.store.PutAside(ctx, name, to); err != nil {
				return "", err
			}
		}
		if err := salvage.SyncDir(to); err != nil {
			return "", err
		}
		replaced = r.replaced()
	}
	return replaced, nil
}

// rows returns the segments that the catalog gets. It writes those anew of which all frames were found, and returns the
// names of the damaged ones that these replace. What cannot be repaired stays as it is.
func (a *archiveOf) rows(ctx context.Context, r *run) (rows []archive.Segment, gone []string, err error) {
	for i, p := range a.parts {
		switch {
		case !a.complete(p) && p.row != nil:
			rows = append(rows, *p.row)
			continue
		case !a.complete(p):
			continue
		case p.row != nil:
			gone = append(gone, p.row.GetName())
		}
		before := p.before
		for len(p.found) > 0 {
			of := placeOf(p.found[0])
			seg := framelog.Segment{Number: of.Segment, First: 1, Shared: of.Shared}
			if of.Segment > 0 {
				seg.First = p.found[0].seq
			}
			var frames []archive.Frame
			for len(p.found) > 0 && placeOf(p.found[0]).Segment == of.Segment {
				frames = append(frames, archive.Frame{Seq: p.found[0].seq, Frame: p.found[0].frame})
				p.found = p.found[1:]
			}
			s, err := archive.Write(ctx, a.store, a.name, before, seg, frames, r.Now)
			if err != nil {
				return nil, nil, fmt.Errorf("part %d: %w", i, err)
			}
			rows, before, a.rewrite = append(rows, s), s.End, true
		}
	}
	return rows, gone, nil
}

// complete reports whether all frames of a damaged part were found.
func (a *archiveOf) complete(p *part) bool {
	at := p.before
	for _, f := range p.found {
		next, intact, err := at.Next(a.name, f.seq, f.frame)
		if err != nil || !intact {
			return false
		}
		at = next
	}
	return len(p.found) > 0 && at.Hash == p.end.Hash
}
