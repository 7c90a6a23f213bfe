package output

import (
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// resolve gives the absolute offset where a read begins.
func resolve(offset, oldest, end int64) int64 {
	if offset < 0 {
		offset = end + offset
	}
	return min(max(offset, oldest), end)
}

// Cut gives the part of a chunk from offset from on, at most limit bytes.
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

// newBytes gives what of a chunk lies behind end, or nil if nothing does.
func newBytes(c *taskv1.OutputChunk, end int64) *taskv1.OutputChunk {
	if c.GetOffset()+int64(len(c.GetData())) <= end {
		return nil
	}
	return Cut(c, end, len(c.GetData()))
}

func ChunkEnd(c *taskv1.OutputChunk) int64 { return c.GetOffset() + int64(len(c.GetData())) }

// Join gives the bytes of a piece and where they end.
func Join(p Piece) ([]byte, int64) {
	var b []byte
	next := p.Start
	for _, c := range p.Chunks {
		b = append(b, c.GetData()...)
		next = ChunkEnd(c)
	}
	return b, next
}
