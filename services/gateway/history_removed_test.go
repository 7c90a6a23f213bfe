package gateway

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
)

// expired is a journal of which the frames that are in gone were removed.
type expired struct {
	journal.Source
	mu   sync.Mutex
	gone map[uint64]bool
}

func (s *expired) isGone(seq uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone[seq]
}

// remove removes frames.
func (s *expired) remove(frames ...framelog.End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range frames {
		s.gone[end.Seq] = true
	}
}

func (s *expired) At(ctx context.Context, seq uint64) (framelog.End, error) {
	if s.isGone(seq) {
		return framelog.End{}, framelog.ErrRemoved
	}
	return s.Source.At(ctx, seq)
}

func (s *expired) Follow(ctx context.Context, after framelog.End, fn func(framelog.End, []journal.Line) error) error {
	var pending *framelog.End // of frames that were removed, one after the other
	return s.Source.Follow(ctx, after, func(at framelog.End, lines []journal.Line) error {
		if s.isGone(at.Seq) {
			pending = &at
			return nil
		}
		if pending != nil {
			if err := fn(*pending, nil); err != nil {
				return err
			}
			pending = nil
		}
		return fn(at, lines)
	})
}

// Streams go on behind what was removed, and each of their cursors is good as long as the place that it names is there.
// A cursor of a place that was removed is refused, as any other that is not of the journal (SPEC X10.4).
func TestX10_EventsThatWereRemoved(t *testing.T) {
	source := &expired{gone: map[uint64]bool{}}
	var r *rig
	r = newRig(t, func(_ *Config, d *Deps) {
		d.Sources = func(p string) ([]journal.Source, error) {
			found, err := r.sources(p)
			if p == "work" && err == nil {
				source.mu.Lock()
				source.Source = found[0]
				source.mu.Unlock()
				return []journal.Source{source}, nil
			}
			return found, err
		}
	})
	var items []string
	var ends []framelog.End // behind the frame of each item
	for _, objective := range []string{"a", "b", "c", "d", "e"} {
		items = append(items, r.create("keeper", objective))
		end, err := journal.NewSource("work", 0, r.journals["work"]).End(t.Context())
		require.NoError(t, err)
		ends = append(ends, end)
	}
	of := func(events []*eventv1.Event) (ids []string) {
		for _, ev := range events {
			ids = append(ids, ev.GetWorkItemId())
		}
		return ids
	}
	whole := r.events(t, "?from_start=true&stop_at_end=true").rest()
	require.Equal(t, items, of(whole))

	source.remove(ends[1], ends[2])
	left := r.events(t, "?from_start=true&stop_at_end=true").rest()
	require.Equal(t, []string{items[0], items[3], items[4]}, of(left))
	for i, ev := range left { // no cursor of a stream names what was removed before it was read
		require.Equal(t, of(left[i+1:]), of(r.events(t, "?cursor="+ev.GetCursor()+"&stop_at_end=true").rest()))
	}
	require.Equal(t, []string{items[3], items[4]}, of(r.events(t, "?cursor="+whole[0].GetCursor()+"&stop_at_end=true").
		rest()))

	a := r.do(http.MethodGet, "/v1/events?stop_at_end=true&cursor="+whole[2].GetCursor(), "")
	require.Equal(t, "CURSOR_OUT_OF_RANGE", a.fault.Reason)
	require.Contains(t, string(a.body), "older than history is kept (history-days)")
	require.Empty(t, of(r.events(t, "?cursor="+whole[4].GetCursor()+"&stop_at_end=true").rest()),
		"its place is behind d")
}
