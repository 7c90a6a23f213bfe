package derived_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/bus"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/services/storage/derived"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// events are the messages of blocks of EVENTS; no block has some of the sequence numbers.
func events(t *testing.T, dir string, blocks ...[]uint64) (files []blockfile.File) {
	msgs := blockfile.Messages(dir, "$G", bus.Stream)
	require.NoError(t, os.MkdirAll(msgs, 0o700))
	for i, seqs := range blocks {
		sum := blockfile.NewSum(bus.Stream, i+1)
		var b []byte
		for _, seq := range seqs {
			b = sum.Append(b, blockfile.Record{
				Seq: seq, At: 1, Subject: "quartet.events.a.b.c.d", Body: fmt.Appendf(nil, `{"n":%d}`, seq),
			})
		}
		file := blockfile.File{Index: i + 1, Path: filepath.Join(msgs, blockfile.Name(i+1))}
		require.NoError(t, os.WriteFile(file.Path, b, 0o600))
		files = append(files, file)
	}
	return files
}

// TestR10_WhatIsMissingFromEvents: gaps and messages that cannot be read are named with their numbers, and what was
// removed from the beginning or is being written at the end is no damage.
func TestR10_WhatIsMissingFromEvents(t *testing.T) {
	flip := func(at float64) func(t *testing.T, files []blockfile.File) {
		return func(t *testing.T, files []blockfile.File) {
			b := must.Value(os.ReadFile(files[0].Path))(t)
			b[int(at*float64(len(b)))] ^= 1
			require.NoError(t, os.WriteFile(files[0].Path, b, 0o600))
		}
	}
	cut := func(i int) func(t *testing.T, files []blockfile.File) {
		return func(t *testing.T, files []blockfile.File) {
			require.NoError(t, os.Truncate(files[i].Path, must.Value(os.Stat(files[i].Path))(t).Size()-5))
		}
	}
	intact := func(*testing.T, []blockfile.File) {}
	for what, c := range map[string]struct {
		blocks   [][]uint64
		harm     func(t *testing.T, files []blockfile.File)
		messages uint64
		want     []string
	}{
		"intact":          {[][]uint64{{5, 6, 7}, {8, 9}}, intact, 5, nil},
		"a gap":           {[][]uint64{{5, 6, 9}}, intact, 3, []string{"messages 7 to 8 are missing"}},
		"a gap of one":    {[][]uint64{{5, 7}}, intact, 2, []string{"message 6 is missing"}},
		"a block is gone": {[][]uint64{{1, 2}, {7, 8}}, intact, 4, []string{"messages 3 to 6 are missing"}},
		"a bit": {
			[][]uint64{{1, 2, 3}},
			flip(0.5), 2,
			[]string{"message 2 is missing (", "the checksum of a record is wrong)"},
		},
		"the first one": {
			[][]uint64{{1, 2, 3}},
			flip(0.2), 2,
			[]string{"what is before message 2 cannot be read (", "checksum"},
		},
		"the end of a block": {
			[][]uint64{{1, 2, 3}, {4, 5}},
			cut(0), 4,
			[]string{"message 3 is missing (", "the block ends within a record)"},
		},
		"the last record": {[][]uint64{{1, 2, 3}, {4, 5}}, cut(1), 4, nil},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			c.harm(t, events(t, dir, c.blocks...))
			r := must.Value(derived.Streams[0].Read(dir, "$G"))(t)
			require.Equal(t, c.messages, r.Messages)
			if c.want == nil {
				require.NoError(t, r.Err())
				return
			}
			require.Len(t, r.Damage, 1)
			for _, text := range c.want {
				require.Contains(t, r.Damage[0], text)
			}
			require.ErrorContains(t, r.Err(), "the stream EVENTS, which is copied from the journals, is damaged: ")
			require.Contains(t, framelog.DamageRemedy(r.Err().Error()), "the next start copies it again")
			require.Contains(t, r.Remedy(), "the next start copies it again")
		})
	}
}

// TestR10_WhatIsMissingFromOutput: output is removed from the middle of the stream in order, so that only what cannot
// be read is damage; and nothing has it again.
func TestR10_WhatIsMissingFromOutput(t *testing.T) {
	dir, stream := t.TempDir(), derived.Streams[1]
	msgs := blockfile.Messages(dir, "$G", stream.Name)
	require.NoError(t, os.MkdirAll(msgs, 0o700))
	sum := blockfile.NewSum(stream.Name, 1)
	var b []byte
	var ends []int
	for _, seq := range []uint64{1, 2, 5, 6} {
		header := "NATS/1.0\r\nQuartet-Offset: 1\r\nQuartet-Stream: 1\r\n\r\n"
		if seq == 6 {
			header = "NATS/1.0\r\nQuartet-Stream: 1\r\n\r\n"
		}
		b = sum.Append(b, blockfile.Record{
			Seq: seq, At: 1, Subject: "quartet.output.default.tsk_1", Header: []byte(header), Body: []byte("text"),
		})
		ends = append(ends, len(b))
	}
	b[ends[1]-12] ^= 1
	require.NoError(t, os.WriteFile(filepath.Join(msgs, "1.blk"), b, 0o600))
	r := must.Value(stream.Read(dir, "$G"))(t)
	require.Len(t, r.Damage, 2)
	require.True(t, strings.HasPrefix(r.Damage[0], "of messages 2 to 4, those that were not removed cannot be read ("),
		r.Damage[0])
	require.Equal(t, "message 6 cannot be read: it has no offset: strconv.ParseInt: parsing \"\": invalid syntax",
		r.Damage[1])
	require.ErrorContains(t, r.Err(), ", of which there is no other copy, is damaged: ")
	require.ErrorContains(t, r.Err(), ", and 1 more")
	require.Contains(t, framelog.DamageRemedy(r.Err().Error()), "cannot be copied again")
	require.Contains(t, r.Remedy(), "cannot be copied again")
}

// TestR10_StreamsOfRunningServers: what a server that runs does not deliver is named as well, and what was removed in
// order is not.
func TestR10_StreamsOfRunningServers(t *testing.T) {
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: natsd.InProcess}))(t)
	defer srv.Stop()
	nc := must.Value(srv.Connect("test"))(t)
	defer nc.Close()
	js := must.Value(jetstream.New(nc))(t)
	for i, s := range derived.Streams {
		require.Empty(t, must.Value(s.Replicas(t.Context(), nc))(t))
		subject := []string{"quartet.events.a.b.c.d", "quartet.output.default.tsk_1"}[i]
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: s.Name, Subjects: []string{subject}})
		require.NoError(t, err)
		require.Equal(t, []derived.Report{{Server: ""}}, bare(must.Value(s.Replicas(t.Context(), nc))(t)))
		for range 9 {
			must.Value(js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: []byte("{}"), Header: nats.Header{
				"Quartet-Offset": {"1"}, "Quartet-Stream": {"1"},
			}}))(t)
		}
		require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(3)))
		whole := must.Value(s.Replicas(t.Context(), nc))(t)
		require.Equal(t, []derived.Report{{Messages: 7, First: 3, Last: 9}}, bare(whole))
		require.NoError(t, stream.DeleteMsg(t.Context(), 6))
		require.NoError(t, stream.DeleteMsg(t.Context(), 7))
		must.Value(js.Publish(t.Context(), subject, []byte("{")))(t)
		holed := must.Value(s.Replicas(t.Context(), nc))(t)
		require.Len(t, holed, 1)
		if s.Again {
			require.Equal(t, []string{"messages 6 to 7 are missing", "message 10 cannot be read: it is no JSON"},
				holed[0].Damage)
		} else {
			require.Len(t, holed[0].Damage, 1)
			require.Contains(t, holed[0].Damage[0], "message 10 cannot be read: it has no offset")
		}
	}
}

// bare returns reports without what they are about.
func bare(all []derived.Report) (out []derived.Report) {
	for _, r := range all {
		r.Stream = derived.Stream{}
		out = append(out, r)
	}
	return out
}

// TestR10_StreamsOfSnapshots: those of all partitions are found, in the files and while a server runs. What was removed
// in order is no damage, and a changed bit is, with what becomes of it.
func TestR10_StreamsOfSnapshots(t *testing.T) {
	dir := t.TempDir()
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: dir, Port: natsd.InProcess}))(t)
	nc := must.Value(srv.Connect("test"))(t)
	var names []string
	for _, plane := range []string{"agent", "work"} {
		store := must.Value(jetlog.NewSnapshotStore(nc, plane, 0, 1))(t)
		numbers, err := store.Put(t.Context(), [][]byte{[]byte("one"), []byte("two"), []byte("three"), []byte("four")})
		require.NoError(t, err)
		require.NoError(t, store.Remove(t.Context(), numbers[1:2]))
		names = append(names, jetlog.SnapshotStream(plane, 0))
	}
	running := must.Value(derived.Running(t.Context(), nc))(t)
	require.Len(t, running, len(derived.Streams)+2)
	for i, s := range running[len(derived.Streams):] {
		require.Equal(t, names[i], s.Name)
		found := must.Value(s.Replicas(t.Context(), nc))(t)
		require.Equal(t, []derived.Report{{Messages: 3, First: 1, Last: 4}}, bare(found))
	}
	nc.Close()
	srv.Stop()

	stored := must.Value(derived.Stored(dir, "$G"))(t)
	require.Len(t, stored, len(derived.Streams)+2)
	damaged := stored[len(derived.Streams)+1]
	files := must.Value(blockfile.Files(blockfile.Messages(dir, "$G", damaged.Name)))(t)
	require.NotEmpty(t, files)
	b := must.Value(os.ReadFile(files[0].Path))(t)
	b[bytes.Index(b, []byte("three"))] ^= 1
	require.NoError(t, os.WriteFile(files[0].Path, b, 0o600))
	for _, s := range stored[len(derived.Streams):] {
		r := must.Value(s.Read(dir, "$G"))(t)
		if s.Name != damaged.Name {
			require.NoError(t, r.Err())
			continue
		}
		require.Len(t, r.Damage, 1, r.Damage)
		require.ErrorContains(t, r.Err(), "the stream "+names[1]+", which is written again from the journal, is "+
			"damaged: ")
		require.Contains(t, framelog.DamageRemedy(r.Err().Error()), "writes snapshots again")
		require.Contains(t, r.Remedy(), "until then a start reads an older snapshot")
	}
	require.Len(t, must.Value(derived.Stored(t.TempDir(), "$G"))(t), len(derived.Streams))
}
