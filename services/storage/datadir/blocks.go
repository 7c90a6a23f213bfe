package datadir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/natsd/salvage"
)

// CheckBlocks prepares the store of the embedded server; the caller must not have started the server yet. It
// completes the streams that the server was creating when it died, removes those of archived segments that it was
// removing, and checks the blocks of the planes' journals. archives returns the archive of a partition.
func CheckBlocks(dir, account string, planes []string, archives func(plane string, partition int) (archive.Store,
	error), logger *zap.Logger,
) error {
	s := salvage.Config{Store: Store(dir), Account: account, Dir: Salvage(dir), Now: time.Now(), Logger: logger}
	if err := salvage.Finish(s.Store, account, logger); err != nil {
		return err
	}
	for _, plane := range planes {
		segments, err := Segments(s.Store, account, plane)
		if err != nil {
			return err
		}
		if segments, err = removeLeft(plane, segments, archives, logger); err != nil {
			return err
		}
		ends, err := witnessed(Witness(dir), plane)
		if err != nil {
			return err
		}
		for _, seg := range segments {
			stream := salvage.Stream{Name: seg.Stream(), Subjects: []string{jetlog.SubjectPrefix(plane)}}
			for partition, seq := range ends {
				later := behind(seg, partition, segments)
				// If a later segment has frames, the witness says nothing about this one: the witnessed frame may be
				// among those that were given up when the journal went on behind it.
				if (seg.Shared || seg.Partition == partition) && seq >= seg.First &&
					(later == nil || !later.Frames && seq < later.First) {
					stream.Known = max(stream.Known, seq)
				}
			}
			// Other partitions may still be written in a shared one.
			if later := behind(seg, seg.Partition, segments); !seg.Shared && later != nil {
				stream.Closed = later.Frames || seg.Partition < len(ends) && ends[seg.Partition] >= later.First
			}
			s.Streams = append(s.Streams, stream)
		}
	}
	_, err := salvage.Check(s)
	return err
}

// removeLeft removes what is left of the streams of archived segments whose removal was interrupted, and returns the
// other segments. The server removes the configuration first, and does not see a stream without one any more.
func removeLeft(plane string, segments []Segment, archives func(plane string, partition int) (archive.Store, error),
	logger *zap.Logger,
) (others []Segment, err error) {
	for _, seg := range segments {
		_, err := os.Stat(filepath.Join(seg.Dir, "meta.inf"))
		if seg.Shared || !errors.Is(err, fs.ErrNotExist) {
			others = append(others, seg)
			continue
		}
		var c *archive.Catalog
		store, err := archives(plane, seg.Partition)
		if err == nil {
			c, err = archive.Read(context.Background(), store, framelog.PartitionName(plane, seg.Partition))
		}
		if err != nil || !c.Has(seg.Segment) { // loading the journal reports what is wrong
			others = append(others, seg)
			continue
		}
		if err := errors.Join(os.RemoveAll(seg.Dir), salvage.SyncDir(filepath.Dir(seg.Dir))); err != nil {
			return nil, err
		}
		logger.Info("removed what was left of the stream of an archived segment", zap.String("stream", seg.Stream()))
	}
	return others, nil
}

// witnessed returns the sequence number of the last frame that was witnessed of each partition of a plane. It is 0
// where a witness cannot be read; loading the journal reports that.
func witnessed(dir, plane string) ([]uint64, error) {
	n, err := witness.Partitions(dir, plane)
	if err != nil {
		return nil, err
	}
	ends := make([]uint64, n)
	for i := range ends {
		if end, err := witness.At(dir, plane, i).Last(); err == nil {
			ends[i] = end.Seq
		}
	}
	return ends, nil
}

// behind returns the segment that follows seg in the journal of a partition, or nil. all are in order.
func behind(seg Segment, partition int, all []Segment) *Segment {
	for i := range all {
		if !all[i].Shared && all[i].Partition == partition && all[i].Segment > seg.Segment {
			return &all[i]
		}
	}
	return nil
}
