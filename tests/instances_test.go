package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/tests/load"
	"quartet/tests/proc"
)

// partitionLease is short here, so that what takes a lease takes little time.
const partitionLease = 2 * time.Second

// instances are processes that serve everything beside each other.
type instances struct {
	nats *proc.Process
	all  []*proc.Quartet
}

func startInstances(t *testing.T, ctx context.Context, n int) *instances {
	dir := t.TempDir()
	bin := binary(t)
	natsBin, err := proc.Build(dir, "github.com/nats-io/nats-server/v2", "nats-server")
	require.NoError(t, err)
	in := &instances{}
	var url string
	in.nats, url, err = proc.NewNATS(natsBin, filepath.Join(dir, "nats"))
	require.NoError(t, err)
	require.NoError(t, in.nats.Start(ctx))
	t.Cleanup(func() { _ = in.nats.Thaw(); _ = in.nats.Kill() })
	for i := range n {
		q, err := proc.NewQuartet(bin, filepath.Join(dir, fmt.Sprint(i)), url, "--key-file", filepath.Join(dir, "key"),
			"--home-dir", filepath.Join(dir, "home"),
			"--worker-id", fmt.Sprint("w", i), "--partition-lease", partitionLease.String(), "--log-level", "info")
		require.NoError(t, err)
		require.NoError(t, q.Start(ctx))
		t.Cleanup(func() { _ = q.Thaw(); _ = q.Kill() })
		in.all = append(in.all, q)
	}
	return in
}

// TestR6_InstancesComeAndGo: three instances of every service, under load at the
// first one. Others are killed, frozen for longer than their lease, and stopped
// in order; the first one too, and the broker is frozen as long. Nothing that was answered is missing, nothing
// happens twice, and who was frozen answers nothing old (ARCHITECTURE R5, R6,
// section 7).
func TestR6_InstancesComeAndGo(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	in := startInstances(t, ctx, 3)
	rng := random(t)
	w := newWorkload(t, ctx, in.all[0].GRPC, rng, func(i int) bool { return i%2 == 0 })
	rounds := proc.Scale(2, 4) // the load comes in at a killed instance in every second one
	for round := range rounds {
		one, other := in.all[1+round%2], in.all[2-round%2]

		stop := w.start()
		<-time.After(300 * time.Millisecond)
		require.NoError(t, one.Kill())
		<-time.After(300 * time.Millisecond)
		require.NoError(t, one.Start(ctx), "round %d", round)
		// In order: the calls under way are finished, the others go elsewhere.
		require.NoError(t, other.Interrupt(ctx))
		<-time.After(200 * time.Millisecond)
		require.NoError(t, other.Start(ctx))
		<-time.After(200 * time.Millisecond)
		if round%2 == 1 {
			require.NoError(t, in.all[0].Kill()) // where the load comes in
			require.NoError(t, in.all[0].Start(ctx))
		}
		// Nobody can renew for longer than a lease, and writes are in doubt.
		require.NoError(t, in.nats.Freeze())
		<-time.After(partitionLease + partitionLease/2)
		require.NoError(t, in.nats.Thaw())
		<-time.After(200 * time.Millisecond)
		stop()
		in.sleeper(t, ctx, w, other)
		for _, d := range w.drivers {
			require.NoError(t, d.Check(ctx, 40), "round %d", round)
		}
	}
	w.finish()
	unknown := 0
	for _, d := range w.drivers {
		require.NoError(t, d.Check(ctx, 1<<30))
		unknown += d.Unknown
	}
	require.NoError(t, load.Audit(ctx, w.conn, w.watcher, w.drivers))
	t.Logf("%d mutations answered, %d of unknown outcome, %d events: none lost, none twice", w.answered(), unknown,
		len(w.watcher.Seen))
}

// sleeper freezes an instance for longer than its lease, under load, and asks it
// the moment that it wakes up: whatever it remembers is old by then.
func (in *instances) sleeper(t *testing.T, ctx context.Context, w *workload, q *proc.Quartet) {
	conn, err := load.Dial(q.GRPC)
	require.NoError(t, err)
	defer conn.Close()
	for _, d := range w.drivers {
		require.NoError(t, d.CheckAt(ctx, conn, 3)) // it is connected
	}
	stop := w.start()
	require.NoError(t, q.Freeze())
	<-time.After(partitionLease + partitionLease/2)
	stop()
	var asking sync.WaitGroup
	errs := make([]error, len(w.drivers))
	for i, d := range w.drivers {
		asking.Go(func() { errs[i] = d.CheckAt(ctx, conn, 10) })
	}
	<-time.After(100 * time.Millisecond) // what they ask waits in its sockets
	require.NoError(t, q.Thaw())
	asking.Wait()
	for _, err := range errs {
		require.NoError(t, err, "it answered with what was true before it was frozen")
	}
}

// TestR6_AKilledInstanceCostsItsOwnOnly: while an instance's partitions wait for
// its lease to end, whatever the others hold is answered as ever.
func TestR6_AKilledInstanceCostsItsOwnOnly(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	in := startInstances(t, ctx, 3)
	conn, err := load.Dial(in.all[0].GRPC)
	require.NoError(t, err)
	defer conn.Close()
	const agents = 24
	var all []*load.Driver
	for i := range agents {
		d := load.NewDriver(conn, fmt.Sprint("agent-", i), true, uint64(i))
		require.NoError(t, d.Spawn(ctx))
		require.NoError(t, d.Create(ctx))
		all = append(all, d)
	}
	// Frozen, since on one machine a process that is gone is noticed at once.
	require.NoError(t, in.all[2].Freeze())
	began := time.Now()
	var waits sync.Mutex
	var longest time.Duration
	late := 0
	var asking sync.WaitGroup
	for _, d := range all {
		asking.Go(func() {
			err := d.Create(ctx)
			took := time.Since(began)
			waits.Lock()
			defer waits.Unlock()
			if err != nil {
				t.Error(err)
			}
			longest = max(longest, took)
			if took > partitionLease/4 {
				late++
			}
		})
	}
	asking.Wait()
	t.Logf("of %d agents, %d waited for the frozen instance's partitions, the longest %s with a lease of %s", agents,
		late, longest.Round(time.Millisecond), partitionLease)
	require.Less(t, late, agents, "everybody waited")
	for _, d := range all {
		require.NoError(t, d.Check(ctx, 10))
	}
	require.NoError(t, in.all[2].Thaw())
	for _, d := range all {
		require.NoError(t, d.Check(ctx, 10))
	}
}

// TestR6_PartitionsThatDoNotFit: how many there are is settled with the first
// start, and what cannot be is refused with what can.
func TestR6_PartitionsThatDoNotFit(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	in := startInstances(t, ctx, 1)
	url := in.all[0].Args[3]
	for _, c := range []struct{ set, says string }{
		{"work=6", ""},
		{"work=7", "has 6 partitions, not 7"},
		{"task=2", "cannot be split"},
		{"work=0", "1 to 64"},
		{"work=65", "1 to 64"},
		{"work=x", "1 to 64"},
		{"home=2", "no plane"},
	} {
		dir := t.TempDir()
		q, err := proc.NewQuartet(binary(t), dir, url, "--key-file", in.all[0].Args[len(in.all[0].Args)-9],
			"--partitions", c.set)
		require.NoError(t, err)
		err = q.Start(ctx)
		if c.says == "" {
			require.NoError(t, err)
			require.NoError(t, q.Interrupt(ctx))
			continue
		}
		require.Error(t, err, c.set)
		require.Contains(t, err.Error(), c.says, c.set)
	}
}
