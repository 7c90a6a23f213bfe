package tests

import (
	"context"
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/attack"
	"quartet/tests/proc"
)

var hostile = flag.Duration("hostile", 0, "let a hostile tenant attack a server for so long, on a quiet machine, and "+
	"assert the latency of another one; else for seconds")

// limitMiB is the memory of the server that is attacked.
const limitMiB = 2048

// TestG11_AHostileTenant: a tenant with every role but admin does all that costs much, all at once. The server
// stays within its memory, another tenant is refused nothing, and what is stored is bounded.
func TestG11_AHostileTenant(t *testing.T) {
	length := 5 * time.Second
	if *hostile > 0 {
		length = *hostile
	}
	dir := t.TempDir()
	q := must.Value(proc.NewQuartet(binary(t), dir, "", "--auth", "required", "--bootstrap-token", bootstrap,
		"--max-memory-mib", strconv.Itoa(limitMiB), "--quota-mib", "1024", "--embedded-worker", "off"))(t)
	if *hostile > 0 { // the server has one processor and the load the other one, also while the server is quiet
		q.Binary, q.Args = "taskset", append([]string{"-c", "0", q.Binary}, q.Args...)
		require.NoError(t, attack.Pin(t.Context(), os.Getpid(), "1"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, q.Start(ctx))
	t.Cleanup(func() { require.NoError(t, q.Kill()) })

	tenant := must.Value(attack.NewTenant(soon(t), q.GRPC, q.HTTP, bootstrap))(t)
	neighbour := must.Value(attack.NewNeighbour(soon(t), q.GRPC, bootstrap))(t)
	defer neighbour.Close()
	const period = 10 * time.Millisecond
	before, quiet, err := attack.Measure(t.Context(), q.PID(), min(length, 10*time.Second), period, neighbour.Update)
	require.NoError(t, err)

	attacker := must.Value(attack.Begin(t.Context(), attack.Spec{Tenant: tenant}))(t)
	defer func() { _ = attacker.End() }() // reported below, unless the test has failed before
	reached := make(chan bool, 1)
	go func() { // at once: later its first tasks are far down the list
		reached <- tenant.Await(ctx)
	}()
	during, attacked, err := attack.Measure(t.Context(), q.PID(), length, period, neighbour.Update)
	require.NoError(t, err)
	require.True(t, <-reached, "the attack is not what it should be")
	require.NoError(t, attacker.End())
	stored := must.Value(attack.OnDisk(dir))(t)
	t.Logf("memory %d MiB quiet, %d MiB at most attacked, of %d; on disk %d MiB", before.Memory>>20, during.Memory>>20,
		limitMiB, stored>>20)
	t.Logf("updates of another tenant: quiet %s, attacked %s", quiet, attacked)
	t.Logf("processor time of the server during an update: quiet %s, attacked %s", before.Calls, during.Calls)
	require.NoError(t, neighbour.Update(t.Context()))
	require.LessOrEqual(t, during.Memory, limitMiB<<20, "memory")
	// A MiB of the quota is stored once in a journal, with the broker's own data, and once more for EVENTS.
	require.LessOrEqual(t, stored, int64(3*1024<<20), "stored")
	if *hostile > 0 {
		require.LessOrEqual(t, attacked.P99, 3*quiet.P99, "p99")
	}
}
