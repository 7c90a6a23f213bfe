package datadir

import (
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/natsd/salvage"
)

// CheckBlocks completes the streams that the embedded server was creating when it died, and checks the blocks of the planes' journals, before
// it opens them.
func CheckBlocks(dir, account string, planes []string, logger *zap.Logger) error {
	s := salvage.Config{Store: Store(dir), Account: account, Dir: Salvage(dir), Now: time.Now(), Logger: logger}
	if err := salvage.Finish(s.Store, account, logger); err != nil {
		return err
	}
	for _, plane := range planes {
		segments, err := Segments(s.Store, account, plane)
		if err != nil {
			return err
		}
		for i, seg := range segments {
			stream := salvage.Stream{Name: seg.Stream(), Subjects: []string{jetlog.SubjectPrefix(plane)}}
			if seg.Shared {
				stream.Known, err = witness.Newest(Witness(dir), plane)
			} else {
				var end framelog.End
				end, err = witness.At(Witness(dir), plane, seg.Partition).Last()
				stream.Known = end.Seq
			}
			if err != nil && !seg.Shared {
				stream.Known, err = 0, nil // loading says what is wrong with the witness
			}
			if err != nil {
				return err
			}
			if later := laterThan(seg, segments[i+1:]); later != nil && (later.Frames || stream.Known >= later.First) {
				stream.Known, stream.Closed = 0, true
			}
			if stream.Known < seg.First {
				stream.Known = 0
			}
			s.Streams = append(s.Streams, stream)
		}
	}
	_, err := salvage.Check(s)
	return err
}

// laterThan returns the first of the given segments that is behind seg in the journal of a partition, or nil. Behind a shared one that
// is none, since other partitions may still be written there.
func laterThan(seg Segment, others []Segment) *Segment {
	for i := range others {
		if !seg.Shared && others[i].Partition == seg.Partition {
			return &others[i]
		}
	}
	return nil
}
