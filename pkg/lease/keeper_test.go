package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/lease"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	term  = 500 * time.Millisecond
	parts = 6
)

// house is instances on one broker, and who answers for what.
type house struct {
	t      *testing.T
	server *natsd.Server
	began  time.Time

	mu    sync.Mutex
	open  map[int]map[string]*lease.Lease // by partition and instance
	twice []string
	ever  map[int]bool    // partitions that were held once
	fail  map[string]bool // instances that cannot open anything
	over  map[int]bool    // partitions that gave themselves up
	stuck map[int]bool    // partitions that cannot be opened before the attempt is given up
	slept atomic.Int64    // for how long the machine was suspended, which the clocks of Go do not show
}

type instance struct {
	name   string
	nc     *nats.Conn
	keeper *lease.Keeper
	group  *lease.Group
}

func newHouse(t *testing.T) *house {
	server := must.Value(natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: natsd.InProcess}))(t)
	t.Cleanup(server.Stop)
	h := &house{
		t: t, server: server, began: time.Now(), open: map[int]map[string]*lease.Lease{}, ever: map[int]bool{},
		fail: map[string]bool{}, over: map[int]bool{}, stuck: map[int]bool{},
	}
	for n := range parts {
		h.open[n] = map[string]*lease.Lease{}
	}
	return h
}

// note is called whenever an instance opens: at most one of all may be believed.
func (h *house) valid(n int) (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, l := range h.open[n] {
		if l.Valid() {
			names = append(names, name)
		}
	}
	if len(names) > 1 {
		h.twice = append(h.twice, fmt.Sprint(n, names))
	}
	return names
}

func (h *house) join(name string) *instance {
	h.t.Helper()
	nc := must.Value(h.server.Connect(name))(h.t)
	h.t.Cleanup(nc.Close)
	i := &instance{name: name, nc: nc}
	i.keeper = lease.NewKeeper(lease.Config{
		Conn: nc, ID: name, Term: term, Peer: lease.Peer{Addr: name + ":1"},
		Elapsed: func() time.Duration {
			return time.Since(h.began) + time.Duration(h.slept.Load())
		},
	})
	i.group = i.keeper.Group("work", parts, lease.Hooks{
		Unused: func(_ context.Context, n int) (bool, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return !h.ever[n], nil
		},
		Take: func(ctx context.Context, n int, l *lease.Lease) error {
			h.mu.Lock()
			stuck := h.stuck[n]
			h.mu.Unlock()
			if stuck {
				<-ctx.Done()
				return ctx.Err()
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.fail[name] {
				return errors.New("the disk is full")
			}
			h.open[n][name], h.ever[n], h.over[n] = l, true, false
			return nil
		},
		Drop: func(n int) {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.open[n], name)
		},
		Over: func(n int) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.over[n]
		},
	})
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	require.NoError(h.t, i.keeper.Start(ctx))
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = i.keeper.Stop(ctx)
	})
	return i
}

// spread waits until exactly these instances hold everything, evenly.
func (h *house) spread(names ...string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		count := map[string]int{}
		for n := range parts {
			v := h.valid(n)
			if len(v) != 1 {
				return false
			}
			count[v[0]]++
		}
		for _, name := range names {
			if count[name] < parts/len(names) {
				return false
			}
		}
		return len(count) == len(names)
	}, time.Minute, 5*time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(h.t, h.twice, "two answered for one partition")
}

func TestR6_PartitionsAreSpreadAndHandedOver(t *testing.T) {
	h := newHouse(t)
	a := h.join("a")
	h.spread("a")
	require.Eventually(t, func() bool { return a.keeper.Ready() == nil }, time.Minute, time.Millisecond)
	b, c := h.join("b"), h.join("c")
	h.spread("a", "b", "c")

	// Everybody knows where everything is.
	for n := range parts {
		owner := h.valid(n)[0]
		for _, i := range []*instance{a, b, c} {
			require.Eventually(t, func() bool {
				w, _ := i.group.Where(n)
				return w.Here && i.name == owner || !w.Here && w.Peer.Addr == owner+":1"
			}, time.Minute, time.Millisecond)
		}
	}

	// Who leaves gives back, and nobody waits for its term to end.
	began := time.Now()
	require.NoError(t, a.keeper.Stop(t.Context()))
	h.spread("b", "c")
	t.Log("handed over in", time.Since(began))
	require.NoError(t, b.keeper.Stop(t.Context()))
	h.spread("c")
}

func TestR6_ASilentInstanceLosesItsPartitions(t *testing.T) {
	h := newHouse(t)
	a, b := h.join("a"), h.join("b")
	h.spread("a", "b")
	h.mu.Lock()
	var lost []*lease.Lease
	for n := range parts {
		if l := h.open[n]["a"]; l != nil {
			lost = append(lost, l)
		}
	}
	h.mu.Unlock()
	require.NotEmpty(t, lost)

	a.nc.Close() // as if it were killed: it renews nothing and gives nothing back
	require.Eventually(t, func() bool {
		n := 0
		for i := range parts {
			if w, _ := b.group.Where(i); w.Here {
				n++
				require.NotContains(t, h.valid(i), "a")
			}
		}
		return n == parts
	}, time.Minute, time.Millisecond)
	for _, l := range lost {
		require.False(t, l.Valid(), "it was taken while its holder could still answer")
	}
	require.Error(t, a.keeper.Ready())
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(t, h.twice)
}

func TestR6_WhatCannotBeOpenedIsGivenBack(t *testing.T) {
	h := newHouse(t)
	h.fail["a"] = true
	a := h.join("a")
	require.Never(t, func() bool { return a.keeper.Ready() == nil }, term, 20*time.Millisecond)
	h.mu.Lock()
	h.fail["a"] = false
	h.mu.Unlock()
	h.spread("a")
	require.Eventually(t, func() bool { return a.keeper.Ready() == nil }, time.Minute, 5*time.Millisecond)
}

// A partition that gave itself up is opened anew.
func TestR6_WhatGaveItselfUpIsTakenAgain(t *testing.T) {
	h := newHouse(t)
	h.join("a")
	h.spread("a")
	h.mu.Lock()
	old := h.open[2]["a"]
	h.over[2] = true
	h.mu.Unlock()
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !h.over[2] && h.open[2]["a"] != nil && h.open[2]["a"] != old
	}, time.Minute, 5*time.Millisecond)
	h.spread("a")
}

// TestR6_TheBucketIsLost: leases are in memory. What was written is in the
// journals; who holds what is found out anew, and nobody answers beside another.
func TestR6_TheBucketIsLost(t *testing.T) {
	h := newHouse(t)
	h.join("a")
	h.join("b")
	h.spread("a", "b")
	require.NoError(t, h.server.Restart())
	// Whoever held something has lost it by the end of that, or found it again.
	require.Never(t, func() bool {
		for n := range parts {
			h.valid(n)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.twice) > 0
	}, 2*term, time.Millisecond)
	h.spread("a", "b")
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(t, h.twice)
}

// TestR6_ASuspendedMachine: Go's monotonic clock stands still while a machine is suspended, and others may have taken
// the partitions meanwhile. Whoever wakes shows nothing before it has heard that its session still exists.
func TestR6_ASuspendedMachine(t *testing.T) {
	h := newHouse(t)
	a := h.join("a")
	h.spread("a")
	h.mu.Lock()
	held := h.open[0]["a"]
	h.mu.Unlock()
	require.True(t, held.Valid())
	a.nc.Close() // it cannot ask
	h.slept.Add(int64(term))
	require.False(t, held.Valid())
	require.Error(t, a.keeper.Ready())
}

// TestR6_AWokenMachineGoesOn: the session was not ended by others, so the next renewal makes it valid again.
func TestR6_AWokenMachineGoesOn(t *testing.T) {
	h := newHouse(t)
	h.join("a")
	h.spread("a")
	h.mu.Lock()
	held := h.open[0]["a"]
	h.mu.Unlock()
	h.slept.Add(int64(time.Hour))
	require.Eventually(t, held.Valid, time.Minute, time.Millisecond)
	h.spread("a")
}

// TestR6_AStopWaitsForNoOpening: a partition that is being opened, as long as the broker does not answer, is given up.
func TestR6_AStopWaitsForNoOpening(t *testing.T) {
	h := newHouse(t)
	h.stuck[3] = true
	a := h.join("a")
	require.Eventually(t, func() bool {
		open := 0
		for n := range parts {
			if len(h.valid(n)) == 1 {
				open++
			}
		}
		return open == parts-1
	}, time.Minute, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, a.keeper.Stop(ctx))
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range parts {
		require.Empty(t, h.open[n])
	}
}

// The services of a process start beside each other, and each declares its group.
func TestGroupsAreDeclaredAtTheSameTime(t *testing.T) {
	h := newHouse(t)
	nc := must.Value(h.server.Connect("one"))(t)
	t.Cleanup(nc.Close)
	keeper := lease.NewKeeper(lease.Config{Conn: nc, ID: "one", Term: term, Peer: lease.Peer{Addr: "one:1"}})
	groups := make([]*lease.Group, 8)
	var declared sync.WaitGroup
	for i := range groups {
		declared.Go(func() {
			groups[i] = keeper.Group(fmt.Sprint("plane", i), 1, lease.Hooks{
				Unused: func(context.Context, int) (bool, error) { return true, nil },
				Take:   func(context.Context, int, *lease.Lease) error { return nil },
				Drop:   func(int) {},
			})
		})
	}
	declared.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, keeper.Start(ctx))
	t.Cleanup(func() { require.NoError(t, keeper.Stop(context.WithoutCancel(t.Context()))) })
	for _, g := range groups {
		require.Eventually(t, func() bool { at, _ := g.Where(0); return at.Here }, time.Minute, 5*time.Millisecond)
	}
}
