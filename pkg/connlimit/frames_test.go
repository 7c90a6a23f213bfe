package connlimit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// frame is a frame with a head and n bytes.
func frame(n int) []byte {
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), 4, 0, 0, 0, 0, 0}, make([]byte, n)...)
}

// TestG8_FramesAreCounted wherever the reads begin and end.
func TestG8_FramesAreCounted(t *testing.T) {
	text := []byte(preface)
	for _, n := range []int{0, 0, 1, 8, 9, 10, 300, 70_000, 0} {
		text = append(text, frame(n)...)
	}
	for _, step := range []int{1, 2, 8, 9, 10, 1 << 10, len(text)} {
		f := NewFrames(nil)
		frames := 0
		for rest := text; len(rest) > 0; {
			n := min(step, len(rest))
			frames += f.count(rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, 9, frames, step)
		require.Zero(t, f.rest)
		require.Zero(t, f.got)
	}
	f := NewFrames(nil)
	require.Zero(t, f.count(text[:len(preface)+frameHeadBytes-1]))
	require.Equal(t, 1, f.count(text[len(preface)+frameHeadBytes-1:][:1]), "a frame counts when its head is complete")
	for _, other := range []string{"GET /healthz HTTP/1.1\r\n", "PRI * HTTP/1.1\r\n"} {
		f = NewFrames(nil)
		require.Zero(t, f.count([]byte(other)))
		require.Zero(t, f.count(text), "what does not begin as HTTP/2 is not counted")
	}
}

// FuzzFrames: how many frames are counted does not depend on where reads end.
func FuzzFrames(f *testing.F) {
	f.Add(append(frame(3), frame(0)...), 5)
	f.Add([]byte("GET"), 2)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		if at < 0 || at > len(text) {
			return
		}
		whole, parts := NewFrames(nil), NewFrames(nil)
		if at%2 == 0 { // else the text has to begin as HTTP/2
			whole.preface, parts.preface = len(preface), len(preface)
		}
		require.Equal(t, whole.count(text), parts.count(text[:at])+parts.count(text[at:]))
		require.Equal(t, whole.rest, parts.rest)
	})
}
