package framelog

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

const mib = 1 << 20

func measured(used, limit int64) *Room {
	r := &Room{Remedy: "raise max-store-mib"}
	_ = r.Measure(func() (RoomState, error) { return RoomState{Used: used, Limit: limit}, nil })
	return r
}

func TestX16_Levels(t *testing.T) {
	for _, c := range []struct {
		used, limit int64
		want        RoomLevel
	}{
		{50 * mib, 0, RoomUnknown},
		{0, 1000 * mib, RoomEnough},
		{699 * mib, 1000 * mib, RoomEnough},
		{700 * mib, 1000 * mib, RoomNoted},
		{849 * mib, 1000 * mib, RoomNoted},
		{850 * mib, 1000 * mib, RoomHigh},
		{950 * mib, 1000 * mib, RoomHigh},
		{950*mib + 1, 1000 * mib, RoomFull},
		{2000 * mib, 1000 * mib, RoomFull},
	} {
		require.Equal(t, c.want, RoomState{Used: c.used, Limit: c.limit}.Level(), c)
	}
	require.Equal(t, 85, RoomState{Used: 850 * mib, Limit: 1000 * mib}.Percent())
	require.Zero(t, RoomState{Used: 850 * mib}.Percent())
}

func TestX16_TheReserve(t *testing.T) {
	for limit, want := range map[int64]int64{
		0: 0, 8 * mib: mib, 64 * mib: 8 * mib, 160 * mib: 8 * mib,
		1000 * mib: 50 * mib, 1 << 40: 1 << 30,
	} {
		require.Equal(t, want, RoomReserve(limit), limit)
	}
}

func TestX16_WhatMayBeStored(t *testing.T) {
	r := measured(900*mib, 1000*mib)
	require.NoError(t, r.Check(50*mib, false))
	err := r.Check(50*mib+1, false)
	require.ErrorIs(t, err, fault.StorageFull)
	require.ErrorContains(t, err, "900 of 1000 MiB are in use, and 50.0 MiB are kept")
	require.ErrorContains(t, err, "raise max-store-mib")
	require.Equal(t, "none", fault.From(err).Metadata()["outcome"])
	require.NoError(t, r.Check(50*mib+1, true), "what frees something uses the reserve")
	require.ErrorIs(t, r.Check(90*mib, true), fault.StorageFull, "and leaves a quarter of it")

	r.Wrote(50 * mib)
	require.ErrorIs(t, r.Check(1, false), fault.StorageFull, "what was written since the measurement counts")
	require.Equal(t, RoomNoted, measured(700*mib, 1000*mib).Now().Level())

	lost := errors.New("lost")
	require.ErrorIs(t, r.Measure(func() (RoomState, error) { return RoomState{}, lost }), lost)
	require.ErrorIs(t, r.Check(1, false), fault.StorageFull, "a measurement that failed changes nothing")
	require.NoError(t, r.Measure(func() (RoomState, error) {
		r.Wrote(mib)
		return RoomState{Used: 100 * mib, Limit: 1000 * mib}, nil
	}))
	require.Equal(t, int64(101*mib), r.Now().Used)

	var none *Room
	none.Wrote(1)
	require.NoError(t, none.Check(1<<40, false))
	require.NoError(t, (&Room{}).Check(1<<40, false))
	require.NoError(t, measured(1<<40, 0).Check(1<<40, false))
	require.ErrorIs(t, none.Refused(), fault.StorageFull)
	require.ErrorContains(t, r.Refused(), "raise max-store-mib")
}
