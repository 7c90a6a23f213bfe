package task

import (
	"context"
	"strings"
	"unicode/utf8"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Output keeps what commands wrote. It is bounded for each task: the end is
// kept, the beginning is dropped (SPEC T6). Offsets count the bytes of both
// outputs of a task in order of arrival, from 0, and are never used again.
//
// Every implementation is safe for concurrent use and passes testOutput. There
// is at most one writer for a task at a time.
type Output interface {
	// Append stores chunk, which is at most MaxChunk long, and returns where
	// the output ends once that is on disk. What of it lies before the end is
	// there already and is ignored, so that an append may be repeated. A gap
	// before it is kept as a gap: the writer dropped something.
	Append(ctx context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (end int64, err error)
	// Read returns up to limit bytes from offset on; FromEnd gives an offset
	// that counts from the end. A task without output has an empty piece.
	Read(ctx context.Context, namespace, taskID string, offset int64, limit int) (Piece, error)
	// Settle says that a task ended: what is kept of it beyond KeptOutput may go.
	Settle(ctx context.Context, namespace, taskID string) error
	// Remove forgets a task's output.
	Remove(ctx context.Context, namespace, taskID string) error
}

// MaxChunk is the most that one chunk may hold.
const MaxChunk = 64 << 10

// KeptOutput is about how much output of a task is kept: 4 MiB, and up to 40 MiB
// while it runs.
const KeptOutput = 4 << 20

// Piece is a part of a task's output.
type Piece struct {
	Chunks []*taskv1.OutputChunk // in order; the first is cut to begin at Start
	Start  int64                 // where Chunks begin, or would
	Oldest int64                 // the oldest byte that is kept
	End    int64                 // where the output ends now
}

// FromEnd is the offset n bytes before the end. n is positive.
func FromEnd(n int) int64 { return -int64(n) }

// resolve gives the absolute offset where a read begins.
func resolve(offset, oldest, end int64) int64 {
	if offset < 0 {
		offset = end + offset
	}
	return min(max(offset, oldest), end)
}

// cut gives the part of a chunk from offset from on, at most limit bytes.
func cut(c *taskv1.OutputChunk, from int64, limit int) *taskv1.OutputChunk {
	data, at := c.GetData(), c.GetOffset()
	if from > at {
		data, at = data[min(int64(len(data)), from-at):], from
	}
	if len(data) > limit {
		data = data[:limit]
	}
	return &taskv1.OutputChunk{Offset: at, Stream: c.GetStream(), Data: data}
}

// after gives what of a chunk lies behind end, or nil if nothing does.
func after(c *taskv1.OutputChunk, end int64) *taskv1.OutputChunk {
	if c.GetOffset()+int64(len(c.GetData())) <= end {
		return nil
	}
	return cut(c, end, len(c.GetData()))
}

func chunkEnd(c *taskv1.OutputChunk) int64 { return c.GetOffset() + int64(len(c.GetData())) }

// join gives the bytes of a piece and where they end.
func join(p Piece) ([]byte, int64) {
	var b []byte
	next := p.Start
	for _, c := range p.Chunks {
		b = append(b, c.GetData()...)
		next = chunkEnd(c)
	}
	return b, next
}

// endText is the end of an output as text of at most limit bytes. A piece that
// begins inside a character begins with the next one.
func endText(p Piece, limit int) string {
	b, _ := join(p)
	if p.Start > 0 {
		b = b[leading(b):]
	}
	text := strings.ToValidUTF8(string(b), "\uFFFD")
	if over := len(text) - limit; over > 0 { // U+FFFD is longer than what it stands for
		text = text[over:]
		text = text[leading([]byte(text)):]
	}
	return text
}

// leading counts the bytes at the beginning that belong to a character that
// began earlier.
func leading(b []byte) int {
	n := 0
	for n < len(b) && n < utf8.UTFMax-1 && !utf8.RuneStart(b[n]) {
		n++
	}
	return n
}

// trailing counts the bytes at the end that begin a character without ending it.
func trailing(b []byte) int {
	for n := 1; n <= len(b) && n < utf8.UTFMax; n++ {
		c := b[len(b)-n]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
			return n
		}
		return 0
	}
	return 0
}

// lastChars keeps the last n characters of a text.
func lastChars(s string, n int) string {
	count := utf8.RuneCountInString(s)
	for i := range s {
		if count <= n {
			return s[i:]
		}
		count--
	}
	return ""
}

// toText shows bytes as text: what is not UTF-8 becomes U+FFFD.
func toText(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
