// Package memlog is framelog.Log in memory, for tests and for planes that are
// run without a broker. It is a full implementation: the conformance suite
// holds for it as for JetStream, except that nothing survives the process.
package memlog

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"sync"

	"quartet/pkg/journal/framelog"
)

// Log is one partition's log. The zero value is not ready; use New.
type Log struct {
	mu     sync.Mutex
	seqs   []uint64
	frames []framelog.Frame
	grown  chan struct{} // closed and replaced when a frame arrives
	gap    uint64
}

var _ framelog.Log = (*Log)(nil)

// New returns an empty log. Sequences have gaps on purpose, as they have in a
// stream that holds many partitions: a caller that adds one to a sequence and
// expects a frame there is wrong.
func New() *Log {
	return &Log{grown: make(chan struct{}), gap: 3}
}

// Append implements framelog.Log.
func (l *Log) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", framelog.ErrRefused, err)
	}
	f.Body = bytes.Clone(f.Body)
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.last()
	if last != expect {
		return 0, fmt.Errorf("%w: expected %d, is %d", framelog.ErrWrongSequence, expect, last)
	}
	seq := last + 1 + uint64(len(l.seqs))%l.gap
	l.seqs = append(l.seqs, seq)
	l.frames = append(l.frames, f)
	close(l.grown)
	l.grown = make(chan struct{})
	return seq, nil
}

// Put stores a frame at a sequence number behind the last one, as a repaired journal has it.
func (l *Log) Put(seq uint64, f framelog.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seqs, l.frames = append(l.seqs, seq), append(l.frames, f)
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *Log) last() uint64 {
	if len(l.seqs) == 0 {
		return 0
	}
	return l.seqs[len(l.seqs)-1]
}

// Tail implements framelog.Log.
func (l *Log) Tail(ctx context.Context) (framelog.Frame, uint64, error) {
	if err := ctx.Err(); err != nil {
		return framelog.Frame{}, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.frames) == 0 {
		return framelog.Frame{}, 0, nil
	}
	return l.frames[len(l.frames)-1], l.last(), nil
}

// Get implements framelog.Log.
func (l *Log) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	if err := ctx.Err(); err != nil {
		return framelog.Frame{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := sort.Search(len(l.seqs), func(i int) bool { return l.seqs[i] >= seq })
	if i == len(l.seqs) || l.seqs[i] != seq {
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	}
	return l.frames[i], nil
}

// Scan implements framelog.Log.
func (l *Log) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	_, _, err := l.pass(ctx, from, fn)
	return err
}

// Follow implements framelog.Log.
func (l *Log) Follow(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	for {
		next, grown, err := l.pass(ctx, from, fn)
		if err != nil {
			return err
		}
		from = next
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pass hands out what is there, without the lock, and returns where to go on
// and what to wait for.
func (l *Log) pass(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) (uint64, <-chan struct{}, error) {
	l.mu.Lock()
	i := sort.Search(len(l.seqs), func(i int) bool { return l.seqs[i] >= from })
	seqs, frames, grown := l.seqs[i:], l.frames[i:], l.grown
	l.mu.Unlock()
	for i, seq := range seqs {
		if err := ctx.Err(); err != nil {
			return from, nil, err
		}
		if err := fn(seq, frames[i]); err != nil {
			return from, nil, err
		}
		from = seq + 1
	}
	return from, grown, nil
}
