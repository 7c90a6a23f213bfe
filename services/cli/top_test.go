package cli_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
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

// `quartet top` in a real terminal: it shows agents as they come, one in detail, and gives the terminal back.
func TestTop(t *testing.T) {
	s := dev.Start(t)
	for _, name := range []string{"keeper", "kestrel"} {
		code, _, errs := quartet(t, s, "agent", "spawn", name)
		require.Zero(t, code, errs)
	}
	code, out, errs := quartet(t, s, "top")
	require.Zero(t, code, errs)
	require.Contains(t, out, "2 agents")
	require.NotContains(t, out, "\x1b", "without a terminal it is a list")

	master, tty, screen, closed := terminal(t)
	require.NoError(t, pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 120}))
	before, err := term.GetState(int(tty.Fd()))
	require.NoError(t, err)
	ended := make(chan int, 1)
	ctx := dev.Within(t)
	go func() {
		ended <- cli.Run(ctx, cli.Servers{}, []string{"top", "--address", s.Cfg.GRPCAddr}, tty, tty, os.Stderr)
	}()
	press := func(keys string) {
		_, err := io.WriteString(master, keys)
		require.NoError(t, err)
	}
	screen.wait(t, "\x1b[?1049h")
	screen.wait(t, "kestrel")
	_, err = s.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "later", RequestId: "r",
		Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	})
	require.NoError(t, err)
	screen.wait(t, "later")
	press("/later\r")
	screen.wait(t, "filter: later")
	press("\r")
	screen.wait(t, "decision:")
	_, err = s.Agents.PauseAgent(ctx, &agentv1.PauseAgentRequest{
		AgentId: "later", RequestId: "p",
		Reason: "for a moment",
	})
	require.NoError(t, err)
	screen.wait(t, "for a moment")
	press("\x1b")
	screen.wait(t, "paused")
	press("q")
	select {
	case code := <-ended:
		require.Zero(t, code)
	case <-ctx.Done():
		require.FailNow(t, "it did not end")
	}
	screen.wait(t, "\x1b[?1049l")
	after, err := term.GetState(int(tty.Fd()))
	require.NoError(t, err)
	require.Equal(t, before, after)
	press("\n") // the blocked read of keys ends with the next one
	closed()
}

// Of more agents than are shown, all are counted, and those that do something are shown first.
func TestTopOfManyAgents(t *testing.T) {
	s := dev.Start(t)
	ctx := dev.Within(t)
	var g errgroup.Group
	g.SetLimit(64)
	const many = 2050
	for i := range many {
		g.Go(func() error {
			_, err := s.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
				AgentId:   fmt.Sprintf("agent-%04d", i),
				RequestId: fmt.Sprint("r", i), Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
			})
			return err
		})
	}
	require.NoError(t, g.Wait())
	var out string
	shows := func(text string) { // what is counted follows what is written
		t.Helper()
		require.Eventually(t, func() bool {
			var code int
			var errs string
			code, out, errs = quartet(t, s, "top")
			require.Zero(t, code, errs)
			return strings.Contains(out, text)
		}, time.Minute, 100*time.Millisecond, text)
	}
	shows("2000 of 2050 agents  2050 idle")
	require.NotContains(t, out, "agent-2049")
	code, _, errs := quartet(t, s, "agent", "pause", "agent-2049")
	require.Zero(t, code, errs)
	shows("2049 idle")
	require.Contains(t, out, "2000 of 2050 agents  1 paused  2049 idle")
	_, list, found := strings.Cut(out, "AGENT")
	require.True(t, found)
	require.Contains(t, strings.Split(list, "\n")[1], "agent-2049", "what needs a look comes first")
	require.NotContains(t, list, "agent-1999", "2000 in all")
	require.Contains(t, list, "agent-1998")
	code, out, errs = quartet(t, s, "top", "-o", "json")
	require.Zero(t, code, errs)
	require.Contains(t, out, "agent-1999", "programs get the agents in order of id")
	require.NotContains(t, out, "agent-2049")
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
