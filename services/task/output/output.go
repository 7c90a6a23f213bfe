package output

import (
	"context"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Store stores what commands write. The output of each task is bounded: its end is
// kept and its beginning is dropped (SPEC T6). Offsets count the bytes of both streams
// of a task in the order of arrival, from 0, and are never reused.
//
// Implementations are safe for concurrent use and pass testOutput. A task has at most
// one writer at a time.
type Store interface {
	// Append stores a chunk of at most MaxChunk bytes and returns the offset at which the
	// output ends, once it is on disk. The part of the chunk before the current end was
	// stored before and is ignored, so that an append may be repeated. A chunk that begins
	// after the current end leaves a gap: its writer dropped output.
	Append(ctx context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (end int64, err error)
	// Read returns up to limit bytes from an offset on. A negative offset, see FromEnd,
	// counts from the end. A task without output has an empty piece.
	Read(ctx context.Context, namespace, taskID string, offset int64, limit int) (Piece, error)
	// Trim is called when a task has ended: output of it beyond Kept may be dropped.
	Trim(ctx context.Context, namespace, taskID string) error
	// Remove deletes the output of a task. A task without output is no error.
	Remove(ctx context.Context, namespace, taskID string) error
}

// MaxChunk is the most bytes of one chunk.
const MaxChunk = 64 << 10

// Kept is about how many bytes of output of an ended task are kept. While it runs, up to
// 40 MiB are kept.
const Kept = 4 << 20

// Piece is a part of a task's output.
type Piece struct {
	Chunks []*taskv1.OutputChunk // in order; the first is cut to begin at Start
	Start  int64                 // the offset at which Chunks begin, or would begin
	Oldest int64                 // the offset of the oldest byte that is kept
	End    int64                 // the offset at which the output ends now
}

// FromEnd returns the offset for Read that is n bytes before the end. n is positive.
func FromEnd(n int) int64 { return -int64(n) }
