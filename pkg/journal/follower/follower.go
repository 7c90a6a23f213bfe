// Package follower reads journals that others write, and goes on after errors.
package follower

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/retry"
)

// Pauses between attempts to follow a journal again.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// Run follows a source from frame next on until ctx ends or apply returns Stop, unwrapped. It
// calls apply with every frame in order, from one goroutine, and once unless apply fails; the
// lines are valid during the call. When following ends for another reason, or apply returns
// another error, Run logs it and follows again, from the frame that was not applied.
func Run(ctx context.Context, src journal.Source, next uint64, logger *zap.Logger, apply func(seq uint64, lines []journal.Line) error) {
	pacer := retry.New(firstPause, lastPause)
	for ctx.Err() == nil {
		var stopped bool
		err := src.Follow(ctx, next, func(seq uint64, lines []journal.Line) error {
			if seq < next {
				return nil
			}
			if err := apply(seq, lines); err != nil {
				stopped = err == Stop //nolint:errorlint // a marker that is returned as it is
				return err
			}
			next = seq + 1
			pacer.Reset()
			return nil
		})
		if stopped || ctx.Err() != nil {
			return
		}
		logger.Warn("following a journal again", zap.String("plane", src.Plane()), zap.Int("partition", src.Partition()), zap.Uint64("from", next), zap.Error(err))
		_ = pacer.Wait(ctx) // the loop checks ctx
	}
}

// Stop is returned by the apply function of Run to end it.
var Stop error = stop{}

type stop struct{}

// Error implements error.
func (stop) Error() string { return "follower: stop" }

// Set follows sources from their beginning, in the background, and knows how far it has
// come. All methods are safe for concurrent use.
type Set struct {
	logger *zap.Logger
	apply  func(src journal.Source, lines []journal.Line)
	ctx    context.Context //nolint:containedctx // ends what runs in the background
	cancel context.CancelFunc

	mu       sync.Mutex
	next     map[journal.Source]uint64 // the first frame that is not applied
	advanced chan struct{}             // closed and replaced when next changes
	running  sync.WaitGroup
}

// NewSet returns a Set without sources. It calls apply with the lines of every frame, in
// the order of each source, from one goroutine for each source.
func NewSet(logger *zap.Logger, apply func(src journal.Source, lines []journal.Line)) *Set {
	s := &Set{logger: logger, apply: apply, next: map[journal.Source]uint64{}, advanced: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Add begins to follow sources.
func (s *Set) Add(sources ...journal.Source) {
	for _, src := range sources {
		s.mu.Lock()
		s.next[src] = 1
		s.mu.Unlock()
		s.running.Go(func() {
			Run(s.ctx, src, 1, s.logger, func(seq uint64, lines []journal.Line) error {
				s.apply(src, lines)
				s.advance(src, seq+1)
				return nil
			})
		})
	}
}

func (s *Set) advance(src journal.Source, next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[src] = next
	close(s.advanced)
	s.advanced = make(chan struct{})
}

// CatchUp waits until all frames are applied that the sources, which were added before,
// have now. It returns an error if the end of a source cannot be read, or if ctx ends first,
// which after Close is the only end of the wait.
func (s *Set) CatchUp(ctx context.Context, sources ...journal.Source) error {
	for _, src := range sources {
		end, err := src.End(ctx)
		if err != nil {
			return err
		}
		for {
			s.mu.Lock()
			done, advanced := s.next[src] >= end, s.advanced
			s.mu.Unlock()
			if done || end <= 1 {
				break
			}
			select {
			case <-advanced:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// Close ends following and waits for apply to return. It is idempotent.
func (s *Set) Close() {
	s.cancel()
	s.running.Wait()
}
