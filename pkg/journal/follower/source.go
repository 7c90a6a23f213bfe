package follower

import (
	"context"
	"fmt"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
)

// Source is the journal of one partition as other partitions follow it.
//
// Follow calls fn for each frame behind after, in order and once, with the end of the log behind the frame. It blocks
// until ctx ends or fn returns an error, and may also return because of an error of the log; it is then called again. A
// frame that does not continue the one before it, or after, ends it with a *framelog.Broken, and so does a log that
// does not have the frame at after. The zero End is the beginning of the log; of an End with a zero Hash only Seq is
// used. lines are shared and must not be changed.
type Source interface {
	Plane() string
	Partition() int
	Follow(ctx context.Context, after framelog.End, fn func(end framelog.End, lines []event.Line) error) error
	// End returns the end of the log.
	End(ctx context.Context) (framelog.End, error)
	// At returns the end of the log as it was behind the frame at seq; framelog.ErrNoFrame if there is no frame, and
	// framelog.ErrRemoved if it was removed.
	At(ctx context.Context, seq uint64) (framelog.End, error)
}

// logSource is a Source that reads everything from the log.
type logSource struct {
	plane     string
	partition int
	log       framelog.Log
}

// NewSource returns a Source that reads a partition's log.
func NewSource(plane string, partition int, log framelog.Log) Source {
	return logSource{plane, partition, log}
}

// Plane returns the plane's name.
func (s logSource) Plane() string { return s.plane }

// Partition returns the partition's number.
func (s logSource) Partition() int { return s.partition }

// End implements Source. It returns the zero End for an empty log.
func (s logSource) End(ctx context.Context) (framelog.End, error) {
	f, seq, err := s.log.Tail(ctx)
	if err != nil || seq == 0 {
		return framelog.End{}, err
	}
	end, _ := framelog.Anchor(framelog.PartitionName(s.plane, s.partition), seq, f)
	return end, nil
}

// At implements Source.
func (s logSource) At(ctx context.Context, seq uint64) (framelog.End, error) {
	f, err := s.log.Get(ctx, seq)
	if err == nil && f.Removed.Seq > 0 {
		err = fmt.Errorf("%w: %d", framelog.ErrRemoved, seq)
	}
	if err != nil {
		return framelog.End{}, err
	}
	end, _ := framelog.Anchor(framelog.PartitionName(s.plane, s.partition), seq, f)
	return end, nil
}

// Follow implements Source. If frames up to after were lost and the loss was accepted, it continues with the
// new incarnation (framelog.FollowIncarnations).
func (s logSource) Follow(ctx context.Context, after framelog.End, fn func(framelog.End, []event.Line) error) error {
	return framelog.FollowIncarnations(ctx, s.log, framelog.PartitionName(s.plane, s.partition), after,
		func(end framelog.End, f framelog.Frame) error {
			return fn(end, event.Lines(f.Body))
		})
}
