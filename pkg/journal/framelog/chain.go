package framelog

import (
	"sort"
	"sync"
	"time"
)

// A chain keeps at most this much, or one larger frame. A follower that is further behind reads the
// log. With 256 callers 4 MiB are 300 ms of frames, and followers are a few milliseconds behind.
const (
	maxBytes  = 4 << 20
	maxFrames = 512
)

// ChainCheckInterval is how often Due asks for the end of the log while no frame is added.
const ChainCheckInterval = time.Second

// Chain holds the newest frames of one log for followers in the same process, without gaps: the frames with sequence
// numbers in (base, head] are exactly those that it holds, apart from fences. While it is closed it covers nothing. It
// is safe for concurrent use. Use NewChain.
type Chain[T any] struct {
	mu      sync.Mutex
	open    bool   // this process holds the partition, and head is the end of its log
	base    uint64 // the chain begins after this sequence number
	head    uint64 // end of the log
	frames  []chainFrame[T]
	bytes   int
	changed chan struct{} // closed and replaced whenever one of the above changes
	checked time.Time     // when the end of the log was last known, or Due last returned true
}

type chainFrame[T any] struct {
	seq   uint64
	size  int
	value *T
}

// NewChain returns a closed chain, which has no frames. Open or Add opens it.
func NewChain[T any]() *Chain[T] { return &Chain[T]{changed: make(chan struct{})} }

// Open starts an empty chain at head, the end of the log.
func (c *Chain[T]) Open(head uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.base, c.head, c.frames, c.bytes = true, head, head, nil, 0
	c.notify()
}

// Close drops all frames, since others may write to the log from now on.
func (c *Chain[T]) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.frames, c.bytes = false, nil, 0
	c.notify()
}

// notify wakes everybody who waits for a change. c.mu must be held.
func (c *Chain[T]) notify() {
	c.checked = time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Add appends a durable frame of the given size at seq. The log ended at previousHead before it was written and ends at
// head now; nothing but fences of this process may be in between. If the chain was closed or did not end at
// previousHead, it starts again with this frame. Add drops the oldest frames beyond maxBytes and maxFrames.
func (c *Chain[T]) Add(previousHead, seq, head uint64, size int, value *T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open || c.head != previousHead {
		c.open, c.base, c.frames, c.bytes = true, previousHead, nil, 0
	}
	c.head = head
	c.frames = append(c.frames, chainFrame[T]{seq, size, value})
	c.bytes += size

	drop := 0
	for c.bytes > maxBytes && drop < len(c.frames)-1 || len(c.frames)-drop > maxFrames {
		c.bytes -= c.frames[drop].size
		c.base = c.frames[drop].seq
		drop++
	}
	if drop > 0 {
		c.frames = append(c.frames[:0:0], c.frames[drop:]...)
	}
	c.notify()
}

// Next returns the first frame at or after from and its sequence number; changed is nil then. If the chain has none,
// value is nil and changed is closed at the next change; covered then says that the caller is at the end of the log and
// can wait for that. If covered is false, the caller has to read the log.
func (c *Chain[T]) Next(from uint64) (value *T, seq uint64, covered bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open || from <= c.base {
		return nil, 0, false, c.changed
	}
	i := sort.Search(len(c.frames), func(i int) bool { return c.frames[i].seq >= from })
	if i < len(c.frames) {
		return c.frames[i].value, c.frames[i].seq, true, nil
	}
	return nil, 0, true, c.changed
}

// Due reports whether the caller should read the end of the log and pass it to Verify, together with head, where the
// log ends as far as the chain knows. It returns true to one caller in each ChainCheckInterval in which no frame was
// added.
func (c *Chain[T]) Due() (head uint64, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open || time.Since(c.checked) < ChainCheckInterval {
		return 0, false
	}
	c.checked = time.Now()
	return c.head, true
}

// Verify closes the chain if the log, whose last frame is at last, does not end at the head of the chain; head is
// what Due returned. If the log continues behind the chain, another process holds the partition and its former holder
// here has not noticed yet, or a frame of this process is stored and not acknowledged yet. If the log ends before
// head, it was shortened, or the server that answered is no leader any more. Once the chain is closed, followers read
// the log, where they verify what they have read last, until Add opens it again.
func (c *Chain[T]) Verify(head, last uint64) {
	c.mu.Lock()
	differs := c.open && (last > c.head || last < head) // frames that were added since Due are between head and c.head
	c.mu.Unlock()
	if differs {
		c.Close()
	}
}
