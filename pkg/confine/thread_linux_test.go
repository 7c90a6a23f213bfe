package confine

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCommandsAreNotStartedByTheMainThread takes so many threads at once that the main thread would be among them.
// By its limits others judge the process: with those of the commands, these could send the helper signals.
func TestCommandsAreNotStartedByTheMainThread(t *testing.T) {
	const threads = 200
	var taken sync.WaitGroup
	taken.Add(threads)
	ids := make(chan int, threads)
	for range threads {
		onThread(func() {
			ids <- unix.Gettid()
			taken.Done()
			taken.Wait() // until every thread is taken
		})
	}
	taken.Wait()
	for range threads {
		require.NotEqual(t, os.Getpid(), <-ids)
	}
}
