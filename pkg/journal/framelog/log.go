package framelog

import (
	"context"
	"errors"
	"fmt"
)

// The errors of Log.Append that are not ambiguous, and of Log.Get.
var (
	// ErrWrongSequence means that the log does not end at the expected sequence and that this append stored
	// nothing. JetStream code 10071.
	ErrWrongSequence = errors.New("framelog: wrong last sequence")
	// ErrBusy means that this append stored nothing. Another writer need not exist, and the same append can be
	// tried again. JetStream code 10164.
	ErrBusy = errors.New("framelog: log busy")
	// ErrRefused means that this append stored nothing and never will.
	ErrRefused = errors.New("framelog: append refused")
	// ErrFull is the ErrRefused of a store that has no space left.
	ErrFull = fmt.Errorf("%w: the store is full", ErrRefused)
	// ErrTooLarge is the ErrRefused of a frame that is larger than the log allows.
	ErrTooLarge = fmt.Errorf("%w: the frame is too large", ErrRefused)
	// ErrNoFrame means that Get found no frame at the sequence. A server of a cluster that is no leader any more may
	// answer so although there is one.
	ErrNoFrame = errors.New("framelog: no such frame")
	// ErrGone is the ErrNoFrame of a frame that no server has.
	ErrGone = fmt.Errorf("%w: no server has it", ErrNoFrame)
	// ErrRemoved means that a frame was removed with all its lines, because it was older than history is kept. It is
	// neither missing nor damaged.
	ErrRemoved = errors.New("framelog: the frame was removed")
	// ErrSegmentGone is the ErrRefused of a segment that the log does not have any more: another writer has written
	// later segments since.
	ErrSegmentGone = fmt.Errorf("%w: the segment is gone", ErrRefused)
	// ErrTrimmed means that frames were asked for that the log does not have any more.
	ErrTrimmed = errors.New("framelog: the log begins later")
)

// Frame is a group of events that is written at once: the log has all of its lines or none.
type Frame struct {
	ID         string // unique for all time; identifies the frame to its writer
	Generation uint64 // of the writer, as in its partition_opened
	Body       []byte // JSON Lines, each ended by '\n'; empty for a fence
	Link       Link
	// Rests has what is kept of the hash of each line, if lines were erased; otherwise it is nil. Only an archive has
	// frames with Rests, and a log that was restored or repaired from one.
	Rests []Rest
	// Removed is not zero if this Frame stands for frames that were removed: it is the end of the log behind them, and
	// Link.Prev is the only other field that is set. Only an archive has such frames, and a log that was restored or
	// repaired from one.
	Removed End
}

// Bounded is implemented by a Log that limits the size of its frames.
type Bounded interface {
	// MaxBody returns the size in bytes that the body of a frame may have now. It must not block.
	MaxBody() int
}

// SegmentGap is the least distance in sequence numbers between the last frame of a segment at the time at which the
// next one is prepared (or the place before its first frame, if it has none) and the beginning of the next one. So the
// next segment begins behind everything that may still be written to the one before it.
const SegmentGap = 1 << 24

// Segmented is implemented by a Log whose frames are in segments, which are written one after the other and removed
// as a whole.
type Segmented interface {
	// Prepare makes sure that the segment behind number exists, and returns the sequence number at which it begins. It
	// is idempotent.
	Prepare(ctx context.Context, number uint64) (first uint64, err error)
	// Size returns how many bytes the frames of a segment have in the log; ErrSegmentGone if it does not have the
	// segment.
	Size(ctx context.Context, number uint64) (int64, error)
	// Segments returns the segments that the log has, in order. Their numbers have gaps where an accepted loss left
	// segments out.
	Segments(ctx context.Context) ([]Segment, error)
	// Drop permanently removes a segment, which must be closed and the first one. It is idempotent. A Shared segment
	// stays in the store; the log does not have it any more once the one behind it was dropped.
	Drop(ctx context.Context, number uint64) error
}

// Segment is a segment of a log.
type Segment struct {
	Number uint64
	First  uint64 // sequence number at which it begins
	Shared bool   // other partitions have frames in it
}

// Log is the durable, ordered log of one partition. Sequence numbers increase and may have gaps, between segments and
// where one stream holds many partitions; 0 is before the first frame. Implementations are safe for concurrent use and
// pass journaltest.RunLog.
type Log interface {
	// Append stores f in the segment f.Link.Segment if the log's last sequence is expect, and returns f's sequence once
	// f is on disk. ErrWrongSequence, ErrBusy and ErrRefused (wrapped) promise that this call stored nothing and never
	// will. Any other error, including a context error, is ambiguous: f may be stored, may be stored later, or never.
	// f.Body is not kept after a definite outcome.
	Append(ctx context.Context, expect uint64, f Frame) (uint64, error)

	// Tail returns the last frame and its sequence, or a zero Frame and 0.
	Tail(ctx context.Context) (Frame, uint64, error)

	// Get returns the frame at seq, or ErrNoFrame, or ErrGone if asking again cannot find it. If the frame was removed,
	// it returns a Frame with Removed set, the end of the removed frames, which may be behind seq.
	Get(ctx context.Context, seq uint64) (Frame, error)

	// Scan calls fn for each frame with sequence >= from, in order, and returns nil after the frame that was last when
	// Scan was called. An error of fn ends it and is returned as it is; other errors are of the log or of ctx.
	Scan(ctx context.Context, from uint64, fn func(seq uint64, f Frame) error) error

	// Follow is a Scan that continues with future frames: each once, in order, without gaps, also across errors
	// of the log that it can recover from. It blocks until ctx ends, fn returns an error, or an error occurs
	// that it cannot recover from; calling it again with the next sequence continues.
	Follow(ctx context.Context, from uint64, fn func(seq uint64, f Frame) error) error
}
