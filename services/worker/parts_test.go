package worker

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
)

func TestConfigIsChecked(t *testing.T) {
	dial := func() (grpc.ClientConnInterface, error) { return nil, nil }
	for says, cfg := range map[string]Config{
		"worker id": {Roots: []string{"/"}, Dial: dial},
		"W!":        {ID: "W!", Roots: []string{"/"}, Dial: dial},
		"Roots":     {ID: "w", Dial: dial},
		"Dial":      {ID: "w", Roots: []string{"/"}},
	} {
		must.Fail(New(cfg))(t, says)
	}
	w := must.Value(New(Config{ID: "w", Roots: []string{"/no/such/root"}, Dial: dial}))(t)
	require.NoError(t, w.Stop(t.Context()), "stopping what never started")
	require.ErrorContains(t, w.Start(t.Context()), "/no/such/root")
	require.ErrorContains(t, w.Ready(), "not connected")
}

// A command dies with the thread that forked it, so that must not be one of
// those that come and go: it outlives whoever asked.
func TestSpawnerOutlivesGoroutines(t *testing.T) {
	s := must.Value(proctree.Open(t.Context(), proctree.Config{Owner: "w@" + t.TempDir(), Boot: "1"}))(t)
	defer func() { require.NoError(t, s.Close(context.Background())) }()
	started := make(chan *process)
	go func() {
		runtime.LockOSThread() // this thread ends with the goroutine
		p, err := (&Worker{host: s}).start(nil, &taskv1.CommandSpec{Cmd: "trap 'exit 7' TERM; echo up; while :; do " +
			"sleep 0.01; done"}, "/", nil)
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	p := <-started
	require.NotNil(t, p)
	for range 100 { // threads end
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(done)
		}()
		<-done
	}
	up := make([]byte, 2)
	must.Value(p.outputs[0].file.Read(up))(t)
	p.signal(unix.SIGTERM)
	p.awaitExit()
	p.signal(unix.SIGKILL)
	require.Equal(t, 7, p.reap().ExitStatus(), "it lived until it was told to end")
}

func TestOneProcessIsAWorker(t *testing.T) {
	cfg := Config{
		ID: "w", Roots: []string{t.TempDir()}, StateDir: filepath.Join(t.TempDir(), "made"),
		Dial: func() (grpc.ClientConnInterface, error) { return nil, context.DeadlineExceeded },
	}
	first := must.Value(New(cfg))(t)
	second := must.Value(New(cfg))(t)
	require.NoError(t, first.Start(t.Context()))
	require.ErrorContains(t, second.Start(t.Context()), "another process runs worker w")
	require.NoError(t, second.Stop(t.Context()))
	require.NoError(t, first.Stop(t.Context()))
	require.NoError(t, first.Stop(t.Context()))
	third := must.Value(New(cfg))(t)
	require.NoError(t, third.Start(t.Context()), "the lock went with its holder")
	require.NoError(t, third.Stop(t.Context()))
}

// A pipe in the place of a file of git keeps nobody waiting.
func TestT9_APipeIsNotRead(t *testing.T) {
	root := t.TempDir()
	pipe := filepath.Join(root, "locked")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, ".git"), []byte("gitdir: "+root+"\n"), 0o600))
	_, err := isInterrupted(&taskv1.Worktree{Path: root})
	require.ErrorContains(t, err, pipe)
	require.NoError(t, os.Remove(pipe))
	require.NoError(t, os.WriteFile(pipe, []byte("initializing\n"), 0o600))
	interrupted, err := isInterrupted(&taskv1.Worktree{Path: root})
	require.NoError(t, err)
	require.True(t, interrupted)
}
