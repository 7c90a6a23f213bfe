package archives

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// JournalConfig says what is read and who is told.
type JournalConfig struct {
	Partition string // such as work/0
	// Store is the archive; nil: there is none.
	Store archive.Store
	// Where is the directory or the prefix that has the archive, for errors, and Files says that it is a directory.
	Where string
	Files bool
	// Mends says that `quartet repair` can make a catalog anew.
	Mends bool
	// Trust says that only the catalog is read: the segments that it names count as intact.
	Trust bool
	// Damage is called for each damage, in the order of the journal. Reading goes on behind the damage.
	Damage func(error)
	// Line checks the lines of a frame, which follow a wal_seq; nil: nothing of them is checked.
	Line func(f framelog.Frame, before uint64) error
	// Pace is called after n bytes of the archive were read. If it returns an error, reading ends with that error.
	// nil: it is not called.
	Pace func(ctx context.Context, n int) error
}

// Journal is a journal that is read from its beginning: first Archived, then Frame for what the log has, in order, and
// at last Finish.
type Journal struct {
	JournalConfig
	End            framelog.End // behind what was read
	Frames, Events uint64
	// Segments and ArchivedFrames are how many of them were read in the archive.
	Segments       int
	ArchivedFrames uint64
	Erased         uint64 // lines that were erased
	Removed        uint64 // lines of frames that were removed, which are not counted

	// ArchiveEnd is the end of the archive, as it was read last.
	ArchiveEnd framelog.End

	compared   *framelog.Comparison
	unreadable bool // the catalog cannot be read, and Damage was called for that
	behind     bool // the log has a frame behind the archive
	read       bool // the archive was read to its end once
	grown      bool // the archive got a segment after that
}

// BeginJournal begins to read a journal. If the journal does not have the frame that recorded has witnessed last until
// now, that is damage.
func BeginJournal(cfg JournalConfig, recorded framelog.Witness) *Journal {
	j := &Journal{JournalConfig: cfg}
	var err error
	if j.compared, err = framelog.Compare(cfg.Partition, recorded); err != nil {
		j.Damage(err)
	}
	return j
}

// Fork returns a copy of j, which reads another replica from the same place on and calls damage instead of j.Damage.
func (j *Journal) Fork(damage func(error)) *Journal {
	other := *j
	compared := *j.compared
	other.compared, other.Damage = &compared, damage
	return &other
}

// Holds reports whether the archive has the segment with a number, as far as it was read.
func (j *Journal) Holds(segment uint64) bool {
	return j.ArchiveEnd.Seq > 0 && segment < j.ArchiveEnd.Segment
}

// Archived reads what the archive has behind the end of the journal. An error means that it could not be read, which
// says nothing about damage.
func (j *Journal) Archived(ctx context.Context) error {
	if j.Store == nil {
		return nil
	}
	c, err := archive.Read(ctx, j.Store, j.Partition)
	switch {
	case err == nil:
	case errors.Is(err, archive.ErrDamaged), errors.Is(err, archive.ErrNoObject), errors.Is(err, syscall.EIO):
		if !j.unreadable {
			j.unreadable = true
			j.Damage(fmt.Errorf("the journal of %s is damaged: the catalog of its archive %s cannot be read: %w%s",
				j.Partition, j.Where, err, j.remedy()))
		}
		return nil
	default:
		return err
	}
	before := framelog.End{}
	for i, s := range c.Segments {
		if i > 0 && s.GetNumber() <= c.Segments[i-1].GetNumber() || s.Before != before {
			j.Damage(fmt.Errorf("the journal of %s is damaged: in the catalog of its archive segment %d begins at "+
				"%s, and what is before it ends at %s", j.Partition, s.GetNumber(), s.Before, before))
		}
		if before = s.End; s.End.Seq <= j.ArchiveEnd.Seq {
			continue
		}
		if s.End.Seq > j.End.Seq { // otherwise it was read in the log
			switch err := j.archivedSegment(ctx, c, s); {
			case errors.Is(err, errRewritten):
				return j.Archived(ctx)
			case err != nil:
				return fmt.Errorf("the archive of %s: %w", j.Partition, err)
			}
		}
		j.ArchiveEnd, j.behind, j.grown = s.End, j.End.Seq > s.End.Seq, j.read
	}
	j.read = true
	return nil
}

// archivedSegment reads an archived segment, from the end of the journal on, unless it is trusted.
func (j *Journal) archivedSegment(ctx context.Context, c *archive.Catalog, s archive.Segment) error {
	if !j.Trust {
		err := j.segment(ctx, c, s)
		if err == nil {
			j.Segments++
		}
		return err
	}
	j.End = s.End
	if err := j.compared.ReadFrom(s.End); err != nil {
		j.Damage(err)
	}
	return ctx.Err()
}

// place returns where something is that is stored under a name.
func (j *Journal) place(name string) string {
	if j.Files {
		return filepath.Join(j.Where, name)
	}
	return name + " of " + j.Where
}

// remedy returns the end of an error about a catalog: what mends it, or "" if nothing here does.
func (j *Journal) remedy() string {
	if j.Store == nil {
		return "; give the setting archive that the servers have"
	}
	if j.Mends {
		return "; `quartet repair` makes it anew from the segments that are stored"
	}
	return ""
}

// errRewritten means that the segment was replaced while it was read, because lines of it were erased. Archived then
// reads the catalog again, and the rest of the segment in its replacement.
var errRewritten = errors.New("archives: the segment was replaced")

// segment reads an archived segment, from the end of the journal on.
func (j *Journal) segment(ctx context.Context, c *archive.Catalog, s archive.Segment) error {
	whole := j.End == s.Before
	x, err := s.Index(ctx, j.Store)
	if err == nil {
		err = j.belongs(s, x)
	}
	if err := j.pace(ctx, s.GetIndex()); err != nil {
		return err
	}
	if err != nil {
		return j.unread(ctx, c, s, j.End, s.End, fmt.Errorf("its index: %w", err))
	}
	var frames int64
	for i, o := range x.GetObjects() {
		if o.GetLast() <= j.End.Seq {
			continue
		}
		before, err := framelog.ParseEnd(o.GetBefore())
		end := s.End
		if err == nil && i+1 < len(x.GetObjects()) {
			end, err = framelog.ParseEnd(x.GetObjects()[i+1].GetBefore())
		}
		var read []archive.Frame
		if err == nil {
			read, err = s.Frames(ctx, j.Store, x, i)
		}
		if err := j.pace(ctx, o); err != nil {
			return err
		}
		if err != nil {
			whole = false
			if err := j.unread(ctx, c, s, before, end, err); err != nil {
				return err
			}
			continue
		}
		for _, f := range read {
			if f.Seq > j.End.Seq {
				frames++
				j.ArchivedFrames++
				j.frame(f.Seq, f.Frame)
			}
		}
	}
	if whole && frames != s.GetFrames() {
		return j.unread(ctx, c, s, s.Before, s.End, fmt.Errorf("it has %d frames, not %d", frames, s.GetFrames()))
	}
	return nil
}

// belongs returns an error if an index is not that of a segment.
func (j *Journal) belongs(s archive.Segment, x *archivev1.Index) error {
	objects := x.GetObjects()
	switch of := x.GetSegment(); {
	case x.GetPartition() != j.Partition || of.GetNumber() != s.GetNumber() || of.GetBefore() != s.GetBefore():
		return fmt.Errorf("it is that of segment %d of %s behind %s", of.GetNumber(), x.GetPartition(), of.GetBefore())
	case len(objects) == 0 || objects[0].GetBefore() != s.GetBefore() || objects[len(objects)-1].GetLast() != s.End.Seq:
		return errors.New("its objects are not all of the segment")
	}
	return nil
}

// pace calls Pace for an object that was read.
func (j *Journal) pace(ctx context.Context, o *archivev1.Object) error {
	if j.Pace == nil {
		return ctx.Err()
	}
	return j.Pace(ctx, int(o.GetBytes()))
}

// unread calls Damage because the frames between the ends from and to cannot be read, and continues at to. It returns
// errRewritten if the segment was replaced, and another error if cause may only mean that the archive does not
// answer.
func (j *Journal) unread(ctx context.Context, c *archive.Catalog, s archive.Segment, from, to framelog.End,
	cause error,
) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if c.Rewritten(ctx, j.Store, s, cause) {
		return errRewritten
	}
	// Whatever keeps a file from being read is damage. Of a server an error may say that it does not answer.
	if !j.Files && !errors.Is(cause, archive.ErrNoObject) && !errors.As(cause, new(*framelog.Broken)) {
		return fmt.Errorf("segment %d: %w", s.GetNumber(), cause)
	}
	events := ""
	if to.WalSeq > from.WalSeq {
		events = fmt.Sprintf(" (wal_seq %d to %d)", from.WalSeq+1, to.WalSeq)
	}
	j.Damage(fmt.Errorf("the journal of %s is damaged: frames behind %d up to %d%s are not as they were archived, in "+
		"segment %d, %s: %w", j.Partition, from.Seq, to.Seq, events, s.GetNumber(), j.place(s.GetName()), cause))
	j.End = to
	if err := j.compared.ReadFrom(to); err != nil {
		j.Damage(err)
	}
	return nil
}

// Frame reads a frame of the log. What is archived is passed over. If the log does not continue what was read before, a
// part of it may have been archived meanwhile, which is read first.
func (j *Journal) Frame(ctx context.Context, seq uint64, f framelog.Frame) error {
	if seq <= j.ArchiveEnd.Seq {
		return nil
	}
	if _, _, err := j.End.Next(j.Partition, seq, f); err != nil {
		if err := j.Archived(ctx); err != nil {
			return err
		}
		if seq <= j.ArchiveEnd.Seq {
			return nil
		}
	}
	j.behind = true
	j.frame(seq, f)
	return nil
}

// frame reads a frame.
func (j *Journal) frame(seq uint64, f framelog.Frame) {
	next, intact, err := j.End.Next(j.Partition, seq, f)
	if err != nil {
		j.broken(f, err)
		next, intact = framelog.Anchor(j.Partition, seq, f)
	}
	before := next.WalSeq
	if n := uint64(len(framelog.SplitLines(f.Body))); n <= before {
		before -= n
	}
	if !intact {
		j.Damage(framelog.Altered(j.Partition, framelog.End{Seq: j.End.Seq, WalSeq: before}, seq))
	} else if j.Line != nil {
		if err := j.Line(f, before); err != nil {
			j.Damage(fmt.Errorf("the journal of %s is damaged at frame %d: %w", j.Partition, seq, err))
		}
	}
	if err := j.compared.Read(next); err != nil {
		j.Damage(err)
	}
	j.Erased += uint64(f.Erased())
	if f.Removed.Seq > 0 {
		j.Removed += next.WalSeq - min(j.End.WalSeq, next.WalSeq)
	}
	j.Frames, j.Events, j.End = j.Frames+1, j.Events+next.WalSeq-before, next
}

// broken calls Damage because a frame does not continue the journal. If the segments between archive and log are
// missing, it names these.
func (j *Journal) broken(f framelog.Frame, err error) {
	l := f.Link
	switch missing := j.End.Seq == j.ArchiveEnd.Seq && l.Segment > j.End.Segment && l.First > j.End.WalSeq+1; {
	case missing && j.unreadable: // the unreadable catalog is why, and was reported
	case missing:
		segments := fmt.Sprintf("segments %d to %d are", j.End.Segment, l.Segment-1)
		if l.Segment == j.End.Segment+1 {
			segments = fmt.Sprintf("segment %d is", j.End.Segment)
		}
		j.Damage(fmt.Errorf("the journal of %s is damaged: %s neither in the log nor in the catalog of its archive, "+
			"with wal_seq %d to %d%s", j.Partition, segments, j.End.WalSeq+1, l.First-1, j.remedy()))
	default:
		j.Damage(err)
	}
}

// Finish calls Damage if frames are missing at the end of the journal. The caller must have passed all frames of the
// log to Frame.
func (j *Journal) Finish(ctx context.Context) error {
	if err := j.compared.Missing(j.End); err != nil || !j.behind {
		if err := j.Archived(ctx); err != nil { // what was read of the log may be archived since
			return err
		}
	}
	// otherwise what is behind it may be in a segment of which the caller does not know yet
	if j.ArchiveEnd.Seq > 0 && !j.behind && !j.grown {
		j.Damage(fmt.Errorf("the journal of %s is damaged: its log has nothing behind its archive, which ends at "+
			"frame %d: segment %d is gone", j.Partition, j.ArchiveEnd.Seq, j.ArchiveEnd.Segment))
	}
	if err := j.compared.Missing(j.End); err != nil {
		j.Damage(err)
	}
	return nil
}

// Place is where archives are: in a bucket, or without one in a directory. The zero Place has none.
type Place struct {
	Bucket *Bucket
	Dir    string
	Remote bool // the journals are on NATS servers, and `quartet repair` does not mend them
}

// Config returns the Config of the archive of a partition, without functions.
func (p Place) Config(plane string, partition int) JournalConfig {
	cfg := JournalConfig{Partition: framelog.PartitionName(plane, partition), Mends: !p.Remote}
	switch {
	case p.Bucket != nil:
		store := p.Bucket.Store(plane, partition)
		cfg.Store, cfg.Where = store, store.Where()
	case p.Dir != "":
		cfg.Store, cfg.Files = archive.NewDirectory(p.Dir, plane, partition), true
		cfg.Where = filepath.Join(p.Dir, plane+"-"+strconv.Itoa(partition))
	}
	return cfg
}

// Partitions returns how many partitions of a plane have an archive, counted up to the last that has one.
func (p Place) Partitions(ctx context.Context, plane string) (int, error) {
	if p.Bucket != nil {
		return p.Bucket.Partitions(ctx, plane)
	}
	return archive.DirectoryPartitions(p.Dir, plane)
}
