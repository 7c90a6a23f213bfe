package journal

import (
	"context"
	"errors"
)

// The outcomes of Log.Append that are not ambiguous.
var (
	// ErrWrongSequence: the log does not end at the expected sequence; this
	// append stored nothing. JetStream 10071.
	ErrWrongSequence = errors.New("journal: wrong last sequence")
	// ErrBusy: stored nothing, says nothing about who holds the log; try the
	// same again. JetStream 10164.
	ErrBusy = errors.New("journal: log busy")
	// ErrRefused: stored nothing and never will be.
	ErrRefused = errors.New("journal: append refused")
	// ErrNoFrame: Get found nothing at that sequence.
	ErrNoFrame = errors.New("journal: no such frame")
)

// Frame is what is written at once: all of its lines are there or none.
type Frame struct {
	ID         string // unique for ever; how a writer knows its own
	Generation uint64 // of the writer; see partition_opened
	Body       []byte // JSON Lines, each ended by '\n'; empty for a fence
}

// Log is the durable, ordered log of one partition. Sequences grow and may
// have gaps (one stream holds many partitions); 0 is before the first frame.
// Implementations are safe for concurrent use and pass journaltest.RunLog.
type Log interface {
	// Append stores f if the log's last sequence is expect, and returns f's
	// sequence once f is on disk. ErrWrongSequence, ErrBusy and ErrRefused
	// (wrapped) promise that this call stored nothing and never will. Any other
	// error, a context error too, is ambiguous: f may be there, may appear
	// later, or never. f.Body is not kept after a definite answer.
	Append(ctx context.Context, expect uint64, f Frame) (uint64, error)

	// Tail returns the last frame and its sequence, or a zero Frame and 0.
	Tail(ctx context.Context) (Frame, uint64, error)

	// Get returns the frame at seq, or ErrNoFrame.
	Get(ctx context.Context, seq uint64) (Frame, error)

	// Scan calls fn for each frame with sequence >= from, in order, and
	// returns after the frame that was last when Scan was called. An error of
	// fn ends it and is returned.
	Scan(ctx context.Context, from uint64, fn func(seq uint64, f Frame) error) error

	// Follow is Scan that goes on with the frames to come: each once, in
	// order, no gap, also across trouble with the log. It ends with ctx, with
	// an error of fn, or with trouble it cannot mend; calling it again with
	// the next sequence continues.
	Follow(ctx context.Context, from uint64, fn func(seq uint64, f Frame) error) error
}
