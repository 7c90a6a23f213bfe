package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/bus"
	"quartet/pkg/must"
	"quartet/pkg/natsd/blockfile"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/tests/proc"
)

// TestR10_DamageToEventsAndOutput: a changed bit in EVENTS and in the output of commands is named, with the stream, the
// messages and whether they can be copied again: by verify, by the server that goes on and refuses nothing, and by
// doctor. EVENTS is then copied again.
func TestR10_DamageToEventsAndOutput(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	d := newDamageable(t)
	for range 20 {
		_, err := d.tasks.ExecCommand(d.ctx, &taskv1.ExecCommandRequest{AgentId: "keeper", Command: &taskv1.CommandSpec{
			Cmd: "echo some output",
		}, YieldTime: durationpb.New(30 * time.Second)})
		require.NoError(t, err)
	}
	d.quiet()
	require.NoError(t, d.srv.Interrupt(d.ctx))
	events, before := d.streams()
	require.Zero(t, before["EVENTS"].code)
	require.NotZero(t, before["EVENTS"].Messages)
	require.NotZero(t, before["quartet-output"].Messages)
	require.Empty(t, events)
	copied := d.copied()
	require.Greater(t, copied, 100)
	// in a body: elsewhere a record may be lost in another way
	for name, text := range map[string]string{"EVENTS": `"payload"`, "quartet-output": "some output"} {
		files, err := filepath.Glob(filepath.Join(d.srv.DataDir, "nats", "jetstream", "$G", "streams", name, "msgs",
			"*.blk"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		b := must.Value(os.ReadFile(files[0]))(t)
		at := bytes.Index(b[len(b)/3:], []byte(text))
		require.GreaterOrEqual(t, at, 0)
		b[len(b)/3+at] ^= 8
		require.NoError(t, os.WriteFile(files[0], b, 0o600))
	}
	damaged, found := d.streams()
	slices.Sort(damaged)
	require.Equal(t, []string{"EVENTS", "quartet-output"}, damaged)
	require.Regexp(t, `message \d+ is missing \(.*1\.blk, bytes \d+ to \d+: the checksum of a record is wrong\)`,
		found["EVENTS"].Damage[0])
	require.Contains(t, found["EVENTS"].Remedy, "copies it again from the journals")
	require.Contains(t, found["quartet-output"].Damage[0], "the checksum of a record is wrong")
	require.Contains(t, found["quartet-output"].Remedy, "cannot be copied again")
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Equal(t, 1, code)
	require.Contains(t, out, "journals: 7, damaged: 0; other streams: 2, damaged: 2")

	d.start()
	require.Eventually(t, func() bool {
		out, code = d.quartet("doctor", "--address", d.srv.GRPC, "--data-dir", d.srv.DataDir)
		return strings.Contains(out, "the stream EVENTS, which is copied from the journals, is damaged") &&
			strings.Contains(out, "the stream quartet-output, of which there is no other copy, is damaged")
	}, time.Minute, 500*time.Millisecond, out)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "the next start copies it again from the journals")
	require.Contains(t, out, "it cannot be copied again")
	require.Contains(t, out, "behind the journals at most")
	require.Len(t, d.ready(), 2)
	d.item("nothing is refused")
	must.Value(d.tasks.ExecCommand(d.ctx, &taskv1.ExecCommandRequest{AgentId: "keeper", Command: &taskv1.CommandSpec{
		Cmd: "echo more output",
	}, YieldTime: durationpb.New(30 * time.Second)}))(t)
	d.quiet()
	require.NoError(t, d.srv.Interrupt(d.ctx))

	r, code := d.repair("--apply")
	require.Zero(t, code)
	require.DirExists(t, filepath.Join(r.Replaced, "EVENTS"))
	d.start()
	d.quiet()
	require.NoError(t, d.srv.Interrupt(d.ctx))
	damaged, _ = d.streams()
	require.Equal(t, []string{"quartet-output"}, damaged)
	require.GreaterOrEqual(t, d.copied(), copied)
}

// copied returns how many events are in EVENTS.
func (d *damageable) copied() (n int) {
	d.t.Helper()
	files, err := blockfile.Files(blockfile.Messages(filepath.Join(d.srv.DataDir, "nats"), "$G", bus.Stream))
	require.NoError(d.t, err)
	for _, file := range files {
		b := must.Value(os.ReadFile(file.Path))(d.t)
		must.Value(blockfile.Read(bus.Stream, file.Index, b, []string{"quartet."}, func(r blockfile.Record) error {
			if r.Message() && strings.HasPrefix(r.Subject, bus.EventPrefix) {
				n++
			}
			return nil
		}))(d.t)
	}
	return n
}

// verifiedStream is what quartet verify says of a stream that is not a journal.
type verifiedStream struct {
	Name, Remedy string
	Messages     uint64
	Damage       []string
	code         int
}

// streams runs quartet verify while no server runs, and returns which streams are damaged, and all.
func (d *damageable) streams() (damaged []string, all map[string]verifiedStream) {
	d.t.Helper()
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir, "-o", "json")
	var found struct{ Streams []verifiedStream }
	require.NoError(d.t, json.Unmarshal([]byte(out), &found), out)
	all = map[string]verifiedStream{}
	for _, s := range found.Streams {
		s.code = code
		all[s.Name] = s
		if len(s.Damage) > 0 {
			damaged = append(damaged, s.Name)
		}
	}
	require.Len(d.t, all, 2)
	return damaged, all
}
