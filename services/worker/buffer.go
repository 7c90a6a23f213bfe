package worker

import (
	"sync"
	"unicode/utf8"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// chunkSize is the most that one chunk holds.
	chunkSize = 64 << 10
	// window is how much output waits for its acknowledgement. A command that
	// writes faster than that is stored waits in its write, so no amount of
	// output costs more memory than this (SPEC T6).
	window = 512 << 10
)

// buffer holds a command's output until the task plane has stored it.
type buffer struct {
	mu     sync.Mutex
	chunks []*taskv1.OutputChunk // not acknowledged, in order
	held   int                   // bytes in chunks
	end    int64                 // offset behind the last byte
	sent   int64                 // offset behind the last byte that was sent on this stream
	open   bool                  // the last chunk was not sent and may grow
	free   *sync.Cond            // room came
	drop   bool                  // the reports are of no interest any more
}

func newBuffer() *buffer {
	b := &buffer{}
	b.free = sync.NewCond(&b.mu)
	return b
}

// add takes output. It waits for room.
func (b *buffer) add(stream taskv1.OutputStream, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(data) > 0 {
		for b.held >= window && !b.drop {
			b.free.Wait()
		}
		if b.drop {
			return
		}
		if last := len(b.chunks) - 1; b.open && b.chunks[last].GetStream() == stream && len(b.chunks[last].GetData())+len(data) <= chunkSize {
			b.chunks[last].Data = append(b.chunks[last].Data, data...)
			b.count(len(data))
			return
		}
		n := cutAt(data, chunkSize)
		b.chunks = append(b.chunks, &taskv1.OutputChunk{Offset: b.end, Stream: stream, Data: append([]byte(nil), data[:n]...)})
		b.open = true
		b.count(n)
		data = data[n:]
	}
}

func (b *buffer) count(n int) {
	b.held += n
	b.end += int64(n)
}

// cutAt gives a length of at most limit that does not end inside a character.
func cutAt(data []byte, limit int) int {
	if len(data) <= limit {
		return len(data)
	}
	for n := limit; n > limit-utf8.UTFMax; n-- {
		if utf8.RuneStart(data[n]) {
			return n
		}
	}
	return limit // not text
}

// full reports whether a whole chunk waits to be sent.
func (b *buffer) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end-b.sent >= chunkSize
}

// next gives the chunks that were not sent on this stream, and counts them as
// sent. They must not be changed.
func (b *buffer) next() []*taskv1.OutputChunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := 0
	for i < len(b.chunks) && b.chunks[i].GetOffset() < b.sent {
		i++
	}
	b.open, b.sent = false, b.end
	return append([]*taskv1.OutputChunk(nil), b.chunks[i:]...)
}

// rewind makes everything that is not acknowledged be sent again.
func (b *buffer) rewind() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = b.end - int64(b.held)
}

// acknowledge forgets what is stored.
func (b *buffer) acknowledge(end int64) {
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

// discard lets writers pass and forgets what they write.
func (b *buffer) discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop = true
	b.free.Broadcast()
}

func (b *buffer) total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}
