package jetlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive/archivetest"
	"quartet/pkg/journal/archive/dirstore"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/natsdtest"
)

// TestASegmentIsDroppedWhileItIsRead: a reader to which the server did not send all of a segment yet is told when it is dropped, and a log with
// an archive goes on there.
func TestASegmentIsDroppedWhileItIsRead(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	for name, open := range map[string]bool{"closed": false, "written to at first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := natsdtest.Connect(t)
			_, err := jetlog.Ensure(t.Context(), nc, "test", 1, 1)
			require.NoError(t, err)
			log, err := jetlog.New(nc, "test", 0)
			require.NoError(t, err)
			j := archivetest.NewJournal(log, dirstore.New(t.TempDir(), "test", 0), "test/0")
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
			err = framelog.Follow(ctx, j.Log, "test/0", framelog.End{}, func(at framelog.End, _ framelog.Frame) error {
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
