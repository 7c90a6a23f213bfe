package framelog_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// lineOf returns a line as a journal has it.
func lineOf(walSeq int, text string) string {
	return fmt.Sprintf(`{"wal_seq":%d,"event_type":"said","agent_id":"%s","payload":{}}`, walSeq, text)
}

// hasText reports whether a line has a text.
func hasText(text string) func([]byte) bool {
	return func(line []byte) bool { return bytes.Contains(line, []byte(text)) }
}

// said returns the frames of a log in which two agents say something.
func said(t *testing.T) (frames []written, end framelog.End) {
	log := journaltest.NewMemLog()
	w := writer(log)
	end = put(t, w, end, lineOf(1, "ada"), lineOf(2, "bob"), lineOf(3, "ada"))
	end = put(t, w, end, lineOf(4, "bob"))
	end = put(t, w, end, lineOf(5, "ada"))
	end = put(t, w, end, lineOf(6, "bob"), lineOf(7, "eve"))
	return framesOf(t, log), end
}

// erased returns frames without the lines that have a text.
func erased(t *testing.T, frames []written, text string) (all []written, lines int) {
	t.Helper()
	for _, f := range frames {
		body := slices.Clone(f.Body)
		g, n := f.Erase(f.Link.First, hasText(text))
		require.Equal(t, body, f.Body, "the frame itself is not changed")
		require.NotContains(t, string(g.Body), text)
		all, lines = append(all, written{f.seq, g}), lines+n
	}
	return all, lines
}

// TestErasedLines: frames without some of their lines have the hashes that they had, and the place of each line.
func TestErasedLines(t *testing.T) {
	whole, end := said(t)
	frames, n := erased(t, whole, "ada")
	require.Equal(t, 3, n)
	got := must.Value(check(frames))(t)
	require.Equal(t, end, got)
	require.Equal(t, string(framelog.Mark(1))+lineOf(2, "bob")+"\n"+string(framelog.Mark(3)), string(frames[0].Body))
	require.Equal(t, 2, frames[0].Erased())
	require.Equal(t, framelog.Salt{}, frames[0].Link.Salt, "with the salt a guess could be confirmed")
	require.Equal(t, whole[1], frames[1], "a frame without such lines stays as it is")
	require.Equal(t, framelog.HashOf(name, whole[0].Frame), framelog.HashOf(name, frames[0].Frame))

	again, n := erased(t, frames, "bob")
	require.Equal(t, 3, n, "lines can be erased one after the other")
	got = must.Value(check(again))(t)
	require.Equal(t, end, got)
	_, n = again[0].Erase(1, hasText("line_erased"))
	require.Zero(t, n, "a mark is not erased")
}

// TestErasedLinesCannotBeChanged changes each part of a frame with erased lines.
func TestErasedLinesCannotBeChanged(t *testing.T) {
	whole, _ := said(t)
	for what, change := range map[string]func(f *framelog.Frame){
		"a line": func(f *framelog.Frame) { f.Body = bytes.Replace(f.Body, []byte("bob"), []byte("eve"), 1) },
		"another mark": func(f *framelog.Frame) {
			f.Body = bytes.Replace(f.Body, framelog.Mark(3), framelog.Mark(4),
				1)
		},
		"text instead of mark": func(f *framelog.Frame) {
			f.Body = bytes.Replace(f.Body, framelog.Mark(3), []byte(lineOf(3, "eve")+"\n"), 1)
		},
		"a line more": func(f *framelog.Frame) {
			f.Body = append(slices.Clone(f.Body), framelog.Mark(4)...)
		},
		"a line less":           func(f *framelog.Frame) { f.Body = bytes.Replace(f.Body, framelog.Mark(3), nil, 1) },
		"a hash":                func(f *framelog.Frame) { f.Rests[0].Hash[0]++ },
		"the salt of a line":    func(f *framelog.Frame) { f.Rests[1].Salt[0]++ },
		"a hash more":           func(f *framelog.Frame) { f.Rests = append(f.Rests, framelog.Rest{Erased: true}) },
		"the salt of the frame": func(f *framelog.Frame) { f.Link.Salt[0]++ },
		"a line said to be gone": func(f *framelog.Frame) {
			f.Rests[1] = framelog.Rest{Erased: true, Hash: f.Rests[0].Hash}
		},
	} {
		frames, _ := erased(t, whole, "ada")
		change(&frames[0].Frame)
		_, intact := framelog.Anchor(name, frames[0].seq, frames[0].Frame)
		require.False(t, intact, what)
	}
}

// TestErasedLinesInAMessage: a message has the frame, and earlier versions refuse it by its format.
func TestErasedLinesInAMessage(t *testing.T) {
	whole, end := said(t)
	for _, text := range []string{"nobody", "ada", "bob"} {
		frames, _ := erased(t, whole, text)
		for i := range frames {
			link, body := frames[i].Message()
			l := must.Value(framelog.ParseLink(link))(t)
			require.Equal(t, frames[i].Rests != nil, l.Format > framelog.Format)
			f := must.Value(framelog.ParseMessage(link, body))(t)
			f.ID, f.Generation = frames[i].ID, frames[i].Generation
			require.Equal(t, frames[i].Frame, f)
			frames[i].Frame = f
			for cut := range len(body) - 1 { // the last byte ends a line, which is not needed
				g, err := framelog.ParseMessage(link, body[:cut])
				if err == nil {
					g.ID, g.Generation = f.ID, f.Generation
					_, intact := framelog.Anchor(name, frames[i].seq, g)
					require.False(t, intact, "%d of %d bytes of %q", cut, len(body), body)
				}
			}
		}
		require.Equal(t, end, must.Value(check(frames))(t))
	}
}
