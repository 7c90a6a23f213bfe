package output

import (
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// resolve returns the absolute offset at which a read begins. A negative offset counts from the
// end. The result is the nearest offset from oldest to end.
func resolve(offset, oldest, end int64) int64 {
	if offset < 0 {
		offset = end + offset
	}
	return min(max(offset, oldest), end)
}

// Cut returns the part of a chunk that begins at from, an offset in the task's output, and has at most
// limit bytes. If the chunk begins later, so does the part. The part shares the chunk's data.
func Cut(c *taskv1.OutputChunk, from int64, limit int) *taskv1.OutputChunk {
	data, at := c.GetData(), c.GetOffset()
	if from > at {
		data, at = data[min(int64(len(data)), from-at):], from
	}
	if len(data) > limit {
		data = data[:limit]
	}
	return &taskv1.OutputChunk{Offset: at, Stream: c.GetStream(), Data: data}
}

// newBytes returns the part of a chunk after the offset end, or nil if there is none.
func newBytes(c *taskv1.OutputChunk, end int64) *taskv1.OutputChunk {
	if c.GetOffset()+int64(len(c.GetData())) <= end {
		return nil
	}
	return Cut(c, end, len(c.GetData()))
}

// ChunkEnd returns the offset after the last byte of a chunk.
func ChunkEnd(c *taskv1.OutputChunk) int64 { return c.GetOffset() + int64(len(c.GetData())) }

// Join returns the bytes of a piece's chunks and the offset after them. Gaps between chunks
// are not visible in the bytes.
func Join(p Piece) (b []byte, next int64) {
	next = p.Start
	for _, c := range p.Chunks {
		b = append(b, c.GetData()...)
		next = ChunkEnd(c)
	}
	return b, next
}
