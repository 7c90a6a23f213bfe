package output

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/utf8cut"
	"quartet/services/task/rules"
)

// testKept keeps the tests quick: the broker is slow under the race detector.
const testKept = 8 * MaxChunk

const (
	stdout = taskv1.OutputStream_OUTPUT_STREAM_STDOUT
	stderr = taskv1.OutputStream_OUTPUT_STREAM_STDERR
)

func TestMemoryOutput(t *testing.T) {
	testOutput(t, NewMemory(testKept))
}

func TestStreamOutput(t *testing.T) {
	o := openStreamOutput(t)
	o.kept, o.slack = testKept, testKept/4
	testOutput(t, o)
}

func openStreamOutput(t *testing.T) *Stream {
	nc := natsdtest.Connect(t)
	return must.Value(OpenStream(t.Context(), nc, 1, 0, nil))(t)
}

// TestT6_OutputIsKeptForDays: output is dropped when it is so old, that of other tasks is not, and a task may go on
// writing.
func TestT6_OutputIsKeptForDays(t *testing.T) {
	nc := natsdtest.Connect(t)
	o := must.Value(OpenStream(t.Context(), nc, 1, 0, nil))(t)
	must.Value(o.Append(t.Context(), "acme", "old", chunkAt(0, stdout, "before")))(t)
	o, err := OpenStream(t.Context(), nc, 1, 24*time.Hour, nil) // a server that is started with another setting
	require.NoError(t, err)
	require.EqualValues(t, 6, must.Value(o.Read(t.Context(), "acme", "old", 0, 100))(t).End)
	o = must.Value(OpenStream(t.Context(), nc, 1, 200*time.Millisecond, nil))(t)
	require.Eventually(t, func() bool {
		p, err := o.Read(t.Context(), "acme", "old", 0, 100)
		return err == nil && p.End == 0
	}, time.Minute, 20*time.Millisecond)
	end := must.Value(o.Append(t.Context(), "acme", "old", chunkAt(6, stdout, " and after")))(t)
	require.EqualValues(t, 16, end)
	o = must.Value(OpenStream(t.Context(), nc, 1, 0, nil))(t)
	require.Zero(t, o.stream.CachedInfo().Config.MaxAge)
}

func chunkAt(offset int64, kind taskv1.OutputStream, data string) *taskv1.OutputChunk {
	return &taskv1.OutputChunk{Offset: offset, Stream: kind, Data: []byte(data)}
}

// testOutput is what every Output must do.
func testOutput(t *testing.T, o Store) {
	ctx := context.Background()
	text := func(p Piece) string { b, _ := Join(p); return string(b) }
	read := func(t *testing.T, task string, offset int64, limit int) Piece {
		return must.Value(o.Read(ctx, "acme", task, offset, limit))(t)
	}
	put := func(t *testing.T, task string, c *taskv1.OutputChunk) int64 {
		return must.Value(o.Append(ctx, "acme", task, c))(t)
	}

	t.Run("nothing", func(t *testing.T) {
		require.Equal(t, Piece{}, read(t, "tsk_none", 0, 10))
		require.Equal(t, Piece{}, read(t, "tsk_none", -5, 10))
		require.NoError(t, o.Remove(ctx, "acme", "tsk_none"))
	})

	t.Run("pieces", func(t *testing.T) {
		require.EqualValues(t, 4, put(t, "tsk_a", chunkAt(0, stdout, "abcd")))
		require.EqualValues(t, 6, put(t, "tsk_a", chunkAt(4, stderr, "ef")))
		require.EqualValues(t, 10, put(t, "tsk_a", chunkAt(6, stdout, "ghij")))
		all := read(t, "tsk_a", 0, 100)
		require.Equal(t, "abcdefghij", text(all))
		require.Len(t, all.Chunks, 3)
		require.Equal(t, stderr, all.Chunks[1].GetStream())
		for from := range int64(13) {
			for limit := 1; limit <= 11; limit++ {
				p := read(t, "tsk_a", from, limit)
				at := min(from, 10)
				require.Equal(t, "abcdefghij"[at:min(10, at+int64(limit))], text(p), "%d %d", from, limit)
				require.Equal(t, at, p.Start)
				require.EqualValues(t, 10, p.End)
				require.EqualValues(t, 0, p.Oldest)
			}
		}
		require.Equal(t, "hij", text(read(t, "tsk_a", FromEnd(3), 100)))
		require.Equal(t, "abcdefghij", text(read(t, "tsk_a", FromEnd(300), 100)))
		require.Equal(t, Piece{}, read(t, "tsk_b", 0, 10), "tasks are apart")
		require.Equal(t, Piece{}, must.Value(o.Read(ctx, "other", "tsk_a", 0, 10))(t), "namespaces are apart")
	})

	t.Run("repeated appends", func(t *testing.T) {
		put(t, "tsk_r", chunkAt(0, stdout, "abcd"))
		require.EqualValues(t, 4, put(t, "tsk_r", chunkAt(0, stdout, "abcd")))
		require.EqualValues(t, 4, put(t, "tsk_r", chunkAt(1, stdout, "bc")))
		require.EqualValues(t, 6, put(t, "tsk_r", chunkAt(2, stdout, "cdef")))
		require.EqualValues(t, 6, put(t, "tsk_r", chunkAt(6, stdout, "")))
		require.Equal(t, "abcdef", text(read(t, "tsk_r", 0, 100)))
	})

	t.Run("a gap stays a gap", func(t *testing.T) {
		put(t, "tsk_g", chunkAt(0, stdout, "ab"))
		put(t, "tsk_g", chunkAt(10, stdout, "cd"))
		p := read(t, "tsk_g", 5, 100)
		require.Equal(t, "cd", text(p))
		require.EqualValues(t, 10, p.Start)
		require.EqualValues(t, 12, p.End)
	})

	t.Run("the end is kept", func(t *testing.T) {
		block := strings.Repeat("x", MaxChunk-10)
		var end int64
		for i := range 20 {
			end = put(t, "tsk_k", chunkAt(end, stdout, fmt.Sprintf("%09d ", i)+block))
		}
		require.EqualValues(t, 20*MaxChunk, end)
		p := read(t, "tsk_k", 0, 10)
		require.Equal(t, end, p.End)
		require.Equal(t, p.Oldest, p.Start)
		kept := p.End - p.Oldest
		require.GreaterOrEqual(t, kept, int64(testKept-MaxChunk))
		require.LessOrEqual(t, kept, int64(testKept+testKept/2))
		require.Equal(t, fmt.Sprintf("%09d ", p.Oldest/MaxChunk), text(p))
		for i := p.Oldest / MaxChunk; i < 20; i++ {
			require.Equal(t, fmt.Sprintf("%09d ", i), text(read(t, "tsk_k", i*MaxChunk, 10)))
		}
		require.Equal(t, "xxx", text(read(t, "tsk_k", FromEnd(3), 3)))
	})

	t.Run("removed", func(t *testing.T) {
		put(t, "tsk_d", chunkAt(0, stdout, "abcd"))
		require.NoError(t, o.Remove(ctx, "acme", "tsk_d"))
		require.Equal(t, Piece{}, read(t, "tsk_d", 0, 10))
	})
}

func TestStreamOutputSurvivesAnotherWriter(t *testing.T) {
	o := openStreamOutput(t)
	other := &Stream{js: o.js, stream: o.stream, kept: o.kept, slack: o.slack, ends: make(map[string]tail)}
	ctx := t.Context()
	for i, via := range []*Stream{o, other, o, other, other, o} {
		end := must.Value(via.Append(ctx, "acme", "tsk_a", chunkAt(int64(2*i), stdout, fmt.Sprintf("%02d", i))))(t)
		require.EqualValues(t, 2*i+2, end)
	}
	p := must.Value(o.Read(ctx, "acme", "tsk_a", 0, 100))(t)
	b, _ := Join(p)
	require.Equal(t, "000102030405", string(b))
}

func TestT6_TextOfPieces(t *testing.T) {
	require.Equal(t, "é中", EndText(Piece{Start: 1, Chunks: []*taskv1.OutputChunk{chunkAt(1, stdout, "\xad\xadé中")}},
		100))
	require.Equal(t, "中", EndText(Piece{Chunks: []*taskv1.OutputChunk{chunkAt(0, stdout, "é中")}}, 4))
	require.Equal(t, "\uFFFD", EndText(Piece{Chunks: []*taskv1.OutputChunk{chunkAt(0, stdout, "a\xff")}}, 3))
	require.Equal(t, "中b", rules.LastChars("é中b", 2))
	require.Equal(t, "é中b", rules.LastChars("é中b", 3))
	require.Empty(t, rules.LastChars("abc", 0))
	for _, c := range []struct {
		in   string
		open int
	}{
		{"", 0},
		{"a", 0},
		{"中", 0},
		{"\xe4", 1},
		{"a\xe4\xb8", 2},
		{"\xf0\x9f\x98", 3},
		{"\xff", 0},
		{"\x80\x80\x80\x80", 0},
		{"中\xc3", 1},
	} {
		require.Equal(t, c.open, utf8cut.Partial([]byte(c.in)), "%q", c.in)
	}
}
