package cli_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"quartet/services/cli"
	"quartet/tests/dev"
)

// written is what a program has written to a terminal. wait waits for a text in what was written since the last call of
// wait.
type written struct {
	mu   sync.Mutex
	text string
	more chan struct{}
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += string(p)
	close(w.more)
	w.more = make(chan struct{})
	return len(p), nil
}

func (w *written) wait(t *testing.T, want string) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		w.mu.Lock()
		i, more, text := strings.Index(w.text, want), w.more, w.text
		if i >= 0 {
			w.text = w.text[i+len(want):]
		}
		w.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-more:
		case <-limit.C:
			require.FailNow(t, "the terminal never showed "+want, text)
		}
	}
}

// terminal opens a terminal. screen is what is written to it until closed is called.
func terminal(t *testing.T) (master, tty *os.File, screen *written, closed func()) {
	t.Helper()
	master, tty, err := pty.Open()
	require.NoError(t, err)
	screen = &written{more: make(chan struct{})}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(screen, master) // ends with the terminal
	}()
	t.Setenv("TERM", "xterm")
	return master, tty, screen, func() {
		t.Helper()
		require.NoError(t, tty.Close())
		<-copied
		require.NoError(t, master.Close())
	}
}

// A backup says on a terminal how far it is, and nothing in a file.
func TestABackupShowsItsProgress(t *testing.T) {
	s := dev.Start(t)
	file := filepath.Join(t.TempDir(), "all.backup")
	code, _, errs := quartet(t, s, "backup", file)
	require.Zero(t, code, errs)
	require.NotContains(t, errs, "%")

	_, tty, screen, closed := terminal(t)
	require.Zero(t, cli.Run(dev.Within(t), cli.Servers{}, []string{
		"backup", file, "--replace", "--address",
		s.Cfg.GRPCAddr,
	}, os.Stdin, io.Discard, tty))
	screen.wait(t, " %  ")
	screen.wait(t, "\r\x1b[K")
	closed()
}
