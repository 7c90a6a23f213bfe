package jetlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// TestASegmentIsDroppedWhileItIsRead: a reader to which the server did not send all of a segment yet is told when it is
// dropped, and a log with an archive goes on there.
func TestASegmentIsDroppedWhileItIsRead(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	for name, open := range map[string]bool{"closed": false, "written to at first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := natsdtest.Connect(t)
			must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
			log := must.Value(jetlog.New(nc, "test", 0))(t)
			j := journaltest.NewArchivedJournal(log, archive.NewDirectory(t.TempDir(), "test", 0), "test/0")
			j.Write(t, 40, 1<<20)
			drop := func() {
				j.Close(t)
				j.Write(t, 1, 10)
			}
			if !open {
				drop()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			read := 0
			err := framelog.Follow(ctx, j.Log, "test/0", framelog.End{}, func(at framelog.End, _ framelog.Frame) error {
				if read++; read == 1 {
					if open {
						drop()
					}
					j.Archive(t)
				}
				if at == j.End {
					cancel()
				}
				return nil
			})
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 42, read)
		})
	}
}

// Behind a segment that other partitions have frames in, which stays, segments are removed from the first one on too.
func TestLog_DropBehindASharedSegment(t *testing.T) {
	nc := natsdtest.Connect(t)
	js := must.Value(jetstream.New(nc))(t)
	must.Value(js.CreateStream(t.Context(), jetlog.Place{Plane: "test", Shared: true}.Config(1, 1)))(t)
	log := must.Value(jetlog.New(nc, "test", 0))(t)
	last := uint64(0)
	add := func(segment uint64) {
		last = must.Value(log.Append(t.Context(), last, framelog.Frame{
			ID: "f", Generation: 1, Body: []byte("{}\n"), Link: framelog.Link{Segment: segment},
		}))(t)
	}
	add(0)
	for segment := range uint64(3) {
		must.Value(log.Prepare(t.Context(), segment))(t)
		add(segment + 1)
	}
	numbers := func() (all []uint64) {
		segments := must.Value(log.Segments(t.Context()))(t)
		for _, s := range segments {
			all = append(all, s.Number)
		}
		return all
	}
	require.ErrorContains(t, log.Drop(t.Context(), 2), "not the first")
	require.NoError(t, log.Drop(t.Context(), 0), "it stays")
	require.Equal(t, []uint64{0, 1, 2, 3}, numbers())
	require.NoError(t, log.Drop(t.Context(), 1))
	require.NoError(t, log.Drop(t.Context(), 1), "again")
	require.NotContains(t, numbers(), uint64(1))
	require.NoError(t, log.Drop(t.Context(), 2))
	require.ErrorContains(t, log.Drop(t.Context(), 3), "not the first of several")
	require.Contains(t, numbers(), uint64(3))
}
