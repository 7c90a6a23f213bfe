package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/archive"
	"quartet/pkg/must"
)

type content struct {
	messages []archive.Message
	files    map[string]string
}

func manifest(streams ...string) archive.Manifest {
	return archive.Manifest{
		Version: "1.2.3", CutAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Key: "abc", Streams: streams,
	}
}

func write(t require.TestingT, m archive.Manifest, c content) []byte {
	var b bytes.Buffer
	w := must.Value(archive.NewWriter(&b, m))(t)
	for _, msg := range c.messages {
		require.NoError(t, w.Message(msg))
	}
	for _, path := range slices.Sorted(maps.Keys(c.files)) {
		require.NoError(t, w.File(path, 0o640, int64(len(c.files[path])), strings.NewReader(c.files[path])))
	}
	must.Value(w.Close())(t)
	return b.Bytes()
}

func read(raw []byte) (content, archive.Manifest, archive.Totals, error) {
	c := content{files: map[string]string{}}
	m, totals, err := archive.Read(bytes.NewReader(raw), archive.Visitor{
		Message: func(m archive.Message) error {
			c.messages = append(c.messages, m)
			return nil
		},
		File: func(path string, _, _ int64, body io.Reader) error {
			text, err := io.ReadAll(body)
			c.files[path] = string(text)
			return err
		},
	})
	return c, m, totals, err
}

func sample() content {
	return content{
		messages: []archive.Message{
			{Stream: "a", Subject: "x.a.0", Seq: 1, Data: []byte("{}\n")},
			{
				Stream: "a", Subject: "x.a.1", Seq: 3, Header: map[string][]string{"Frame": {"f1", "f2"}, "None": {}},
				Data: []byte{},
			},
			{Stream: "b", Subject: "x.b.0", Seq: 9, Data: bytes.Repeat([]byte{0, 255}, 700)},
		},
		files: map[string]string{"keeper/plan.md": "# Plan\n", "keeper/empty": ""},
	}
}

// What was written is read, whatever it is.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := content{files: rapid.MapOf(rapid.StringMatching(`[a-z]{1,9}(/[a-zü ]{1,9}){0,3}`), rapid.String()).
			Draw(t, "files")}
		seq := uint64(0)
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			seq += rapid.Uint64Range(1, 1<<40).Draw(t, "step")
			want.messages = append(want.messages, archive.Message{
				Stream:  rapid.SampledFrom([]string{"a", "b-c"}).Draw(t, "stream"),
				Subject: rapid.StringMatching(`[a-z.]{1,20}`).Draw(t, "subject"), Seq: seq,
				Header: rapid.MapOf(rapid.StringMatching(`[A-Za-z-]{1,9}`), rapid.SliceOfN(rapid.String(), 1, 2)).
					Draw(t, "header"),
				Data: rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
			})
		}
		got, m, totals, err := read(write(t, manifest("a", "b-c"), want))
		require.NoError(t, err)
		require.Equal(t, archive.Format, m.Format)
		require.Equal(t, "1.2.3", m.Version)
		require.Len(t, got.messages, len(want.messages))
		for i, w := range want.messages {
			g := got.messages[i]
			require.Equal(t, []any{w.Stream, w.Subject, w.Seq, string(w.Data), len(w.Header)},
				[]any{g.Stream, g.Subject, g.Seq, string(g.Data), len(g.Header)})
			for k := range w.Header {
				require.Equal(t, w.Header[k], g.Header[k])
			}
		}
		require.Equal(t, want.files, got.files)
		require.EqualValues(t, len(want.files), totals.Files)
		require.EqualValues(t, len(want.messages), totals.Streams["a"].Messages+totals.Streams["b-c"].Messages)
	})
}

// A journal of many segments is a backup of many streams.
func TestManyStreams(t *testing.T) {
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprintf("quartet-journal-waiting-%d-%d", i%6, i)
	}
	_, m, totals, err := read(write(t, manifest(names...), content{}))
	require.NoError(t, err)
	require.Equal(t, names, m.Streams)
	require.Len(t, totals.Streams, len(names))

	// What would be refused when it is read is refused when it is written.
	long := func(n int) (names []string) {
		for i := range n {
			names = append(names, strings.Repeat("x", 1<<20)+fmt.Sprint(i))
		}
		return names
	}
	_, m, _, err = read(write(t, manifest(long(63)...), content{}))
	require.NoError(t, err)
	require.Len(t, m.Streams, 63)
	must.Fail(archive.NewWriter(io.Discard, manifest(long(64)...)))(t, "for 64 streams")
}

// Cut at any byte it is refused, and so is each changed byte that changes what
// is in it: some bits of a compressed file say nothing.
func TestDamageIsFound(t *testing.T) {
	raw := write(t, manifest("a", "b"), sample())
	whole, _, _, err := read(raw)
	require.NoError(t, err)
	for n := range raw {
		_, _, _, err := read(raw[:n])
		require.Error(t, err, "cut at %d", n)
		require.True(t, known(err), "cut at %d: %v", n, err)
		changed := bytes.Clone(raw)
		changed[n] ^= 0x20
		got, _, _, err := read(changed)
		if err == nil {
			require.Equal(t, whole, got, "changed at %d", n)
			continue
		}
		require.True(t, known(err), "changed at %d: %v", n, err)
	}
	for name, follows := range map[string][]byte{"another": raw, "a byte": {0}} {
		_, _, _, err := read(slices.Concat(raw, follows))
		require.Error(t, err, name)
	}
	_, _, _, err = read(raw[:len(raw)-20])
	require.ErrorIs(t, err, archive.ErrCut)
}

func known(err error) bool {
	return errors.Is(err, archive.ErrCut) || errors.Is(err, archive.ErrDamaged) || errors.Is(err, archive.ErrForeign)
}

func TestForeignFilesAreRefused(t *testing.T) {
	for _, text := range []string{"", "hello", strings.Repeat("\x00", 4096), "PK\x03\x04"} {
		_, _, _, err := read([]byte(text))
		require.ErrorIs(t, err, archive.ErrForeign, "%q", text)
	}
}

// A writer refuses what a reader would.
func TestWriterRefuses(t *testing.T) {
	w := must.Value(archive.NewWriter(io.Discard, manifest("a")))(t)
	require.NoError(t, w.Message(archive.Message{Stream: "a", Subject: "s", Seq: 5}))
	require.ErrorContains(t, w.Message(archive.Message{Stream: "a", Subject: "s", Seq: 5}), "comes after 5")
	require.ErrorContains(t, w.Message(archive.Message{Stream: "z", Subject: "s", Seq: 6}), "not in the manifest")
	require.NoError(t,
		w.Message(archive.Message{Stream: "a", Subject: "s", Seq: 6, Data: make([]byte, archive.MaxMessage)}))
	require.ErrorContains(t,
		w.Message(archive.Message{Stream: "a", Subject: "s", Seq: 7, Data: make([]byte, archive.MaxMessage+1)}),
		"at most")
	require.ErrorContains(t, w.File("f", 0o600, 9, strings.NewReader("short")), "shorter")
	w.Abandon()
}

// Errors of the visitor are returned unchanged.
func TestVisitorsErrors(t *testing.T) {
	raw, full := write(t, manifest("a", "b"), sample()), errors.New("disk full")
	for _, v := range []archive.Visitor{
		{Message: func(archive.Message) error { return full }},
		{File: func(string, int64, int64, io.Reader) error { return full }},
		{Manifest: func(archive.Manifest) error { return full }},
	} {
		_, _, err := archive.Read(bytes.NewReader(raw), v)
		require.Equal(t, full, err)
	}
}

// No path of a made archive leaves its directory.
func TestPathsStayInside(t *testing.T) {
	for _, path := range []string{"../x", "/etc/passwd", "a/../../x", "a//b", "."} {
		_, _, _, err := read(write(t, manifest(), content{files: map[string]string{path: "x"}}))
		require.ErrorIs(t, err, archive.ErrDamaged, path)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(write(f, manifest("a", "b"), sample()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, _, _, err := read(raw); err != nil {
			require.True(t, known(err), "%v", err)
		}
	})
}
