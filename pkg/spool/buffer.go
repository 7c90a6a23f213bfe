package spool

import (
	"sync"
	"unicode/utf8"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// ChunkSize is the most that one chunk holds.
	ChunkSize = 64 << 10
	// Window is how much output waits for its acknowledgement. A command that
	// writes faster than that is stored waits in its write, so no amount of
	// output costs more memory than this (SPEC T6).
	Window = 512 << 10
)

// Buffer holds a command's output until the task plane has stored it.
type Buffer struct {
	mu     sync.Mutex
	chunks []*taskv1.OutputChunk // not acknowledged, in order
	held   int                   // bytes in chunks
	end    int64                 // offset behind the last byte
	sent   int64                 // offset behind the last byte that was sent on this stream
	open   bool                  // the last chunk was not sent and may grow
	free   *sync.Cond            // room came
	drop   bool                  // the reports are of no interest any more
}

// New makes an empty one.
func New() *Buffer { return NewAt(0) }

// NewAt makes an empty one whose first byte has an offset: behind what was written
// under an earlier lease.
func NewAt(offset int64) *Buffer {
	b := &Buffer{end: offset, sent: offset}
	b.free = sync.NewCond(&b.mu)
	return b
}

// Add takes output, and keeps a copy. It waits for room. After Discard it takes
// nothing and says so.
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
		if last := len(b.chunks) - 1; b.open && b.chunks[last].GetStream() == stream && len(b.chunks[last].GetData())+len(data) <= ChunkSize {
			b.chunks[last].Data = append(b.chunks[last].Data, data...)
			b.count(len(data))
			return true
		}
		n := Cut(data)
		b.chunks = append(b.chunks, &taskv1.OutputChunk{Offset: b.end, Stream: stream, Data: append([]byte(nil), data[:n]...)})
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

// Cut gives how much of data fits into a chunk without ending inside a character.
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

// Full reports whether a whole chunk waits to be sent.
func (b *Buffer) Full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end-b.sent >= ChunkSize
}

// Next gives the chunks that were not sent on this stream, and counts them as
// sent. They must not be changed.
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

// Rewind makes everything that is not acknowledged be sent again.
func (b *Buffer) Rewind() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = b.end - int64(b.held)
}

// Acknowledge forgets what is stored.
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

// Discard lets writers pass and forgets what they write.
func (b *Buffer) Discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop = true
	b.free.Broadcast()
}

// Total is how much was added so far.
func (b *Buffer) Total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}
