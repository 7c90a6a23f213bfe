package spool

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	stdout = taskv1.OutputStream_OUTPUT_STREAM_STDOUT
	stderr = taskv1.OutputStream_OUTPUT_STREAM_STDERR
)

// Whatever is added, sent, acknowledged, lost and sent again, the other side
// gets every byte at its offset, and characters whole.
func TestT6_BufferLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewAt(0)
		var want, got []byte
		acked := int64(0)
		take := func() {
			for _, c := range b.Next() {
				require.LessOrEqual(t, len(c.GetData()), ChunkSize)
				require.LessOrEqual(t, c.GetOffset(), int64(len(got)), "no gap")
				got = append(got[:c.GetOffset()], c.GetData()...)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				data := []byte(strings.Repeat(rapid.SampledFrom([]string{"a", "é", "中", "😀"}).Draw(t, "text"),
					rapid.SampledFrom([]int{1, 3, 20_000}).Draw(t, "n")))
				if b.held+len(data) >= Window {
					continue // it would wait
				}
				want = append(want, data...)
				b.Add(rapid.SampledFrom([]taskv1.OutputStream{stdout, stderr}).Draw(t, "stream"), data)
			case 1:
				take()
			case 2:
				if int64(len(got)) > acked {
					acked = rapid.Int64Range(acked, int64(len(got))).Draw(t, "ack")
					b.Acknowledge(acked)
				}
			case 3:
				b.Rewind() // a new link: what was not acknowledged may be lost
				got = got[:min(int64(len(got)), b.sent)]
			}
		}
		take()
		require.Equal(t, string(want), string(got))
		require.EqualValues(t, len(want), b.Total())
		b.Acknowledge(b.Total())
		require.Zero(t, b.held)
	})
}

func TestT6_BufferMakesWritersWait(t *testing.T) {
	b := NewAt(0)
	require.True(t, b.Add(stdout, bytes.Repeat([]byte("x"), Window)))
	require.True(t, b.Full())
	added := make(chan struct{})
	go func() {
		b.Add(stdout, []byte("more"))
		close(added)
	}()
	b.Next()
	select {
	case <-added:
		require.Fail(t, "there was no room")
	default:
	}
	b.Acknowledge(ChunkSize)
	<-added
	require.EqualValues(t, Window+4, b.Total())
	go b.Add(stdout, bytes.Repeat([]byte("x"), Window))
	b.Discard() // lets everybody pass
	require.False(t, b.Add(stdout, bytes.Repeat([]byte("x"), 10*Window)))
	require.LessOrEqual(t, b.held, Window+Window)
}

// Small writes share a chunk until it is sent, so that a line each costs no
// message each; what came from the other stream keeps its place between them.
func TestT6_SmallWritesShareAChunk(t *testing.T) {
	b := NewAt(0)
	for range 100 {
		b.Add(stdout, []byte("a line\n"))
	}
	b.Add(stderr, []byte("oh\n"))
	b.Add(stdout, []byte("a line\n"))
	chunks := b.Next()
	require.Len(t, chunks, 3)
	require.Equal(t, strings.Repeat("a line\n", 100), string(chunks[0].GetData()))
	require.Equal(t, "oh\n", string(chunks[1].GetData()))
	b.Add(stdout, []byte("more\n"))
	require.Len(t, b.Next(), 1, "what was sent does not change any more")
}
