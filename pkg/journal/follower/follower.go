// Package follower reads journals that others write, and continues after errors.
//
// Owns: Source, by which a journal is followed; Feed, which gives what a partition of this process writes to followers
// in the same process without the broker; Watch, which notices that a journal to which nothing is written was shortened
// or exchanged; how far a reader has come (Progress).
// Never does: write to a log, or decide that an idle journal is damaged; following it again does.
package follower

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/retry"
)

// Pauses between attempts to follow a journal again.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
	// retryDamage is when a damaged journal is read again: somebody may have repaired it.
	retryDamage = 5 * time.Second
)

// Read follows a source behind after until ctx ends or apply returns Stop, not wrapped; then it returns nil. It calls
// apply with every frame in order, from one goroutine, and once unless apply fails; the lines are valid
// during the call. When following ends for another reason, or apply returns another error, Read logs
// it and follows again, from the frame that was not applied. If the journal is damaged, Read returns
// an error that wraps a *framelog.Broken.
func Read(ctx context.Context, src Source, after framelog.End, logger *zap.Logger,
	apply func(end framelog.End, lines []event.Line) error,
) error {
	pacer := retry.New(firstPause, lastPause)
	for ctx.Err() == nil {
		var stopped bool
		err := src.Follow(ctx, after, func(end framelog.End, lines []event.Line) error {
			if err := apply(end, lines); err != nil {
				stopped = err == Stop //nolint:errorlint // a marker that is returned as it is
				return err
			}
			after = end
			pacer.Reset()
			return nil
		})
		var broken *framelog.Broken
		switch {
		case stopped || ctx.Err() != nil:
			return nil //nolint:nilerr // it is the end that was asked for
		case errors.As(err, &broken):
			logger.Error("a journal is damaged", zap.String("plane", src.Plane()),
				zap.Int("partition", src.Partition()), zap.Error(err))
			return err
		}
		logger.Warn("following a journal again", zap.String("plane", src.Plane()),
			zap.Int("partition", src.Partition()), zap.Uint64("after", after.Seq), zap.Error(err))
		_ = pacer.Wait(ctx) // the loop checks ctx
	}
	return nil
}

// Run follows a source as Read does, but does not return when the journal is damaged: it reads again every retryDamage,
// from the frame that was not applied. It returns when ctx ends or apply returns Stop.
func Run(ctx context.Context, src Source, after framelog.End, logger *zap.Logger,
	apply func(end framelog.End, lines []event.Line) error,
) {
	run(ctx, src, after, logger, apply, func(error) {})
}

// run is Run, and also calls damaged each time that the journal turns out to be damaged. All other errors, those of
// apply too, are retried by Read.
func run(ctx context.Context, src Source, after framelog.End, logger *zap.Logger,
	apply func(end framelog.End, lines []event.Line) error, damaged func(error),
) {
	read := func(end framelog.End, lines []event.Line) error {
		err := apply(end, lines)
		if err == nil {
			after = end
		}
		return err
	}
	pacer := retry.New(retryDamage, retryDamage)
	for ctx.Err() == nil {
		err := Read(ctx, src, after, logger, read)
		if err == nil { // ctx ended, or apply returned Stop
			return
		}
		damaged(err)
		_ = pacer.Wait(ctx) // the loop checks ctx
	}
}

// Stop ends Read or Run when their function apply returns it.
var Stop error = stop{}

type stop struct{}

// Error implements error.
func (stop) Error() string { return "follower: stop" }

// Set follows sources from their beginning, in the background, and knows how far it has
// come. All methods are safe for concurrent use.
type Set struct {
	logger *zap.Logger
	apply  func(src Source, lines []event.Line)
	ctx    context.Context //nolint:containedctx // ends what runs in the background
	cancel context.CancelFunc

	mu       sync.Mutex
	read     map[Source]uint64 // the last frame that is applied
	damage   map[Source]error  // why a source cannot be read further; nil if it can
	advanced chan struct{}     // closed and replaced when read or damage changes
	running  sync.WaitGroup
}

// NewSet returns a Set without sources. It calls apply with the lines of every frame, in
// the order of each source, from one goroutine for each source.
func NewSet(logger *zap.Logger, apply func(src Source, lines []event.Line)) *Set {
	s := &Set{
		logger: logger, apply: apply, read: map[Source]uint64{}, damage: map[Source]error{},
		advanced: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Add begins to follow sources.
func (s *Set) Add(sources ...Source) {
	for _, src := range sources {
		s.mu.Lock()
		s.read[src] = 0
		s.mu.Unlock()
		s.running.Go(func() {
			run(s.ctx, src, framelog.End{}, s.logger, func(end framelog.End, lines []event.Line) error {
				s.apply(src, lines)
				s.recordRead(src, end.Seq)
				return nil
			}, func(err error) { s.recordDamage(src, err) })
		})
	}
}

// recordRead records that a source is applied up to the frame at seq, and so can be read.
func (s *Set) recordRead(src Source, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read[src], s.damage[src] = seq, nil
	s.notify()
}

// recordDamage records why a source cannot be read further.
func (s *Set) recordDamage(src Source, damage error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damage[src] = damage
	s.notify()
}

// notify wakes CatchUp. s.mu must be held.
func (s *Set) notify() {
	close(s.advanced)
	s.advanced = make(chan struct{})
}

// CatchUp waits until all frames that the sources have at the call are applied. The sources must have been added. It
// returns an error if the end of a source cannot be read, if a source is damaged before that end, or if ctx ends first.
// After Close only ctx ends the wait.
func (s *Set) CatchUp(ctx context.Context, sources ...Source) error {
	for _, src := range sources {
		end, err := src.End(ctx)
		if err != nil {
			return err
		}
		for {
			s.mu.Lock()
			done, damage, advanced := s.read[src] >= end.Seq, s.damage[src], s.advanced
			s.mu.Unlock()
			if !done && damage != nil {
				return damage
			}
			if done {
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
