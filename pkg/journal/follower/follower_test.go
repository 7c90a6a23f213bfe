package follower

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
)

// fakeSource is a journal of one line for each frame. It loses its followers on command.
type fakeSource struct {
	Source
	mu      sync.Mutex
	lines   []string
	changed chan struct{}
	fail    error // what Follow returns next
	endErr  error
}

func newSource(n int) *fakeSource {
	s := &fakeSource{changed: make(chan struct{})}
	for range n {
		s.append()
	}
	return s
}

func (s *fakeSource) append() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprint(len(s.lines)+1))
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeSource) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeSource) Plane() string  { return "work" }
func (s *fakeSource) Partition() int { return 0 }

func (s *fakeSource) End(context.Context) (framelog.End, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return framelog.End{Seq: uint64(len(s.lines))}, s.endErr
}

func (s *fakeSource) At(_ context.Context, seq uint64) (framelog.End, error) {
	return framelog.End{Seq: seq}, nil
}

func (s *fakeSource) Follow(ctx context.Context, after framelog.End, fn func(framelog.End, []event.Line) error) error {
	for seq := after.Seq + 1; ; seq++ {
		var text string
		for {
			s.mu.Lock()
			err, lines, changed := s.fail, s.lines, s.changed
			s.fail = nil
			s.mu.Unlock()
			if err != nil {
				return err
			}
			if seq <= uint64(len(lines)) {
				text = lines[seq-1]
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := fn(framelog.End{Seq: seq}, []event.Line{{Text: []byte(text)}}); err != nil {
			return err
		}
	}
}

func TestRunAppliesEveryFrameOnce(t *testing.T) {
	src := newSource(3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []uint64
	refused := false
	Run(ctx, src, framelog.End{Seq: 1}, zap.NewNop(), func(at framelog.End, _ []event.Line) error {
		seq := at.Seq
		switch {
		case seq == 3 && !refused:
			refused = true
			return errors.New("later")
		case seq == 4:
			src.lose(errors.New("lost"))
		case seq == 6:
			return Stop
		}
		got = append(got, seq)
		src.append()
		return nil
	})
	require.NoError(t, ctx.Err())
	require.Equal(t, []uint64{2, 3, 4, 5}, got)
}

// TestReadEndsWithDamage: a damaged journal ends Read at once, and Run reads it again.
func TestReadEndsWithDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource(3)
		broken := &framelog.Broken{Partition: "work/0", Seq: 3, Cause: "for a test"}
		var got []uint64
		apply := func(at framelog.End, _ []event.Line) error {
			if at.Seq == 2 {
				src.lose(broken)
			}
			if got = append(got, at.Seq); at.Seq == 4 {
				return Stop
			}
			return nil
		}
		require.ErrorIs(t, Read(t.Context(), src, framelog.End{}, zap.NewNop(), apply), broken)
		require.Equal(t, []uint64{1, 2}, got)

		src, got = newSource(4), nil
		Run(t.Context(), src, framelog.End{}, zap.NewNop(), apply)
		require.Equal(t, []uint64{1, 2, 3, 4}, got)
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	Run(ctx, newSource(1), framelog.End{}, zap.NewNop(), func(framelog.End, []event.Line) error {
		cancel()
		return nil
	})
}

func TestCatchUpWaitsForWhatIsThere(t *testing.T) {
	a, b := newSource(100), newSource(0)
	var mu sync.Mutex
	applied := map[Source]int{}
	s := NewSet(zap.NewNop(), func(src Source, lines []event.Line) {
		mu.Lock()
		defer mu.Unlock()
		applied[src] += len(lines)
	})
	defer s.Close()
	s.Add(a, b)
	for n := 100; n < 103; n++ {
		require.NoError(t, s.CatchUp(t.Context(), a, b))
		mu.Lock()
		require.Equal(t, n, applied[a])
		mu.Unlock()
		a.append()
	}
	s.Close()
	a.append()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.CatchUp(ctx, a), context.DeadlineExceeded, "nothing is applied after Close")
	a.endErr = errors.New("no broker")
	require.ErrorIs(t, s.CatchUp(t.Context(), a), a.endErr)
}
