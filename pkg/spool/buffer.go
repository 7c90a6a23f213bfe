package spool

import (
	"sync"
	"unicode/utf8"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// ChunkSize is the maximum size of one chunk, in bytes.
	ChunkSize = 64 << 10
	// Window is how many bytes of unacknowledged output make a Buffer full. Add blocks then, so a
	// Buffer holds less than Window and one chunk (SPEC T6).
	Window = 512 << 10
)

// Buffer holds a command's output until the task plane has stored it. It is safe for
// concurrent use.
type Buffer struct {
	mu     sync.Mutex
	chunks []*taskv1.OutputChunk // not acknowledged, in order
	held   int                   // bytes in chunks
	end    int64                 // offset behind the last byte
	sent   int64                 // offset behind the last byte that was sent on this stream
	open   bool                  // the last chunk was not sent and may grow
	free   *sync.Cond            // signals that chunks were removed, or that drop is set
	drop   bool                  // Discard was called
}

// NewAt returns an empty Buffer whose first byte has the given offset, which is where the
// output of an earlier lease ended.
func NewAt(offset int64) *Buffer {
	b := &Buffer{end: offset, sent: offset}
	b.free = sync.NewCond(&b.mu)
	return b
}

// Add appends a copy of data. It blocks while the Buffer is full. It returns false, and adds
// nothing, after Discard; if Discard is called while it blocks, the beginning of data may have
// been added.
func (b *Buffer) Add(stream taskv1.OutputStream, data []byte) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(data) > 0 {
		for b.held >= Window && !b.drop {
			b.free.Wait()
		}
		if b.drop {
			return false
		}
		if last := len(b.chunks) - 1; b.open && b.chunks[last].GetStream() == stream && len(b.chunks[last].GetData())+
			len(data) <= ChunkSize {
			b.chunks[last].Data = append(b.chunks[last].Data, data...)
			b.count(len(data))
			return true
		}
		n := Cut(data)
		b.chunks = append(b.chunks, &taskv1.OutputChunk{
			Offset: b.end, Stream: stream,
			Data: append([]byte(nil), data[:n]...),
		})
		b.open = true
		b.count(n)
		data = data[n:]
	}
	return true
}

func (b *Buffer) count(n int) {
	b.held += n
	b.end += int64(n)
}

// Cut returns how many bytes of data fit into a chunk without ending inside of a character. For data that is not
// UTF-8 it may return ChunkSize.
func Cut(data []byte) int {
	if len(data) <= ChunkSize {
		return len(data)
	}
	for n := ChunkSize; n > ChunkSize-utf8.UTFMax; n-- {
		if utf8.RuneStart(data[n]) {
			return n
		}
	}
	return ChunkSize // not text
}

// Full reports whether at least ChunkSize bytes have not been sent.
func (b *Buffer) Full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end-b.sent >= ChunkSize
}

// Next returns the chunks that were not sent on the current stream, and marks them as sent.
// The caller must not change them.
func (b *Buffer) Next() []*taskv1.OutputChunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := 0
	for i < len(b.chunks) && b.chunks[i].GetOffset() < b.sent {
		i++
	}
	b.open, b.sent = false, b.end
	return append([]*taskv1.OutputChunk(nil), b.chunks[i:]...)
}

// Rewind marks all chunks that are not acknowledged as not sent, for a new stream.
func (b *Buffer) Rewind() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = b.end - int64(b.held)
}

// Acknowledge removes the chunks that end at the offset end or before it, because the task plane has stored
// them. A chunk of which only a part is stored remains as a whole.
func (b *Buffer) Acknowledge(end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.chunks) > 0 {
		c := b.chunks[0]
		if c.GetOffset()+int64(len(c.GetData())) > end || b.open && len(b.chunks) == 1 {
			break
		}
		b.held -= len(c.GetData())
		b.chunks = b.chunks[1:]
	}
	b.free.Broadcast()
}

// Discard unblocks Add and makes it return false from now on. Chunks that were added before
// stay, and Next still returns them.
func (b *Buffer) Discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop = true
	b.free.Broadcast()
}

// Total returns the offset of the end of the output.
func (b *Buffer) Total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}
