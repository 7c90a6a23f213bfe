package archives

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
)

// TestDaysOfHistory tests the limits of both settings.
func TestDaysOfHistory(t *testing.T) {
	for days, ok := range map[int]bool{-1: false, 0: true, 1: false, 2: true, 3650: true, 3651: false} {
		h, err := ParseHistory(days, nil, 0)
		single, errOfOne := ParseHistory(0, map[string]string{"acme": strconv.Itoa(days)}, 0)
		if !ok {
			require.EqualError(t, err,
				fmt.Sprintf("history-days is %d; it must be from 2 to 3650, or 0 to keep all events", days))
			require.EqualError(t, errOfOne,
				fmt.Sprintf(
					`namespace-history-days: the value for "acme" is "%d"; it must be a number from 2 to 3650, or 0 to keep all events`, days))
			continue
		}
		require.NoError(t, errors.Join(err, errOfOne))
		require.Equal(t, time.Duration(days)*24*time.Hour, h.Of("acme"))
		require.Equal(t, time.Duration(days)*24*time.Hour, single.Of("acme"))
		require.Zero(t, single.Of("other"))
	}
	h := must.Value(ParseHistory(7, map[string]string{"acme": "0"}, 0))(t)
	require.Zero(t, h.Of("acme"), "everything of this one is kept")
	require.Equal(t, 7*24*time.Hour, h.Of("other"))
	must.Fail(ParseHistory(7, map[string]string{"Acme.mib": "3"}, 0))(t, `"Acme.mib" must be a namespace`)
	must.Fail(ParseHistory(7, map[string]string{"acme": "many"}, 0))(t, `the value for "acme" is "many"`)
}

// holds returns a report of a process that holds a partition which has consumed some of work/0.
func holds(name string, partition int, work ...uint64) *identityv1.Process {
	h := &identityv1.HeldPartition{Plane: name, Partition: int32(partition)}
	for i, walSeq := range work {
		h.Consumed = append(h.Consumed, &identityv1.ConsumedSource{Plane: "work", Partition: int32(i), WalSeq: walSeq})
	}
	return &identityv1.Process{Held: []*identityv1.HeldPartition{h}}
}

func TestReadThrough(t *testing.T) {
	var all []*identityv1.Process
	var failed error
	f := Floor{
		List: func(context.Context) ([]*identityv1.Process, error) { return all, failed },
		Units: func(name string) int {
			if name == "waiting" {
				return 2
			}
			return 1
		},
	}
	through := must.Value(f.ReadThrough(t.Context(), "board", 0))(t)
	require.Equal(t, uint64(math.MaxUint64), through, "no plane follows boards")

	all = []*identityv1.Process{holds("agent", 0, 70), holds("waiting", 0, 50, 9)}
	_, err := f.ReadThrough(t.Context(), "work", 0)
	require.EqualError(t, err, "what plane waiting partition 1 has read is not known: no process reports that it "+
		"holds it")
	all = append(all, holds("waiting", 1))
	_, err = f.ReadThrough(t.Context(), "work", 0)
	require.EqualError(t, err, "what plane waiting partition 1 has read of work partition 0 is not known: the "+
		"process that holds it reports no position")
	all[2] = holds("waiting", 1, 60)
	through = must.Value(f.ReadThrough(t.Context(), "work", 0))(t)
	require.EqualValues(t, 50, through)
	_, err = f.ReadThrough(t.Context(), "work", 1)
	require.ErrorContains(t, err, "what plane agent partition 0 has read of work partition 1 is not known")

	all = append(all, holds("agent", 0, 40))
	through = must.Value(f.ReadThrough(t.Context(), "work", 0))(t)
	require.EqualValues(t, 40, through, "two processes report the partition, which one has taken over")

	copied := uint64(45)
	f.Copied = func(_ context.Context, name string, partition int) (uint64, error) {
		require.Equal(t, "work/0", fmt.Sprintf("%s/%d", name, partition))
		return copied, failed
	}
	through = must.Value(f.ReadThrough(t.Context(), "work", 0))(t)
	require.EqualValues(t, 40, through)
	copied = 30
	through = must.Value(f.ReadThrough(t.Context(), "work", 0))(t)
	require.EqualValues(t, 30, through, "EVENTS is behind")

	failed = errors.New("no leader")
	_, err = f.ReadThrough(t.Context(), "work", 0)
	require.ErrorContains(t, err, "what other planes have read of work partition 0 is not known: no leader")
	f.List = func(context.Context) ([]*identityv1.Process, error) { return all, nil }
	must.Refuse(f.ReadThrough(t.Context(), "work", 0))(t, failed, "what EVENTS has is not known")
}

func TestNothingIsConsumedByPlanesThatDoNotRun(t *testing.T) {
	require.Empty(t, Consumed(&plane.Positions{}, "agent", 0, 2))
}
