package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// partitionLease is short here, so that what takes a lease takes little time.
const partitionLease = 2 * time.Second

// comeAndGo kills, freezes for longer than their lease, and stops in order those of three instances of every service at
// which no load comes in; the first one too, and the broker is frozen as long. Who was frozen answers nothing old
// (ARCHITECTURE R5, R6, section 7).
func comeAndGo(h *site, round int) {
	one, other := h.all[1+round%2], h.all[2-round%2]
	h.pause(250, 350)
	require.NoError(h.t, one.Kill())
	h.pause(250, 350)
	require.NoError(h.t, one.Start(h.ctx))
	// In order: the calls under way are finished, the others go elsewhere.
	require.NoError(h.t, other.Interrupt(h.ctx))
	h.pause(150, 250)
	require.NoError(h.t, other.Start(h.ctx))
	h.pause(150, 250)
	if round%2 == 1 {
		h.restart(h.all[0]) // where the load comes in
	}
	// Nobody can renew for longer than a lease, and writes are in doubt.
	h.freeze(h.nats, partitionLease+partitionLease/2)
	h.pause(150, 250)
}

// sleeper freezes an instance for longer than its lease, under load, and asks it
// the moment that it wakes up: whatever it remembers is old by then.
func (h *site) sleeper(round int) {
	q := h.all[2-round%2]
	conn := must.Value(load.Dial(q.GRPC))(h.t)
	defer conn.Close()
	for _, d := range h.Drivers {
		require.NoError(h.t, d.CheckAt(h.ctx, conn, 3)) // it is connected
	}
	stop := h.start()
	require.NoError(h.t, q.Freeze())
	<-time.After(partitionLease + partitionLease/2)
	stop()
	var asking sync.WaitGroup
	errs := make([]error, len(h.Drivers))
	for i, d := range h.Drivers {
		asking.Go(func() { errs[i] = d.CheckAt(h.ctx, conn, 10) })
	}
	<-time.After(100 * time.Millisecond) // what they ask waits in its sockets
	require.NoError(h.t, q.Thaw())
	asking.Wait()
	for _, err := range errs {
		require.NoError(h.t, err, "it answered with what was true before it was frozen")
	}
}

const otherRevision = "0123456789abcdef0123456789abcdef01234567"

// replaceProgram replaces the program of three instances, one after the other, by another build with the same data
// format, as docs/guides/upgrade.md says, and in the next round goes back in the same way. The load enters at the first
// instance, which is replaced too.
func replaceProgram(h *site, round int) {
	binary := h.next
	if round == 0 {
		h.next = h.all[0].Binary
		binary = must.Value(proc.Build(h.t.TempDir(), "quartet/cmd/quartet", "quartet",
			"-ldflags=-w -X quartet/pkg/version.revision="+otherRevision))(h.t)
	}
	h.answered(50)
	for _, q := range h.all {
		require.NoError(h.t, q.Interrupt(h.ctx))
		q.Binary = binary
		require.NoError(h.t, q.Start(h.ctx)) // returns when it is ready
		h.answered(50)
	}
	h.requireRevision(round == 0)
}

// onlyUnavailable requires that callers were refused with nothing else.
func (h *site) onlyUnavailable() {
	for code := range h.seen.by {
		require.Equal(h.t, codes.Unavailable, code, "%v", h.seen.by)
	}
}

// requireRevision waits until the installation lists all instances with the program of the other build, or with the
// first one.
func (h *site) requireRevision(other bool) {
	h.t.Helper()
	conn := must.Value(load.Dial(h.all[0].GRPC))(h.t)
	defer conn.Close()
	versions := map[string]bool{}
	require.Eventually(h.t, func() bool {
		resp, err := identityv1.NewIdentityServiceClient(conn).ListProcesses(h.ctx, &identityv1.ListProcessesRequest{})
		if err != nil {
			return false
		}
		clear(versions)
		for _, p := range resp.GetProcesses() {
			versions[p.GetAddress()] = strings.HasSuffix(p.GetVersion(), "-"+otherRevision[:12])
		}
		for _, q := range h.all {
			if now, listed := versions[q.GRPC]; !listed || now != other {
				return false
			}
		}
		return true
	}, time.Minute, 50*time.Millisecond, "%v", versions)
}

// TestR6_AKilledInstanceCostsItsOwnOnly: while an instance's partitions wait for
// its lease to end, whatever the others hold is answered as ever.
func TestR6_AKilledInstanceCostsItsOwnOnly(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	in := startSite(t, ctx, 3)
	conn := must.Value(load.Dial(in.all[0].GRPC))(t)
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
	key := filepath.Join(t.TempDir(), "key")
	in := startSite(t, ctx, 1, "--key-file", key)
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
		q := must.Value(proc.NewQuartet(binary(t), dir, url, "--key-file", key, "--partitions", c.set))(t)
		err := q.Start(ctx)
		if c.says == "" {
			require.NoError(t, err)
			require.NoError(t, q.Interrupt(ctx))
			continue
		}
		require.Error(t, err, c.set)
		require.Contains(t, err.Error(), c.says, c.set)
	}
}
