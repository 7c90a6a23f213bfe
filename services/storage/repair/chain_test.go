package repair

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
)

const name = "work/0"

// sealed returns a frame that follows end in an incarnation, with one line, and the end behind it.
func sealed(t *testing.T, end framelog.End, seq, incarnation, first uint64, text string) (*copyOf, framelog.End) {
	t.Helper()
	c := framelog.NewContent(framelog.Salt{1})
	f := framelog.Frame{ID: text, Generation: 1, Body: fmt.Appendf(nil, `{"wal_seq":%d,"event_type":"%s"}`+"\n", first,
		text)}
	c.Add(f.Body)
	f = framelog.Begin(name, end, end.Segment, incarnation, first, f, c)
	next, intact, err := end.Next(name, seq, f)
	require.NoError(t, err)
	require.True(t, intact)
	return &copyOf{seq: seq, frame: f}, next
}

// journalOf returns n frames that continue each other, and the end behind each.
func journalOf(t *testing.T, n int) (frames []*copyOf, ends []framelog.End) {
	t.Helper()
	end := framelog.End{}
	for i := range uint64(n) {
		var f *copyOf
		f, end = sealed(t, end, 2*i+1, 1, i+1, fmt.Sprint("event", i))
		frames, ends = append(frames, f), append(ends, end)
	}
	return frames, ends
}

// at returns copies of frames that are in a place.
func at(place int, frames ...*copyOf) (all []*copyOf) {
	for _, f := range frames {
		one := *f
		one.place = place
		all = append(all, &one)
	}
	return all
}

func seqs(frames []*copyOf) (all []uint64) {
	for _, f := range frames {
		all = append(all, f.seq)
	}
	return all
}

// TestAssemble puts journals together from what is left of them in several places.
func TestAssemble(t *testing.T) {
	frames, ends := journalOf(t, 6)
	all := seqs(frames)
	changed := *frames[3]
	changed.frame.Body = []byte(`{"wal_seq":4,"event_type":"another"}` + "\n")
	fork, _ := sealed(t, ends[2], 7, 1, 4, "fork")
	begin, begun := sealed(t, ends[2], 2000, 2, 1005, "incarnation_began")

	for what, c := range map[string]struct {
		copies    []*copyOf
		witnessed framelog.End
		kept      []uint64
		whole     bool
		left      []uint64
		broken    int
	}{
		"all":                      {frames, ends[5], all, true, nil, 0},
		"nothing was witnessed":    {frames, framelog.End{}, all, true, nil, 0},
		"in any order":             {slices.Concat(frames[3:], frames[:3]), ends[5], all, true, nil, 0},
		"more than witnessed":      {frames, ends[3], all, true, nil, 0},
		"the end is missing":       {frames[:4], ends[5], all[:4], false, nil, 0},
		"one is missing":           {slices.Concat(frames[:3], frames[4:]), ends[5], all[:3], false, all[4:], 0},
		"the beginning is missing": {frames[2:], ends[5], nil, false, all[2:], 0},
		"one was changed": {
			slices.Concat(frames[:3], []*copyOf{&changed}, frames[4:]), ends[5], all[:3],
			false, all[4:], 1,
		},
		"and is elsewhere": {slices.Concat(frames[:3], []*copyOf{&changed}, frames[4:],
			at(placeBackup, frames...)), ends[5], all, true, nil, 1},
		"two halves": {
			slices.Concat(frames[:2], at(placeSalvage, frames[1:]...)), ends[5], all, true,
			nil, 0,
		},
		"the witness decides a fork": {
			slices.Concat(frames[:3], []*copyOf{fork}, at(placeBackup, frames[3:]...)),
			ends[5], all, true, nil, 0,
		},
		"an accepted loss comes before what was given up": {
			slices.Concat(frames[:3], []*copyOf{begin}, at(placeSalvage, frames[3:]...)), ends[5],
			append(slices.Clone(all[:3]), 2000), true, nil, 0,
		},
		"and is the whole journal": {
			append(slices.Clone(frames[:3]), begin), begun,
			append(slices.Clone(all[:3]), 2000), true, nil, 0,
		},
	} {
		got := assemble(name, framelog.End{}, c.copies, c.witnessed)
		require.Equal(t, c.kept, seqs(got.kept), what)
		require.Equal(t, c.whole, got.whole, what)
		require.Equal(t, c.left, seqs(got.left), what)
		require.Len(t, got.broken, c.broken, what)
	}
}

// TestAssembleFramesOfBefore: frames without hashes are a journal if their lines are numbered without a gap, and a
// chained frame names the last of them.
func TestAssembleFramesOfBefore(t *testing.T) {
	var copies []*copyOf
	end := framelog.End{}
	for i := range uint64(4) {
		f := &copyOf{
			seq: i + 1, frame: framelog.Frame{
				ID: fmt.Sprint(i), Body: fmt.Appendf(nil, `{"wal_seq":%d,"event_type":"x"}`+"\n", i+1),
			},
		}
		var err error
		end, _, err = end.Next(name, f.seq, f.frame)
		require.NoError(t, err)
		copies = append(copies, f)
	}
	chained, last := sealed(t, end, 9, 1, 5, "chained")
	got := assemble(name, framelog.End{}, append(copies, chained), last)
	require.True(t, got.whole)
	require.Len(t, got.kept, 5)
	got = assemble(name, framelog.End{}, slices.Concat(copies[:1], copies[2:], []*copyOf{chained}), last)
	require.False(t, got.whole)
	require.Len(t, got.kept, 1)
}
