package journaltest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
)

// logSegments tests a log whose frames are in several segments. It does nothing if log is not a framelog.Segmented.
func logSegments(t *testing.T, log framelog.Log) {
	s, ok := log.(framelog.Segmented)
	require.True(t, ok)
	n := 0
	w := &framelog.Writer{
		Log: log, Partition: "test/0", Timeout: 5 * time.Second, Logger: zap.NewNop(), Secret: [32]byte{9},
		NewID: func(string) string { n++; return fmt.Sprintf("s%d", n) },
	}
	end, ends := framelog.End{}, []framelog.End{}
	write := func(i int) {
		f := framelog.Frame{ID: w.NewID(""), Generation: 1, Body: fmt.Appendf(nil, "line %d\n", i)}
		c := framelog.NewContent(w.Salt(f.ID))
		c.Add(f.Body)
		v := w.Write(t.Context(), end, f, c)
		require.Equal(t, framelog.Stored, v.Outcome, v.Err)
		require.True(t, v.Clean)
		end, ends = v.End, append(ends, v.End)
	}
	followed := make(chan framelog.End, 100)
	following, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = framelog.Follow(following, log, "test/0", framelog.End{}, func(at framelog.End, _ framelog.Frame) error {
			followed <- at
			return nil
		})
	}()
	const segments, each = 4, 3
	for number := range uint64(segments) {
		for i := range each {
			write(i)
		}
		size, err := s.Size(t.Context(), number)
		require.NoError(t, err)
		require.GreaterOrEqual(t, size, int64(each*len("line 0\n")))
		if number == segments-1 {
			break
		}
		first, err := s.Prepare(t.Context(), number)
		require.NoError(t, err)
		again, err := s.Prepare(t.Context(), number)
		require.NoError(t, err)
		require.Equal(t, first, again)
		require.GreaterOrEqual(t, first, end.Seq+framelog.SegmentGap)
		_, seq, err := log.Tail(t.Context())
		require.NoError(t, err)
		require.Equal(t, end.Seq, seq, "a segment that is prepared has no frame")

		before := end
		v := w.CloseSegment(t.Context(), end, 1, first)
		require.Equal(t, framelog.Stored, v.Outcome, v.Err)
		require.Equal(t, number+1, v.End.Segment)
		end, ends = v.End, append(ends, v.End)
		f, _ := w.Seal(before, framelog.Frame{ID: "late", Generation: 1}, framelog.NewContent(w.Salt("late")))
		_, err = log.Append(t.Context(), before.Seq, f)
		require.ErrorIs(t, err, framelog.ErrWrongSequence, "a writer that does not know that the segment is closed")
		closing := w.CloseSegment(t.Context(), before, 1, first)
		require.True(t, closing.Foreign)
		followNext(t, log, end, func() framelog.End { write(each); return end })
	}
	for _, want := range ends {
		require.Equal(t, want, receive(t, followed))
	}
	stop()
	<-done
	f, seq, err := log.Tail(t.Context())
	require.NoError(t, err)
	require.Equal(t, end.Seq, seq)
	require.Equal(t, end.Hash, f.Link.Hash)
	for i, want := range ends {
		got, err := log.Get(t.Context(), want.Seq)
		require.NoError(t, err)
		require.Equal(t, want.Hash, got.Link.Hash)
		from := framelog.End{}
		if i > 0 {
			from = ends[i-1]
		}
		var read []framelog.End
		require.NoError(t, log.Scan(t.Context(), from.Seq+1, func(seq uint64, f framelog.Frame) error {
			next, intact, err := from.Next("test/0", seq, f)
			require.True(t, intact)
			from, read = next, append(read, next)
			return err
		}))
		require.Equal(t, ends[i:], read)
	}
	_, err = log.Get(t.Context(), end.Seq+1)
	require.ErrorIs(t, err, framelog.ErrNoFrame)
	_, err = log.Get(t.Context(), ends[each].Seq+1)
	require.ErrorIs(t, err, framelog.ErrNoFrame, "between two segments")
	f, _ = w.Seal(framelog.End{Seq: end.Seq, Segment: segments + 5}, framelog.Frame{ID: "ahead", Generation: 1},
		framelog.NewContent(w.Salt("ahead")))
	_, err = log.Append(t.Context(), end.Seq, f)
	require.ErrorIs(t, err, framelog.ErrSegmentGone)

	require.Error(t, s.Drop(t.Context(), 1), "it is not the first one")
	for range 2 {
		require.NoError(t, s.Drop(t.Context(), 0))
		_, err = s.Size(t.Context(), 0)
		require.ErrorIs(t, err, framelog.ErrSegmentGone)
		all, err := s.Segments(t.Context())
		require.NoError(t, err)
		require.Len(t, all, segments-1)
		require.EqualValues(t, 1, all[0].Number)
	}

	first, err := s.Prepare(t.Context(), segments-1)
	require.NoError(t, err)
	v := w.CloseSegment(t.Context(), end, 1, first)
	require.Equal(t, framelog.Stored, v.Outcome, v.Err)
	ahead, err := s.Prepare(t.Context(), segments)
	require.NoError(t, err)
	require.GreaterOrEqual(t, ahead, first-1+framelog.SegmentGap, "behind a segment that has no frame yet")
}

// followNext tests that a follower receives what write writes, if it has read the frame that closed a segment and the
// next segment has no frame yet.
func followNext(t *testing.T, log framelog.Log, after framelog.End, write func() framelog.End) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	followed, done := make(chan framelog.End, 1), make(chan struct{})
	go func() {
		defer close(done)
		_ = framelog.Follow(ctx, log, "test/0", after, func(at framelog.End, _ framelog.Frame) error {
			followed <- at
			return nil
		})
	}()
	require.Never(t, func() bool { return len(followed) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
	require.Equal(t, write(), receive(t, followed))
	stop()
	<-done
}
