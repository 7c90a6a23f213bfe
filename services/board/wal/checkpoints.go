package wal

import (
	"sync"

	"quartet/services/board/model"
)

// Checkpoints remembers the hash of some line of each WAL that was read last, so
// that who goes on reading need not begin at the first. Its zero value works.
type Checkpoints struct {
	mu          sync.Mutex
	byWAL       map[model.BoardKey][]Checkpoint
	oldestFirst []model.BoardKey
}

type Checkpoint struct {
	Seq  int64
	Hash Hash
}

const (
	keptChains = 256
	keptLinks  = 8
)

// Before is the last known line at or before one.
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

func (c *Checkpoints) Add(k model.BoardKey, l Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byWAL == nil {
		c.byWAL = map[model.BoardKey][]Checkpoint{}
	}
	links, known := c.byWAL[k]
	if !known {
		if len(c.oldestFirst) == keptChains {
			delete(c.byWAL, c.oldestFirst[0])
			c.oldestFirst = c.oldestFirst[1:]
		}
		c.oldestFirst = append(c.oldestFirst, k)
	}
	if len(links) == keptLinks {
		links = links[1:]
	}
	c.byWAL[k] = append(links, l)
}
