package output

import (
	"context"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Store keeps what commands wrote. It is bounded for each task: the end is
// kept, the beginning is dropped (SPEC T6). Offsets count the bytes of both
// outputs of a task in order of arrival, from 0, and are never used again.
//
// Every implementation is safe for concurrent use and passes testOutput. There
// is at most one writer for a task at a time.
type Store interface {
	// Append stores chunk, which is at most MaxChunk long, and returns where
	// the output ends once that is on disk. What of it lies before the end is
	// there already and is ignored, so that an append may be repeated. A gap
	// before it is kept as a gap: the writer dropped something.
	Append(ctx context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (end int64, err error)
	// Read returns up to limit bytes from offset on; FromEnd gives an offset
	// that counts from the end. A task without output has an empty piece.
	Read(ctx context.Context, namespace, taskID string, offset int64, limit int) (Piece, error)
	// Settle says that a task ended: what is kept of it beyond KeptOutput may go.
	Trim(ctx context.Context, namespace, taskID string) error
	// Remove forgets a task's output.
	Remove(ctx context.Context, namespace, taskID string) error
}

// MaxChunk is the most that one chunk may hold.
const MaxChunk = 64 << 10

// Kept is about how much output of a task is kept: 4 MiB, and up to 40 MiB
// while it runs.
const Kept = 4 << 20

// Piece is a part of a task's output.
type Piece struct {
	Chunks []*taskv1.OutputChunk // in order; the first is cut to begin at Start
	Start  int64                 // where Chunks begin, or would
	Oldest int64                 // the oldest byte that is kept
	End    int64                 // where the output ends now
}

// FromEnd is the offset n bytes before the end. n is positive.
func FromEnd(n int) int64 { return -int64(n) }
