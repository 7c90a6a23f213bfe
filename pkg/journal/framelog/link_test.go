package framelog_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

const name = "work/3"

// written is a frame as it is in a log.
type written struct {
	seq uint64
	framelog.Frame
}

// write returns a writer to a log.
func writer(log framelog.Log) *framelog.Writer {
	n := 0
	return &framelog.Writer{
		Log: log, Partition: name, Timeout: 5 * time.Second, Logger: zap.NewNop(), Secret: [32]byte{7},
		NewID: func(string) string { n++; return fmt.Sprintf("f%d", n) },
	}
}

// put writes a frame with lines behind end.
func put(t *testing.T, w *framelog.Writer, end framelog.End, lines ...string) framelog.End {
	t.Helper()
	f := framelog.Frame{ID: w.NewID(""), Generation: 1}
	c := framelog.NewContent(w.Salt(f.ID))
	for _, line := range lines {
		f.Body = append(f.Body, line+"\n"...)
		c.Add([]byte(line + "\n"))
	}
	r := w.Write(t.Context(), end, f, c)
	require.Equal(t, framelog.Stored, r.Outcome, r.Err)
	return r.End
}

// framesOf returns the frames of a log.
func framesOf(t *testing.T, log framelog.Log) (all []written) {
	t.Helper()
	require.NoError(t, log.Scan(t.Context(), 0, func(seq uint64, f framelog.Frame) error {
		all = append(all, written{seq, f})
		return nil
	}))
	return all
}

// check reads frames as a partition that loads does, and returns the end, and the first thing that is wrong.
func check(frames []written) (end framelog.End, err error) {
	for _, f := range frames {
		next, intact, err := end.Next(name, f.seq, f.Frame)
		if err != nil {
			return end, err
		}
		if !intact {
			return end, framelog.Altered(name, end, f.seq)
		}
		end = next
	}
	return end, nil
}

// example returns the frames of a log: ten with lines and a fence.
func example(t *testing.T) ([]written, framelog.End) {
	t.Helper()
	log := journaltest.NewMemLog()
	w := writer(log)
	var end framelog.End
	for i := range 10 {
		lines := []string{}
		for k := range i % 3 {
			lines = append(lines, fmt.Sprintf(`{"n":%d}`, 10*i+k))
		}
		end = put(t, w, end, lines...)
	}
	return framesOf(t, log), end
}

func TestFramesThatContinueEachOther(t *testing.T) {
	frames, end := example(t)
	require.Equal(t, end, must.Value(check(frames))(t))
	require.Equal(t, uint64(9), end.WalSeq)
	require.Equal(t, uint64(1), end.Incarnation)
	for _, f := range frames {
		require.Equal(t, f.Link, must.Value(framelog.ParseLink(f.Link.String()))(t))
		at, intact := framelog.Anchor(name, f.seq, f.Frame)
		require.True(t, intact)
		require.Equal(t, at, must.Value(framelog.ParseEnd(at.String()))(t))
	}
}

// TestEveryChangeIsSeen changes, removes, repeats, moves and inserts every frame, and every part of one.
func TestEveryChangeIsSeen(t *testing.T) {
	original, _ := example(t)
	frames := func() []written {
		out := append([]written(nil), original...)
		for i := range out {
			out[i].Body = bytes.Clone(out[i].Body)
		}
		return out
	}
	for i := range original {
		changes := map[string]func(f []written) []written{
			"repeated":    func(f []written) []written { return append(f[:i:i], append([]written{f[i]}, f[i:]...)...) },
			"generation":  func(f []written) []written { f[i].Generation++; return f },
			"id":          func(f []written) []written { f[i].ID += "x"; return f },
			"first":       func(f []written) []written { f[i].Link.First++; return f },
			"previous":    func(f []written) []written { f[i].Link.Prev[3]++; return f },
			"own hash":    func(f []written) []written { f[i].Link.Hash[31]++; return f },
			"incarnation": func(f []written) []written { f[i].Link.Incarnation++; return f },
			"segment":     func(f []written) []written { f[i].Link.Segment++; return f },
			"newer":       func(f []written) []written { f[i].Link.Format++; return f },
			"one line more": func(f []written) []written {
				f[i].Body = append(f[i].Body, "{}\n"...)
				return f
			},
		}
		if i < len(original)-1 { // a loss at the end is seen by a witness only
			changes["removed"] = func(f []written) []written { return append(f[:i:i], f[i+1:]...) }
			changes["exchanged"] = func(f []written) []written {
				f[i].Frame, f[i+1].Frame = f[i+1].Frame,
					f[i].Frame
				return f
			}
		}
		if len(original[i].Body) > 0 { // of nothing else: it goes when a line is erased
			changes["salt"] = func(f []written) []written { f[i].Link.Salt[0]++; return f }
		}
		if i > 0 {
			changes["not chained"] = func(f []written) []written { f[i].Link = framelog.Link{}; return f }
		}
		for k := range original[i].Body {
			changes[fmt.Sprintf("byte %d", k)] = func(f []written) []written { f[i].Body[k] ^= 4; return f }
		}
		for what, change := range changes {
			_, err := check(change(frames()))
			var broken *framelog.Broken
			require.ErrorAs(t, err, &broken, "frame %d: %s", i, what)
			require.Contains(t, err.Error(), "the journal of work/3 is damaged", what)
		}
	}
	_, err := check(append(frames()[:3], frames()[7:]...))
	require.EqualError(t, err, "the journal of work/3 is damaged: wal_seq 4 to 6 are missing between frames 6 and 15")
	_, err = check(append(frames()[:4], frames()[5:]...))
	require.ErrorContains(t, err, "the journal of work/3 is damaged: wal_seq 4 is missing between frames ")
	other := framelog.End{}
	_, _, err = other.Next("work/4", original[0].seq, original[0].Frame)
	require.NoError(t, err, "only the hash covers the partition")
	_, intact, _ := other.Next("work/4", original[1].seq, original[1].Frame)
	require.False(t, intact)
}

// TestFramesOfBefore: a log begins with frames that are not chained, and goes on with frames that are.
func TestFramesOfBefore(t *testing.T) {
	log := journaltest.NewMemLog()
	seq, err := log.Append(t.Context(), 0, framelog.Frame{ID: "a", Generation: 1, Body: []byte("{}\n{}\n")})
	require.NoError(t, err)
	must.Value(log.Append(t.Context(), seq, framelog.Frame{ID: "b", Generation: 1, Body: []byte("{}\n")}))(t)
	end := must.Value(check(framesOf(t, log)))(t)
	require.Equal(t, uint64(3), end.WalSeq)
	end = put(t, writer(log), end, "{}")
	require.Equal(t, uint64(4), end.WalSeq)
	require.Equal(t, end, must.Value(check(framesOf(t, log)))(t))
	// A reader whose position is of before begins anywhere in it.
	for _, seq := range []uint64{seq, seq + 1} {
		ctx, cancel := context.WithCancel(t.Context())
		var got framelog.End
		err = framelog.Follow(ctx, log, name, framelog.End{Seq: seq}, func(at framelog.End, _ framelog.Frame) error {
			if got = at; at.Seq == end.Seq {
				cancel()
			}
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, end, got)
	}
	frames := framesOf(t, log)
	frames[1].Body = []byte("{ }\n")
	must.Fail(check(frames))(t, "continues another one", "the chain covers what was before it")
}

// TestALineCanBeErased: whoever has the hash of a line in place of its content can verify the rest; the hash of an
// equal line elsewhere is another one.
func TestALineCanBeErased(t *testing.T) {
	a, b := framelog.NewContent(framelog.Salt{1}), framelog.NewContent(framelog.Salt{2})
	for _, c := range []*framelog.Content{a, b} {
		c.Add([]byte("same\nsame\n"))
		require.Equal(t, uint64(2), c.Lines())
	}
	require.NotEqual(t, a.Sum(), b.Sum())
	lines := a.LineHashes([]byte("same\nsame\n"))
	require.Len(t, lines, 2)
	require.NotEqual(t, lines[0], lines[1])
	c := framelog.NewContent(framelog.Salt{1})
	c.Add([]byte("same\n"))
	c.AddErased(lines[1])
	require.Equal(t, a.Sum(), c.Sum())
}

// TestFollowVerifiesWhereItBegins: a reader that comes back sees that the frame that it read last is gone, is another
// one, or is followed by others.
func TestFollowVerifiesWhereItBegins(t *testing.T) {
	log := journaltest.NewMemLog()
	w := writer(log)
	one := put(t, w, framelog.End{}, "1")
	two := put(t, w, one, "2")
	three := put(t, w, two, "3")
	read := func(after framelog.End, n int) (got []framelog.End, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err = framelog.Follow(ctx, log, name, after, func(at framelog.End, _ framelog.Frame) error {
			if got = append(got, at); len(got) == n {
				cancel()
			}
			return nil
		})
		return got, err
	}
	for _, c := range []struct {
		after framelog.End
		want  []framelog.End
	}{
		{framelog.End{}, []framelog.End{one, two, three}},
		{one, []framelog.End{two, three}},
		{framelog.End{Seq: one.Seq}, []framelog.End{two, three}},
	} {
		got, err := read(c.after, len(c.want))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, c.want, got)
	}
	other := two
	other.Hash[0]++
	must.Fail(read(other, 1))(t, "is another one than the one that was read there")
	gone := three
	gone.Seq += 100
	must.Fail(read(gone, 1))(t, fmt.Sprintf("frame %d, with the events up to wal_seq 3, is gone", gone.Seq))
	between := two
	between.Seq = one.Seq
	require.Error(t, must.Err(read(between, 1)))
}

func FuzzLink(f *testing.F) {
	f.Add("")
	f.Add("1.1.0.7.AAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("1.2.3.4.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := framelog.ParseLink(s); err == nil {
			require.Equal(t, l, must.Value(framelog.ParseLink(l.String()))(t))
		}
		if e, err := framelog.ParseEnd(s); err == nil {
			require.Equal(t, e, must.Value(framelog.ParseEnd(e.String()))(t))
		}
	})
}

// TestRead: a frame that is gone, or was changed, is named as damage; an error of the log that may pass is not.
func TestRead(t *testing.T) {
	ctx, log := t.Context(), journaltest.NewMemLog()
	for range 3 {
		log.Add(framelog.Frame{ID: "f", Body: []byte("{}\n"), Link: framelog.Link{Format: framelog.Format}})
	}
	_, last, err := log.Tail(ctx)
	require.NoError(t, err)
	var broken *framelog.Broken
	_, err = framelog.Read(ctx, log, name, last)
	require.ErrorAs(t, err, &broken)
	require.ErrorContains(t, err, "was changed")
	_, err = framelog.Read(ctx, log, name, last+9)
	require.ErrorAs(t, err, &broken)
	require.Equal(t, last+9, broken.Seq)
	require.ErrorContains(t, err, "the journal of work/3 is damaged at frame")
	require.ErrorContains(t, err, "is gone")
	for _, passing := range []error{framelog.ErrNoFrame, context.DeadlineExceeded} {
		_, err = framelog.Read(ctx, failing{log, passing}, name, last)
		require.ErrorIs(t, err, passing)
		require.NotErrorAs(t, err, &broken)
	}
	_, err = framelog.Read(ctx, failing{log, framelog.ErrTrimmed}, name, 1)
	require.ErrorAs(t, err, &broken)
}

// failing is a log whose reads fail.
type failing struct {
	framelog.Log
	err error
}

func (f failing) Get(context.Context, uint64) (framelog.Frame, error) { return framelog.Frame{}, f.err }
