package backup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/archive"
	segments "quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
)

// archived is a segment in the archive of its partition.
type archived struct {
	partition string
	of        jetlog.Place
	store     segments.Store
	segments.Segment
}

// archives returns the archived segments of all partitions that have a stream in live. The key is the name of the
// stream that a segment had before it was archived. A shared stream had a segment of each partition of its plane.
func (s *Service) archives(ctx context.Context, live []string) (map[string][]archived, error) {
	all := map[string][]archived{}
	if s.deps.Archive == nil {
		return all, nil
	}
	var partitions []jetlog.Place
	for _, name := range live {
		switch p, ok := jetlog.ParseStream(name); {
		case ok && p.Shared && s.deps.Partitions != nil:
			for i := range max(s.deps.Partitions()[p.Plane], 1) {
				partitions = append(partitions, jetlog.Place{Plane: p.Plane, Partition: i})
			}
		case ok:
			partitions = append(partitions, jetlog.Place{Plane: p.Plane, Partition: p.Partition})
		}
	}
	slices.SortFunc(partitions, jetlog.Place.Compare)
	for _, p := range slices.Compact(partitions) {
		store, err := s.deps.Archive(p.Plane, p.Partition)
		if err != nil {
			return nil, err
		}
		name := framelog.PartitionName(p.Plane, p.Partition)
		c, err := segments.Read(ctx, store, name)
		if err != nil {
			return nil, err
		}
		for _, seg := range c.Segments {
			of := jetlog.Place{
				Plane: p.Plane, Partition: p.Partition, Segment: seg.GetNumber(),
				Shared: seg.GetShared(),
			}
			all[of.Stream()] = append(all[of.Stream()], archived{name, of, store, seg})
		}
	}
	return all, nil
}

// complete returns the streams in live and those that the archived segments had, without duplicates: first the
// streams that are no segments, then those of each plane in the order of partitions and segments.
func complete(live []string, archives map[string][]archived) (names []string) {
	var planes []string
	places := map[string][]jetlog.Place{}
	add := func(p jetlog.Place) {
		if places[p.Plane] == nil {
			planes = append(planes, p.Plane)
		}
		places[p.Plane] = append(places[p.Plane], p)
	}
	for _, name := range live {
		if p, ok := jetlog.ParseStream(name); ok {
			add(p)
		} else {
			names = append(names, name)
		}
	}
	for _, parts := range archives {
		p := parts[0].of
		if p.Shared {
			p.Partition = 0
		}
		add(p)
	}
	for _, plane := range planes {
		slices.SortFunc(places[plane], jetlog.Place.Compare)
		for _, p := range slices.Compact(places[plane]) {
			names = append(names, p.Stream())
		}
	}
	return names
}

// copying copies the streams of a backup.
type copying struct {
	*Service
	js     jetstream.JetStream
	moment cut
	write  func(archive.Message) error
	// ends has, by partition, the end of the segment that was copied last, if that came from the archive. seen has
	// the partitions of which any segment was copied, from the archive or from a stream of its own.
	ends map[string]framelog.End
	seen map[string]bool
}

// stream copies a stream. A segment that was archived before the moment, or is archived while the backup is made, is
// copied from the archive, in the latter case from where its stream could not be read any more.
func (c *copying) stream(ctx context.Context, name string, archives map[string][]archived) error {
	if plane, partition, ok := jetlog.ParseSnapshotStream(name); ok {
		return c.snapshots(ctx, name, plane, partition)
	}
	of, segment := jetlog.ParseStream(name)
	last, until := uint64(0), uint64(math.MaxUint64)
	if end, live := c.moment.ends[name]; live || !segment {
		partition := framelog.PartitionName(of.Plane, of.Partition)
		err := copyStream(ctx, c.js, name, c.moment, func(m archive.Message) error {
			if last == 0 && segment && !of.Shared {
				if err := c.follows(partition, m); err != nil {
					return err
				}
			}
			last = m.Seq
			return c.write(m)
		})
		if err == nil || !segment || ctx.Err() != nil {
			return err
		}
		if _, gone := c.js.Stream(ctx, name); !errors.Is(gone, jetstream.ErrStreamNotFound) {
			return err
		}
		now, readErr := c.archives(ctx, []string{name})
		if readErr != nil || len(now[name]) == 0 {
			return errors.Join(err, readErr)
		}
		archives, until = now, end.final
	}
	return c.archived(ctx, archives[name], last, until)
}

// follows verifies that m, the first message of a segment's stream, continues the segment before. It verifies nothing
// if that segment did not come from the archive.
func (c *copying) follows(partition string, m archive.Message) error {
	end, archived := c.ends[partition]
	delete(c.ends, partition)
	c.seen[partition] = true
	if !archived {
		return nil
	}
	_, _, err := end.Next(partition, m.Seq, jetlog.Decode(nats.Header(m.Header), m.Data))
	return err
}

// archived copies the messages that a stream had behind after, up to until, from the archived segments parts. For a
// shared stream, whose messages are in the archives of several partitions, it merges them by sequence number.
func (c *copying) archived(ctx context.Context, parts []archived, after, until uint64) error {
	type source struct {
		next func() (archive.Message, error, bool)
		m    archive.Message
	}
	var sources []*source
	advance := func(s *source) error {
		m, err, more := s.next()
		if err != nil {
			return err
		}
		s.m = m
		if !more {
			sources = slices.DeleteFunc(sources, func(other *source) bool { return other == s })
		}
		return nil
	}
	for _, p := range parts {
		if p.GetFirst() > until {
			continue // it had no frame at the moment, and the backup need not have all frames before it
		}
		if end, known := c.ends[p.partition]; (known || !c.seen[p.partition]) && p.Before != end && after == 0 {
			return fmt.Errorf("the journal of %s is damaged: segment %d of its archive begins behind frame %d, not "+
				"behind frame %d", p.partition, p.of.Segment, p.Before.Seq, end.Seq)
		}
		next, stop := iter.Pull2(c.messages(ctx, p, after, until))
		defer stop()
		s := &source{next: next}
		sources = append(sources, s)
		if err := advance(s); err != nil {
			return err
		}
	}
	for len(sources) > 0 {
		s := slices.MinFunc(sources, func(a, b *source) int { return int(min(max(int64(a.m.Seq-b.m.Seq), -1), 1)) })
		if err := c.write(s.m); err != nil {
			return err
		}
		if err := advance(s); err != nil {
			return err
		}
	}
	return nil
}

// errEnough ends the reading of a segment when its remaining frames are not wanted. It is no failure.
var errEnough = errors.New("backup: enough")

// messages returns those messages of the stream of an archived segment whose sequence numbers are greater than after
// and at most until. It verifies that each frame continues the one before. An error is the last element. If lines of
// the segment are erased meanwhile, which is no error, it goes on reading in the segment that replaced it.
func (c *copying) messages(ctx context.Context, p archived, after, until uint64) iter.Seq2[archive.Message, error] {
	return func(yield func(archive.Message, error) bool) {
		var at framelog.End
		var err error
		for again := true; again; {
			at, err = c.segment(ctx, p, &after, until, yield)
			again = p.rewritten(ctx, err)
		}
		if err == nil && at != p.End {
			err = fmt.Errorf("it ends at frame %d, not at frame %d", at.Seq, p.End.Seq)
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(archive.Message{}, fmt.Errorf("segment %d of %s in its archive: %w", p.of.Segment, p.partition, err))
			return
		}
		c.ends[p.partition], c.seen[p.partition] = at, true
	}
}

// rewritten reports whether the segment could not be read because lines of it were erased meanwhile. If so, it sets p
// to the segment that replaced it.
func (p *archived) rewritten(ctx context.Context, cause error) bool {
	if !errors.Is(cause, segments.ErrNoObject) {
		return false
	}
	now, err := segments.Read(ctx, p.store, p.partition)
	if err != nil || !now.Rewritten(ctx, p.store, p.Segment, cause) {
		return false
	}
	for _, s := range now.Segments {
		if s.GetNumber() == p.GetNumber() {
			p.Segment = s
		}
	}
	return true
}

// segment yields the messages of a segment behind *after, and sets *after to the last one yielded. It returns the end
// of the log behind the last frame that it read.
func (c *copying) segment(ctx context.Context, p archived, after *uint64, until uint64,
	yield func(archive.Message, error) bool,
) (framelog.End, error) {
	at, stream := p.Before, p.of.Stream()
	err := p.Scan(ctx, p.store, 0, func(seq uint64, f framelog.Frame) error {
		next, intact, err := at.Next(p.partition, seq, f)
		switch {
		case err != nil:
			return err
		case !intact:
			return framelog.Altered(p.partition, at, seq)
		case seq > until:
			return errEnough
		}
		expect := at.Seq
		if expect < p.GetFirst() {
			expect = 0 // the frame before this one is in another segment
		}
		at = next
		if seq <= *after {
			return nil
		}
		m := archive.Message{
			Stream: stream, Subject: p.of.Subject(), Seq: seq,
			Header: jetlog.Header(stream, expect, f), Data: jetlog.Body(f),
		}
		if !yield(m, nil) {
			return errEnough
		}
		*after = seq
		return nil
	})
	return at, err
}
