package worker

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	stdout = taskv1.OutputStream_OUTPUT_STREAM_STDOUT
	stderr = taskv1.OutputStream_OUTPUT_STREAM_STDERR
)

func TestConfigIsChecked(t *testing.T) {
	dial := func() (grpc.ClientConnInterface, error) { return nil, nil }
	for says, cfg := range map[string]Config{
		"worker id": {Roots: []string{"/"}, Dial: dial},
		"W!":        {ID: "W!", Roots: []string{"/"}, Dial: dial},
		"Roots":     {ID: "w", Dial: dial},
		"Dial":      {ID: "w", Roots: []string{"/"}},
	} {
		_, err := New(cfg)
		require.ErrorContains(t, err, says)
	}
	w, err := New(Config{ID: "w", Roots: []string{"/no/such/root"}, Dial: dial})
	require.NoError(t, err)
	require.NoError(t, w.Stop(t.Context()), "stopping what never started")
	require.ErrorContains(t, w.Start(t.Context()), "/no/such/root")
	require.ErrorContains(t, w.Ready(), "not connected")
}

// Whatever is added, sent, acknowledged, lost and sent again, the other side
// gets every byte at its offset, and characters whole.
func TestT6_BufferLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBuffer()
		var want, got []byte
		acked := int64(0)
		take := func() {
			for _, c := range b.next() {
				require.LessOrEqual(t, len(c.GetData()), chunkSize)
				require.LessOrEqual(t, c.GetOffset(), int64(len(got)), "no gap")
				got = append(got[:c.GetOffset()], c.GetData()...)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				data := []byte(strings.Repeat(rapid.SampledFrom([]string{"a", "é", "中", "😀"}).Draw(t, "text"), rapid.SampledFrom([]int{1, 3, 20_000}).Draw(t, "n")))
				if b.held+len(data) >= window {
					continue // it would wait
				}
				want = append(want, data...)
				b.add(rapid.SampledFrom([]taskv1.OutputStream{stdout, stderr}).Draw(t, "stream"), data)
			case 1:
				take()
			case 2:
				if int64(len(got)) > acked {
					acked = rapid.Int64Range(acked, int64(len(got))).Draw(t, "ack")
					b.acknowledge(acked)
				}
			case 3:
				b.rewind() // a new link: what was not acknowledged may be lost
				got = got[:min(int64(len(got)), b.sent)]
			}
		}
		take()
		require.Equal(t, string(want), string(got))
		require.EqualValues(t, len(want), b.total())
		b.acknowledge(b.total())
		require.Zero(t, b.held)
	})
}

func TestT6_BufferMakesWritersWait(t *testing.T) {
	b := newBuffer()
	b.add(stdout, bytes.Repeat([]byte("x"), window))
	require.True(t, b.full())
	added := make(chan struct{})
	go func() {
		b.add(stdout, []byte("more"))
		close(added)
	}()
	b.next()
	select {
	case <-added:
		require.Fail(t, "there was no room")
	default:
	}
	b.acknowledge(chunkSize)
	<-added
	require.EqualValues(t, window+4, b.total())
	go b.add(stdout, bytes.Repeat([]byte("x"), window))
	b.discard() // lets everybody pass
	b.add(stdout, bytes.Repeat([]byte("x"), 10*window))
	require.LessOrEqual(t, b.held, window+window)
}

func TestT6_SweepEndsOnlyItsOwn(t *testing.T) {
	start := func(env ...string) (*exec.Cmd, chan error) {
		cmd := exec.Command("sleep", "300")
		cmd.Env = env
		require.NoError(t, cmd.Start())
		gone := make(chan error, 1)
		go func() { gone <- cmd.Wait() }()
		return cmd, gone
	}
	id := "sweep@" + t.TempDir()
	task := "tsk_" + id
	_, old := start(envWorker+"="+id, envBoot+"=before")
	mine, mineGone := start(envWorker+"="+id, envBoot+"=now", envTask+"="+task)
	other, otherGone := start(envWorker+"=another", envBoot+"=before")
	t.Cleanup(func() {
		_ = other.Process.Kill()
		<-otherGone
	})
	n, err := sweep(t.Context(), id, "now")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.ErrorContains(t, <-old, "killed")
	require.Empty(t, mineGone)
	n, err = sweepTask(t.Context(), task, "now")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.ErrorContains(t, <-mineGone, "killed", mine)
	require.Empty(t, otherGone)
	n, err = sweep(context.Background(), id, "now")
	require.NoError(t, err)
	require.Zero(t, n)
}

// A command dies with the thread that forked it, so that must not be one of
// those that come and go: it outlives whoever asked.
func TestSpawnerOutlivesGoroutines(t *testing.T) {
	s := newSpawner()
	defer s.close()
	started := make(chan *process)
	go func() {
		runtime.LockOSThread() // this thread ends with the goroutine
		p, err := start(s, &taskv1.CommandSpec{Cmd: "trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done"}, "/", nil)
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
	_, err := p.outputs[0].file.Read(up)
	require.NoError(t, err)
	p.signal(unix.SIGTERM)
	p.awaitExit()
	p.signal(unix.SIGKILL)
	require.Equal(t, 7, p.reap().ExitCode(), "it lived until it was told to end")
}

func TestOneProcessIsAWorker(t *testing.T) {
	cfg := Config{
		ID: "w", Roots: []string{t.TempDir()}, StateDir: filepath.Join(t.TempDir(), "made"),
		Dial: func() (grpc.ClientConnInterface, error) { return nil, context.DeadlineExceeded },
	}
	first, err := New(cfg)
	require.NoError(t, err)
	second, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, first.Start(t.Context()))
	require.ErrorContains(t, second.Start(t.Context()), "another process runs worker w")
	require.NoError(t, second.Stop(t.Context()))
	require.NoError(t, first.Stop(t.Context()))
	require.NoError(t, first.Stop(t.Context()))
	third, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, third.Start(t.Context()), "the lock went with its holder")
	require.NoError(t, third.Stop(t.Context()))
}
