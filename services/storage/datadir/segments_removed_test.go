package datadir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/blockfile"
)

// TestSegments_RemovedMeanwhile lists segments while a server makes and removes a block.
func TestSegments_RemovedMeanwhile(t *testing.T) {
	store := t.TempDir()
	dir := blockfile.Messages(store, "$G", jetlog.Place{Plane: "work", Segment: 1}.Stream())
	require.NoError(t, os.MkdirAll(dir, 0o700))
	block := filepath.Join(dir, "1.blk")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := os.WriteFile(block, nil, 0o600); err != nil {
				t.Error(err)
			}
			if err := os.Remove(block); err != nil {
				t.Error(err)
			}
		}
	})
	for range 5000 {
		segments, err := Segments(store, "$G", "work")
		require.NoError(t, err)
		require.Len(t, segments, 1)
	}
}
