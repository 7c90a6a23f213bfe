//go:build linux

package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/must"
	"quartet/tests/bucket"
	"quartet/tests/load"
	"quartet/tests/proc"
)

var (
	chaos = flag.Duration("chaos", 0, "put faults into a cluster for so long, each service of an instance a process "+
		"of its own; 0: each fault once, with all services of an instance in one process")
	seed  = flag.Uint64("seed", 0, "of what is chosen; 0: a new one each time")
	fault = flag.String("fault", "", "a regular expression that selects faults by name")
)

// binaries are what Enter is told.
const (
	quartetVariable = "QUARTET_TEST_CLUSTER_QUARTET"
	natsVariable    = "QUARTET_TEST_CLUSTER_NATS"
)

// TestMain runs the tests in namespaces of their own, with binaries that were built outside.
func TestMain(m *testing.M) {
	flag.Parse()
	if Inside() || testing.Short() {
		os.Exit(m.Run())
	}
	code, err := enter()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func enter() (int, error) {
	dir, err := os.MkdirTemp("", "quartet-cluster-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var flags []string
	if *chaos > 0 {
		flags = append(flags, "-tags=grpcnotrace,clockstep")
	}
	quartet, err := proc.Build(dir, "quartet/cmd/quartet", "quartet", flags...)
	if err != nil {
		return 1, err
	}
	nats, err := proc.Build(dir, "github.com/nats-io/nats-server/v2", "nats-server")
	if err != nil {
		return 1, err
	}
	if _, err := bucket.Build(); err != nil { // there is no network inside
		return 1, err
	}
	return Enter(quartetVariable+"="+quartet, natsVariable+"="+nats)
}

// lease is short, so that what takes a lease takes little time.
const lease = 3 * time.Second

// TestX1_FaultsOfACluster: whatever happens to one host, network or disk of a cluster, nothing that was answered is
// missing, nothing is there twice, the events have no gap, and callers are answered again.
func TestX1_FaultsOfACluster(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), *chaos+15*time.Minute)
	defer cancel()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	rng := rand.New(rand.NewPCG(s, s))
	c := start(t, ctx, Config{Split: *chaos > 0})
	conn := must.Value(c.Dial(c.Instances...))(t)
	defer func() { _ = conn.Close() }()
	w := must.Value(load.NewWorkload(ctx, conn, rng, 8, func(i int) bool { return i%2 == 0 }))(t)
	if *chaos == 0 {
		w.Pace(20 * time.Millisecond) // so that few processors are not busy with callers alone
	}
	stop := w.Start()
	var each []grpc.ClientConnInterface
	for _, in := range c.Instances {
		one := must.Value(c.Dial(in))(t)
		defer func() { _ = one.Close() }()
		each = append(each, one)
	}
	p := must.Value(StartProbe(ctx, 12, each...))(t)

	one := func(f Fault) {
		before := w.Answered()
		p.Begin()
		end := must.Value(f.Begin(ctx, c, rng))(t, f.Name)
		<-time.After(f.Lasts)
		require.NoError(t, end(ctx), f.Name)
		longest := must.Value(p.Longest(ctx))(t, f.Name)
		require.NoError(t, w.Err(), f.Name)
		t.Logf("%s for %s: the longest time without an answer was %s (bound %s); %d mutations answered", f.Name,
			f.Lasts, longest.Round(10*time.Millisecond), f.Bound, w.Answered()-before)
		require.NoError(t, c.Settled(ctx), f.Name)
	}
	faults := Faults(lease)
	if *chaos > 0 {
		faults = append(faults, Steps()...)
	}
	faults = Selected(faults, *fault)
	require.NotEmpty(t, faults)
	if *chaos > 0 {
		for began := time.Now(); time.Since(began) < *chaos; {
			one(faults[rng.IntN(len(faults))])
			<-time.After(time.Duration(rng.IntN(3000)) * time.Millisecond)
		}
	} else {
		for _, f := range faults {
			one(f)
		}
	}
	updates := must.Value(p.Stop())(t)
	stop()
	require.NoError(t, w.Audit(ctx))
	t.Logf("%d mutations of drivers and %d of probes answered, %d events: none lost, none twice", w.Answered(), updates,
		len(w.Watcher.Seen))
}

// start starts a cluster, which ends with the test.
func start(t *testing.T, ctx context.Context, cfg Config) *Cluster {
	require.NoError(t, proc.DependOnSources()) // its binaries were built by another process
	cfg.Dir, cfg.Quartet, cfg.NATS, cfg.Lease, cfg.StoreBytes = t.TempDir(), os.Getenv(quartetVariable),
		os.Getenv(natsVariable), lease, 768<<20
	c := must.Value(New(ctx, cfg))(t)
	t.Cleanup(func() {
		if t.Failed() {
			keep(t, cfg.Dir)
		}
		require.NoError(t, c.Close(context.WithoutCancel(ctx)))
	})
	return c
}

// keep copies the logs of a failed run to where they are found afterwards.
func keep(t *testing.T, dir string) {
	logs, err := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	more, err2 := filepath.Glob(filepath.Join(dir, "*", "*", "*.log"))
	require.NoError(t, err)
	require.NoError(t, err2)
	to, err := os.MkdirTemp("", "quartet-cluster-logs-") //nolint:usetesting // it stays
	require.NoError(t, err)
	for _, path := range append(logs, more...) {
		name := must.Value(filepath.Rel(dir, path))(t)
		b := must.Value(os.ReadFile(path))(t)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(to, name), b, 0o600))
	}
	t.Log("the logs are in", to)
}
