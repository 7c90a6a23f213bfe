package tests

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/tests/load"
	"quartet/tests/proc"
)

var (
	kills      = flag.Int("kills", 0, "how often the kill test kills the server; 0: a number for this form of the test")
	brokerTime = flag.Duration("broker-time", 0, "how long the broker test freezes and kills NATS; 0: a time for this "+
		"form of the test")
	seed = flag.Uint64("seed", 0, "of the random moments; 0: a new one each time")
)

const drivers = 8

// TestX1_NothingAnsweredIsLostOverKills kills the real server with SIGKILL at
// random moments under load, with many snapshots. After each restart every book is compared with
// what the server says; at the end every event is (SPEC X1, X2, X10, X14).
func TestX1_NothingAnsweredIsLostOverKills(t *testing.T) {
	t.Parallel() // most of it is waiting
	bin := binary(t)
	srv, err := proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), "", "--snapshot-mib", "1")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })

	rng := random(t)
	w := newWorkload(t, ctx, srv.GRPC, rng, func(int) bool { return true })
	n := cmp.Or(*kills, proc.Scale(10, 50))
	for k := range n {
		stop := w.start()
		<-time.After(time.Duration(20+rng.IntN(400)) * time.Millisecond)
		require.NoError(t, srv.Kill())
		began := time.Now()
		require.NoError(t, srv.Start(ctx), "kill %d", k)
		back := time.Since(began)
		stop()
		for _, d := range w.drivers {
			require.NoError(t, d.Check(ctx, 40), "after kill %d", k)
		}
		if k%10 == 9 {
			t.Logf("%d kills: %d mutations answered, last restart took %s", k+1, w.answered(),
				back.Round(time.Millisecond))
		}
	}
	w.finish()
	for _, d := range w.drivers {
		require.NoError(t, d.Check(ctx, 1<<30))
	}
	require.NoError(t, load.Audit(ctx, w.conn, w.watcher, w.drivers))
	t.Logf("%d kills, %d mutations answered, %d events, %d turns: none lost, none doubled", n, w.answered(),
		len(w.watcher.Seen), w.runner.Turns)
}

func random(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewPCG(s, s))
}

// workload is a load.Workload whose errors fail the test.
type workload struct {
	*load.Workload
	t       *testing.T
	conn    *connection
	drivers []*load.Driver
	watcher *load.Watcher
	runner  *load.Runner
}

func newWorkload(t *testing.T, ctx context.Context, addr string, rng *rand.Rand, ownIDs func(i int) bool,
	opts ...grpc.DialOption,
) *workload {
	conn, err := load.Dial(addr, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	w, err := load.NewWorkload(ctx, conn, rng, drivers, ownIDs)
	require.NoError(t, err)
	t.Cleanup(w.Finish)
	return &workload{Workload: w, t: t, conn: conn, drivers: w.Drivers, watcher: w.Watcher, runner: w.Runner}
}

// start runs the drivers; the returned function stops them and waits until
// each mutation in flight was answered.
func (w *workload) start() (stop func()) {
	running := w.Start()
	return func() {
		running()
		require.NoError(w.t, w.Err())
	}
}

// finish ends the runner and the watcher.
func (w *workload) finish() {
	w.Finish()
	require.NoError(w.t, w.Err())
}

func (w *workload) answered() int { return w.Answered() }
