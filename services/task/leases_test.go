package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/clock"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// While the journal stalls no lease lapses, and the stall is added to the term
// (SPEC X12): a worker cannot report what cannot be written.
func TestX12_StallsAreAddedToTheTerm(t *testing.T) {
	clk := clock.NewFake(start)
	l := newLeases(clk, LeaseTerm, func(*lease) {})
	stall := 3 * time.Second // of earlier times
	one := l.arm("acme", model.WorkerKey{Namespace: "acme", ID: "w1"}, &taskv1.Task{TaskId: "tsk_a", LeaseGeneration: 1}, stall)
	require.False(t, l.over(one, 0, stall))

	clk.Advance(LeaseTerm)
	require.False(t, l.over(one, time.Second, stall+time.Second), "it stalls now")
	at, armed := l.due.At("tsk_a")
	require.True(t, armed)
	require.Equal(t, clk.Now().Add(time.Second), at, "and is looked at again")

	require.False(t, l.over(one, 0, stall+10*time.Second), "it stalled for 10 s")
	require.Equal(t, start.Add(LeaseTerm+10*time.Second), l.expiry(one))
	require.False(t, l.over(one, 0, stall+10*time.Second), "which is added once")
	clk.Advance(10 * time.Second)
	require.True(t, l.over(one, 0, stall+10*time.Second))

	l.renew(one, stall+10*time.Second)
	require.False(t, l.over(one, 0, stall+10*time.Second), "a renewal is a full term")
	require.Equal(t, clk.Now().Add(LeaseTerm), l.expiry(one))

	l.stored(one, 7)
	l.stored(one, 5)
	require.EqualValues(t, 7, l.outputEnd("tsk_a"))
	again := l.arm("acme", one.worker, &taskv1.Task{TaskId: "tsk_a", LeaseGeneration: 1}, 0)
	require.Same(t, one, again, "the same lease")
	l.drop("tsk_a")
	require.Nil(t, l.get("tsk_a"))
	require.Zero(t, l.due.Len())
	require.False(t, l.over(one, 0, 0), "what ended does not lapse")
	l.renew(one, 0)
	l.again(one)
	require.Zero(t, l.due.Len())
}
