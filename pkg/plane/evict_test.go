package plane_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// house is a plane named test whose owners can leave memory.
type house struct {
	*plane.Engine[*journaltest.Guests]
	now     *clock.Fake
	pressed atomic.Bool
	metrics *prometheus.Registry
}

func openHouse(t *testing.T, policy *snapshot.EvictionPolicy, change ...func(*plane.Deps)) *house {
	t.Helper()
	h := &house{now: clock.NewFake(time.Unix(1_800_000_000, 0)), metrics: prometheus.NewRegistry()}
	deps := over(planetest.NewJournals())
	deps.WaitClock, deps.Metrics, deps.Pressed, deps.Eviction, deps.EvictEvery = h.now, h.metrics, h.pressed.Load,
		policy, time.Minute
	for _, c := range change {
		c(&deps)
	}
	var err error
	h.Engine, err = plane.Open(t.Context(), plane.Config[*journaltest.Guests]{
		Plane: "test", New: journaltest.NewGuests, Events: errdetails.File_google_rpc_error_details_proto,
	}, deps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	require.NoError(t, h.Follow(t.Context()))
	h.now.AwaitTimers(1)
	return h
}

// come lets some agents come.
func (h *house) come(t *testing.T, agents ...string) {
	t.Helper()
	for _, agent := range agents {
		_, err := plane.Do(as(rpc.RoleOperator), h.Engine, plane.Command[*journaltest.Guests, struct{}]{
			Method: "Come", AgentID: agent, Decide: func(*journaltest.Guests, journal.Env) (journal.Decision[struct{}],
				error,
			) {
				return journal.Decision[struct{}]{
					Events: []*journal.Event{{Payload: &errdetails.ErrorInfo{Reason: "came"}}},
				}, nil
			},
		})
		require.NoError(t, err)
	}
}

// use reads some agents.
func (h *house) use(t *testing.T, agents ...string) {
	t.Helper()
	for _, agent := range agents {
		n, _, err := plane.View(as(rpc.RoleOperator), h.Engine, agent, func(s *journaltest.Guests) (int, error) {
			return s.Of(snapshot.Owner{Namespace: "acme", ID: agent}), nil
		})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
}

// pass lets time pass, one second after the other.
func (h *house) pass(d time.Duration) {
	for range d / time.Second {
		h.now.Advance(time.Second)
		h.now.AwaitTimers(1) // what was due is done
	}
}

// counts returns how many owners are in memory and in the file.
func (h *house) counts() [2]int {
	c := h.All()[0].Resident()
	return [2]int{c.Resident, c.Evicted}
}

// gauges returns the metrics of owners by name; nil if there are none.
func (h *house) gauges(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := h.metrics.Gather()
	require.NoError(t, err)
	var found map[string]float64
	for _, f := range families {
		switch f.GetName() {
		case "quartet_owners_resident", "quartet_owners_evicted", "quartet_owners_file_bytes",
			"quartet_eviction_failed":
			require.Len(t, f.GetMetric(), 1)
			if found == nil {
				found = map[string]float64{}
			}
			found[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		case "quartet_owners_evicted_reads_total":
			require.Len(t, f.GetMetric(), 1)
			if found != nil {
				found[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
			}
		}
	}
	return found
}

// Owners that were not used for a minute leave memory, and not before.
func TestOwnersThatAreNotUsedLeaveMemory(t *testing.T) {
	h := openHouse(t, &snapshot.EvictionPolicy{Dir: t.TempDir(), Keep: 2})
	h.come(t, "a", "b", "c", "d", "e")
	h.pass(60 * time.Second)
	require.Equal(t, [2]int{5, 0}, h.counts(), "they were used in this minute")
	h.use(t, "a", "b")
	h.pass(59 * time.Second)
	require.Equal(t, [2]int{5, 0}, h.counts(), "it is not over")
	h.pass(time.Second)
	require.Equal(t, [2]int{2, 3}, h.counts())
	h.use(t, "c")
	require.Equal(t, [2]int{2, 3}, h.counts())
	h.pass(5 * time.Minute)
	require.Equal(t, [2]int{2, 3}, h.counts(), "few enough are left")
}

// If memory is short, they leave it at the next second, and if it is still short then, all do.
func TestOwnersLeaveMemorySoonerIfItIsShort(t *testing.T) {
	h := openHouse(t, &snapshot.EvictionPolicy{Dir: t.TempDir(), Keep: 1})
	h.come(t, "a", "b", "c", "d", "e")
	h.pass(60 * time.Second)
	h.use(t, "a", "b")
	h.pressed.Store(true)
	require.Equal(t, [2]int{5, 0}, h.counts())
	h.pass(time.Second)
	require.Equal(t, [2]int{2, 3}, h.counts(), "two were used")
	h.use(t, "a", "b")
	h.pass(time.Second)
	require.Equal(t, [2]int{0, 5}, h.counts())

	h.pressed.Store(false)
	h.come(t, "f", "g")
	h.pass(time.Second)
	h.pressed.Store(true)
	h.pass(time.Second)
	require.Equal(t, [2]int{2, 5}, h.counts(), "it was not short in between")
	h.pass(time.Second)
	require.Equal(t, [2]int{0, 7}, h.counts())
}

// The metrics say where the owners are, at most ten seconds late, until the partition is not held any more.
func TestMetricsOfOwners(t *testing.T) {
	h := openHouse(t, &snapshot.EvictionPolicy{Dir: t.TempDir(), Keep: 1})
	gauges := func(resident, evicted, bytes, failed, reads float64) map[string]float64 {
		return map[string]float64{
			"quartet_owners_resident": resident, "quartet_owners_evicted": evicted, "quartet_owners_file_bytes": bytes,
			"quartet_eviction_failed":            failed,
			"quartet_owners_evicted_reads_total": reads,
		}
	}
	require.Equal(t, gauges(0, 0, 0, 0, 0), h.gauges(t), "they are there from the start")
	h.come(t, "a", "b", "c")
	h.pass(9 * time.Second)
	require.Equal(t, gauges(0, 0, 0, 0, 0), h.gauges(t))
	h.pass(time.Second)
	require.Equal(t, gauges(3, 0, 0, 0, 0), h.gauges(t))
	h.pressed.Store(true)
	h.pass(2 * time.Second)
	h.pressed.Store(false)
	require.Equal(t, gauges(0, 3, 3*64, 0, 0), h.gauges(t), "what a pass did is to be seen at once")
	h.use(t, "a", "b", "b")
	h.pass(10 * time.Second)
	require.Equal(t, gauges(0, 3, 3*64, 0, 2), h.gauges(t), "the second reader of b found it in memory")

	h.come(t, "d", "e")
	_, _, err := plane.View(as(rpc.RoleOperator), h.Engine, "a", func(s *journaltest.Guests) (struct{}, error) {
		return struct{}{}, s.File.Close()
	})
	require.NoError(t, err)
	h.pressed.Store(true)
	h.pass(2 * time.Second)
	require.InDelta(t, 1, h.gauges(t)["quartet_eviction_failed"], 0, "the file cannot be written")
	h.use(t, "c")
	h.pass(time.Second)
	require.Equal(t, gauges(5, 0, 0, 1, 2), h.gauges(t), "nor read: the partition was loaded again, with all in memory")

	require.NoError(t, h.Close(t.Context()))
	require.Nil(t, h.gauges(t))
}

// A process without a file for them says so for each partition that it holds, once.
func TestOwnersWithoutAFile(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	taken := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.WriteFile(taken, nil, 0o600))
	h := openHouse(t, &snapshot.EvictionPolicy{Dir: taken}, func(d *plane.Deps) { d.Logger = zap.New(core) })
	h.come(t, "a")
	h.pass(10 * time.Second)
	require.InDelta(t, 1, h.gauges(t)["quartet_owners_resident"], 0)
	require.InDelta(t, 1, h.gauges(t)["quartet_eviction_failed"], 0)
	require.Equal(t, 1, logs.FilterMessageSnippet("no file for owners").Len(),
		"the partition that stands for those of others needs none")
}

// A plane whose owners cannot leave memory has no such metrics.
func TestAPlaneWhoseOwnersStay(t *testing.T) {
	reg := prometheus.NewRegistry()
	deps := over(planetest.NewJournals())
	deps.Metrics, deps.Eviction, deps.EvictEvery = reg, &snapshot.EvictionPolicy{Dir: t.TempDir()}, time.Minute
	e := open(t, deps)
	require.NoError(t, e.Close(t.Context()))
	families, err := reg.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	for _, f := range families {
		require.NotContains(t, f.GetName(), "quartet_owners")
	}
}
