package wal

import (
	"sync"

	"quartet/services/board/model"
)

// Checkpoints remembers hashes of lines of the WALs that were read last, so that a
// reader that continues does not have to hash a WAL from its first line. Its zero
// value is ready for use.
type Checkpoints struct {
	mu          sync.Mutex
	byWAL       map[model.BoardKey][]Checkpoint // of each WAL in the order in which they were added
	oldestFirst []model.BoardKey                // the keys of byWAL, in the order of their first Add
}

// Checkpoint is the number of a line and its hash.
type Checkpoint struct {
	Seq  int64
	Hash Hash
}

// Limits of what is remembered: WALs, and checkpoints of each.
const (
	maxWALs   = 256
	maxPerWAL = 8
)

// Before returns the last remembered line at or before line number after; without one, line
// 0 with the hash that the first line is chained to.
func (c *Checkpoints) Before(k model.BoardKey, after int64) Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := Checkpoint{0, FirstHash(k.Session, k.WAL)}
	for _, l := range c.byWAL[k] {
		if l.Seq <= after && l.Seq > best.Seq {
			best = l
		}
	}
	return best
}

// Add remembers a line of a WAL. If the WAL has maxPerWAL checkpoints, Add forgets the one that was added
// first; if there are maxWALs other WALs, it forgets the one whose first Add is longest ago.
func (c *Checkpoints) Add(k model.BoardKey, l Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byWAL == nil {
		c.byWAL = map[model.BoardKey][]Checkpoint{}
	}
	points, exists := c.byWAL[k]
	if !exists {
		if len(c.oldestFirst) == maxWALs {
			delete(c.byWAL, c.oldestFirst[0])
			c.oldestFirst = c.oldestFirst[1:]
		}
		c.oldestFirst = append(c.oldestFirst, k)
	}
	if len(points) == maxPerWAL {
		points = points[1:]
	}
	c.byWAL[k] = append(points, l)
}
