package blockfile_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
)

const stream = "TEST"

// stored returns the block of a stream in which a server stored n messages, and the stored ones.
func stored(t *testing.T, n int) (dir string, block []byte) {
	t.Helper()
	dir = t.TempDir()
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: dir, Port: natsd.InProcess}))(t)
	defer srv.Stop()
	nc := must.Value(srv.Connect("test"))(t)
	defer nc.Close()
	js := must.Value(jetstream.New(nc))(t)
	must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: stream, Subjects: []string{"a.>"}, Storage: jetstream.FileStorage,
	}))(t)
	for i := range n {
		m := &nats.Msg{Subject: fmt.Sprintf("a.%d", i%3), Data: bytes.Repeat([]byte{byte('a' + i%26)}, 10*i)}
		m.Header = nats.Header{"Key": {fmt.Sprint(i)}}
		must.Value(js.PublishMsg(t.Context(), m))(t)
	}
	files := must.Value(blockfile.Files(blockfile.Messages(dir, "$G", stream)))(t)
	require.Len(t, files, 1)
	block = must.Value(os.ReadFile(files[0].Path))(t)
	return dir, block
}

// read returns the records of a block, and what cannot be read.
func read(t *testing.T, block []byte) (all []blockfile.Record, gaps []blockfile.Gap) {
	t.Helper()
	gaps = must.Value(blockfile.Read(stream, 1, block, []string{"a."}, func(r blockfile.Record) error {
		all = append(all, r)
		return nil
	}))(t)
	return all, gaps
}

// What a server stored is read as it was published, and written again it is the same, byte for byte.
func TestABlockOfAServer(t *testing.T) {
	_, block := stored(t, 40)
	all, gaps := read(t, block)
	require.Empty(t, gaps)
	require.Len(t, all, 40)
	sum, again := blockfile.NewSum(stream, 1), []byte(nil)
	for i, r := range all {
		require.True(t, r.Message())
		require.Equal(t, uint64(i+1), r.Seq)
		require.Equal(t, fmt.Sprintf("a.%d", i%3), r.Subject)
		require.Len(t, r.Body, 10*i)
		require.Equal(t, fmt.Sprint(i), must.Value(nats.DecodeHeadersMsg(r.Header))(t).Get("Key"))
		again = sum.Append(again, r)
	}
	require.Equal(t, block, again)
}

// Wherever one bit is changed, the record is named, those behind it are read, and what it was is found.
func TestOneBitIsFoundAndCorrected(t *testing.T) {
	_, block := stored(t, 12)
	want, _ := read(t, block)
	for at := range block {
		changed := bytes.Clone(block)
		changed[at] ^= 1 << (at % 8)
		all, gaps := read(t, changed)
		require.Len(t, gaps, 1, at)
		require.Len(t, all, len(want)-1, at)
		r, ok := blockfile.Correct(stream, 1, changed[gaps[0].From:gaps[0].To])
		require.True(t, ok, at)
		require.Equal(t, want[r.Seq-1], r, at)
	}
}

// A part that is missing, or longer damage, is one gap that names the messages around it.
func TestGapsNameTheirNeighbours(t *testing.T) {
	_, block := stored(t, 30)
	changed := bytes.Clone(block)
	copy(changed[len(changed)/2:], make([]byte, 900))
	all, gaps := read(t, changed)
	require.Len(t, gaps, 1)
	require.Len(t, all, 30-int(gaps[0].Before-gaps[0].After-1))
	require.Greater(t, gaps[0].Before, gaps[0].After+1)
	_, ok := blockfile.Correct(stream, 1, changed[gaps[0].From:gaps[0].To])
	require.False(t, ok)

	all, gaps = read(t, block[:len(block)-1])
	require.Len(t, all, 29)
	require.True(t, gaps[0].Tail())
	require.Contains(t, gaps[0].String(), "behind message 29")
}

// A server takes blocks that were written here, with gaps in the sequence numbers, and goes on behind them.
func TestAServerTakesWhatWasWritten(t *testing.T) {
	dir, block := stored(t, 10)
	all, _ := read(t, block)
	msgs := blockfile.Messages(dir, "$G", stream)
	require.NoError(t, blockfile.DropIndex(msgs))
	sum, first := blockfile.NewSum(stream, 1), []byte(nil)
	for _, r := range all[:4] {
		first = sum.Append(first, r)
	}
	sum = blockfile.NewSum(stream, 2)
	second := sum.Append(nil, blockfile.Record{
		Seq: 2000, At: all[9].At, Subject: "a.b", Header: all[0].Header, Body: []byte("far"),
	})
	second = sum.Append(second, blockfile.Record{Seq: 3000, At: all[9].At, Erased: true})
	require.NoError(t, os.WriteFile(filepath.Join(msgs, blockfile.Name(1)), first, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(msgs, blockfile.Name(2)), second, 0o600))

	srv := must.Value(natsd.Start(natsd.Config{StoreDir: dir, Port: natsd.InProcess}))(t)
	defer srv.Stop()
	nc := must.Value(srv.Connect("test"))(t)
	defer nc.Close()
	js := must.Value(jetstream.New(nc))(t)
	s := must.Value(js.Stream(t.Context(), stream))(t)
	require.EqualValues(t, 5, s.CachedInfo().State.Msgs)
	require.Equal(t, "far", string(must.Value(s.GetMsg(t.Context(), 2000))(t).Data))
	require.EqualValues(t, 3001, must.Value(js.Publish(t.Context(), "a.c", nil))(t).Sequence)
}

// FuzzRead: no content of a block makes reading fail in another way than with an error.
func FuzzRead(f *testing.F) {
	sum := blockfile.NewSum(stream, 1)
	f.Add(sum.Append(sum.Append(nil, blockfile.Record{Seq: 1, Subject: "a.b", Body: []byte("x")}),
		blockfile.Record{Seq: 2, Subject: "a.b", Header: []byte("NATS/1.0\r\n\r\n")}))
	f.Add([]byte("cmp"))
	f.Fuzz(func(t *testing.T, block []byte) {
		n := 0
		gaps, err := blockfile.Read(stream, 1, block, []string{"a."}, func(r blockfile.Record) error {
			n += len(r.Body) + len(r.Header) + len(r.Subject)
			return nil
		})
		require.LessOrEqual(t, n, len(block))
		for _, gap := range gaps {
			require.Less(t, gap.From, gap.To)
		}
		_ = err
	})
}
