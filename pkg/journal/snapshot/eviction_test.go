package snapshot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// failing is a state whose file can be written or not.
type failing struct {
	*journaltest.Guests
	err error
}

func (s *failing) Evict(most int, unused bool) (int, bool, error) {
	if s.err != nil {
		return 0, false, s.err
	}
	return s.Guests.Evict(most, unused)
}

// fill lets some agents come.
func fill(t *testing.T, s snapshot.State, agents ...string) {
	t.Helper()
	for _, agent := range agents {
		require.NoError(t, s.AddPage(snapshot.Owner{Namespace: "acme", ID: agent}, structpb.NewNumberValue(1)))
	}
}

func newLogger() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zap.WarnLevel)
	return zap.New(core), logs
}

// A file that cannot be written is reported once, and once more if it could be written meanwhile.
func TestFileThatCannotBeWritten(t *testing.T) {
	logger, logs := newLogger()
	s := &failing{Guests: journaltest.NewGuests()}
	e := snapshot.NewEvictor(s, &snapshot.EvictionPolicy{Dir: t.TempDir(), Keep: 1}, logger)
	defer e.Close()
	fill(t, s, "a", "b", "c")
	require.Equal(t, snapshot.OwnerCounts{Counts: resident.Counts{Resident: 3}}, e.Counts())

	s.err = errors.New("no space left on device")
	for range 3 {
		require.False(t, e.Evict(false))
		require.True(t, e.Counts().Failed)
	}
	require.Equal(t, 1, logs.Len())
	require.Equal(t, s.err, logs.All()[0].Context[0].Interface)

	s.err = nil
	e.Evict(true)
	require.True(t, e.Counts().Failed, "all were used, so nothing was written")
	e.Evict(false)
	c := e.Counts()
	require.Equal(t, resident.Counts{Evicted: 3}, c.Counts)
	require.False(t, c.Failed)
	require.EqualValues(t, 3*64, c.FileBytes)

	fill(t, s, "d", "e")
	s.err = errors.New("input/output error")
	e.Evict(false)
	require.True(t, e.Counts().Failed)
	require.Equal(t, 2, logs.Len())
}

// Without a file all owners stay in memory, and that is to be seen.
func TestNoFile(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.WriteFile(taken, nil, 0o600))
	for name, test := range map[string]struct {
		policy *snapshot.EvictionPolicy
		logged int
	}{
		"none":       {&snapshot.EvictionPolicy{Dir: taken, Always: true}, 1},
		"unreadable": {snapshot.NoEviction(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			logger, logs := newLogger()
			s := journaltest.NewGuests()
			e := snapshot.NewEvictor(s, test.policy, logger)
			defer e.Close()
			for i := range 2 * snapshot.DefaultKeep {
				fill(t, s, fmt.Sprint(i))
				e.PageAdded()
			}
			e.Applied()
			require.False(t, e.Evict(false))
			require.Equal(t, snapshot.OwnerCounts{
				Counts: resident.Counts{Resident: 2 * snapshot.DefaultKeep}, Failed: true,
			},
				e.Counts())
			require.Equal(t, test.logged, logs.Len())
		})
	}
	require.Nil(t, snapshot.NewEvictor(journaltest.NewGuests(), nil, zap.NewNop()))
	require.Equal(t, snapshot.OwnerCounts{}, (*snapshot.Evictor)(nil).Counts())
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := snapshot.NewEvictionMetrics(reg, "work")
	series := func() map[string]float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		found := map[string]float64{}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				require.Equal(t, "plane", s.GetLabel()[1].GetName())
				name := fmt.Sprint(f.GetName(), " ", s.GetLabel()[1].GetValue(), "/", s.GetLabel()[0].GetValue())
				found[name] = s.GetGauge().GetValue() + s.GetCounter().GetValue()
			}
		}
		return found
	}
	m.Set(1, snapshot.OwnerCounts{Counts: resident.Counts{Resident: 2, Evicted: 3, Reads: 4}, FileBytes: 640})
	other := snapshot.NewEvictionMetrics(reg, "agent")
	other.Set(1, snapshot.OwnerCounts{Counts: resident.Counts{Resident: 1}, Failed: true})
	require.Equal(t, map[string]float64{
		"quartet_owners_resident work/1": 2, "quartet_owners_evicted work/1": 3,
		"quartet_owners_file_bytes work/1": 640, "quartet_eviction_failed work/1": 0,
		"quartet_owners_evicted_reads_total work/1": 4,
		"quartet_owners_resident agent/1":           1, "quartet_owners_evicted agent/1": 0,
		"quartet_owners_file_bytes agent/1": 0, "quartet_eviction_failed agent/1": 1,
		"quartet_owners_evicted_reads_total agent/1": 0,
	}, series())
	other.Remove(1)

	// it was loaded again before the third
	for _, step := range []struct{ reads, total int64 }{{6, 6}, {6, 6}, {1, 7}, {3, 9}} {
		m.Set(1, snapshot.OwnerCounts{Counts: resident.Counts{Reads: step.reads}})
		require.InDelta(t, step.total, series()["quartet_owners_evicted_reads_total work/1"], 0)
	}
	m.Remove(1)
	require.Equal(t, map[string]float64{
		"quartet_owners_evicted_reads_total work/1":  9,
		"quartet_owners_evicted_reads_total agent/1": 0,
	}, series())

	none := snapshot.NewEvictionMetrics(nil, "work")
	none.Set(1, snapshot.OwnerCounts{})
	none.Remove(1)
}
