package waiting

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

func (r *rig) timer(req *waitingv1.CreateTimerRequest) *waitingv1.Timer {
	r.t.Helper()
	req.AgentId = "keeper"
	return must.Value(r.service.CreateTimer(r.agent(), req))(r.t).GetTimer()
}

// One rule for spans and times: at most 100 years ahead, at least a second
// between fires, and what is refused says what was given.
func TestP4_TheHorizonIsOne(t *testing.T) {
	r := newRig(t)
	end := epoch.Add(fault.Horizon)
	for name, c := range map[string]struct {
		req  *waitingv1.CreateTimerRequest
		want fault.Reason // "": taken
		says string
	}{
		"after, below": {
			&waitingv1.CreateTimerRequest{After: durationpb.New(fault.Horizon - time.Second)}, "",
			"",
		},
		"after, at": {&waitingv1.CreateTimerRequest{After: durationpb.New(fault.Horizon)}, "", ""},
		"after, above": {
			&waitingv1.CreateTimerRequest{After: durationpb.New(fault.Horizon + time.Second)},
			fault.LimitExceeded, "876000h0m1s",
		},
		"after, 300 years": {
			&waitingv1.CreateTimerRequest{After: &durationpb.Duration{Seconds: 9467280000}},
			fault.LimitExceeded, "9467280000s",
		},
		"after, 20 000": {
			&waitingv1.CreateTimerRequest{After: &durationpb.Duration{Seconds: 1 << 40}},
			fault.LimitExceeded, "1099511627776s; it must be 0s to 100 years",
		},
		"after, 10 000": {
			&waitingv1.CreateTimerRequest{After: &durationpb.Duration{Seconds: 999999999999999}},
			fault.LimitExceeded, "999999999999999s; it must be 0s to 100 years",
		},
		"after, two signs": {
			&waitingv1.CreateTimerRequest{After: &durationpb.Duration{Seconds: 1, Nanos: -1}},
			fault.InvalidArgument, "of one sign",
		},
		"after, nanoseconds": {
			&waitingv1.CreateTimerRequest{After: &durationpb.Duration{Seconds: 1, Nanos: 1e9}},
			fault.InvalidArgument, "less than 1e9",
		},
		"at, below": {&waitingv1.CreateTimerRequest{At: timestamppb.New(end.Add(-time.Second))}, "", ""},
		"at, at":    {&waitingv1.CreateTimerRequest{At: timestamppb.New(end)}, "", ""},
		"at, above": {
			&waitingv1.CreateTimerRequest{At: timestamppb.New(end.Add(time.Second))},
			fault.LimitExceeded, end.Add(time.Second).Format(time.RFC3339),
		},
		"at, 9999": {
			&waitingv1.CreateTimerRequest{At: timestamppb.New(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))},
			fault.LimitExceeded, "9999-12-31",
		},
		"at, long ago": {
			&waitingv1.CreateTimerRequest{At: timestamppb.New(epoch.Add(-2 * fault.Horizon))}, "",
			"",
		},
		"every, below": {
			&waitingv1.CreateTimerRequest{Every: durationpb.New(Shortest - 1)},
			fault.LimitExceeded, "999.999999ms",
		},
		"every, at":      {&waitingv1.CreateTimerRequest{Every: durationpb.New(Shortest)}, "", ""},
		"every, longest": {&waitingv1.CreateTimerRequest{Every: durationpb.New(fault.Horizon)}, "", ""},
		"every, above": {
			&waitingv1.CreateTimerRequest{Every: durationpb.New(fault.Horizon + 1)},
			fault.LimitExceeded, "every",
		},
		"every, none": {
			&waitingv1.CreateTimerRequest{Every: durationpb.New(0), After: seconds(1)},
			fault.LimitExceeded, "every is 0s",
		},
		"every, negative": {&waitingv1.CreateTimerRequest{Every: seconds(-1)}, fault.LimitExceeded, "-1s"},
		"every, from then": {
			&waitingv1.CreateTimerRequest{Every: seconds(60), At: timestamppb.New(epoch.Add(-fault.Horizon))}, "", "",
		},
		"every, too long ago": {
			&waitingv1.CreateTimerRequest{
				Every: seconds(60),
				At:    timestamppb.New(epoch.Add(-fault.Horizon - time.Second)),
			}, fault.LimitExceeded, "100 years ago",
		},
		"count, no period": {
			&waitingv1.CreateTimerRequest{After: seconds(1), Count: 2}, fault.InvalidArgument,
			`count "2"`,
		},
		"count, negative": {
			&waitingv1.CreateTimerRequest{Every: seconds(1), Count: -1}, fault.InvalidArgument,
			`count "-1"`,
		},
		"nothing": {&waitingv1.CreateTimerRequest{}, fault.InvalidArgument, "no time is given"},
		"both": {
			&waitingv1.CreateTimerRequest{After: seconds(1), At: timestamppb.New(epoch)},
			fault.InvalidArgument, "both given",
		},
	} {
		before := len(r.events())
		c.req.AgentId = "keeper"
		_, err := r.service.CreateTimer(r.agent(), c.req)
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.says, name)
		require.NotContains(t, err.Error(), `""`, name)
		for _, typ := range r.since(before) {
			require.NotEqual(t, "timer_created", typ, name)
		}
	}
}

// A repeating timer is counted from its first time, whatever happens to its
// fires; what was missed is one fire.
func TestP4_RepeatsDoNotDrift(t *testing.T) {
	r := newRig(t)
	every := 7*time.Minute + 333*time.Microsecond
	tm := r.timer(&waitingv1.CreateTimerRequest{Every: durationpb.New(every + 999), After: seconds(60)})
	require.Equal(t, every, tm.GetEvery().AsDuration(), "whole microseconds")
	start := epoch.Add(time.Minute)
	require.Equal(t, start, tm.GetStartAt().AsTime())
	at := func() []time.Time {
		var out []time.Time
		for _, f := range r.fired(tm.GetTimerId()) {
			out = append(out, f.GetDueAt().AsTime())
		}
		return out
	}
	// The first is on time, the second a minute late, the third again on time.
	r.clk.Set(start)
	r.idle()
	r.clk.Set(start.Add(every + time.Minute))
	r.idle()
	r.clk.Set(start.Add(2*every - time.Microsecond))
	r.idle()
	require.Equal(t, []time.Time{start, start.Add(every)}, at())
	r.clk.Set(start.Add(2 * every))
	r.idle()
	require.Equal(t, []time.Time{start, start.Add(every), start.Add(2 * every)}, at())
	// Down for three and a half slots: one fire, the next at the next slot.
	r.down()
	r.clk.Set(start.Add(6*every + every/2))
	r.up()
	r.idle()
	require.Equal(t, start.Add(3*every), at()[3], "the one that was missed first")
	require.Len(t, at(), 4)
	fires := r.fired(tm.GetTimerId())
	last := fires[len(fires)-1].GetTimer()
	require.EqualValues(t, 3, last.GetSkippedCount())
	require.EqualValues(t, 4, last.GetFireCount())
	require.Equal(t, start.Add(7*every), last.GetNextFireAt().AsTime())
	// Exactly at a slot is that slot.
	r.down()
	r.clk.Set(start.Add(9 * every))
	r.up()
	r.idle()
	require.Len(t, at(), 5)
	require.Equal(t, start.Add(10*every), r.fired(tm.GetTimerId())[4].GetTimer().GetNextFireAt().AsTime())
}

func TestP4_ARepeatingTimerEndsWithItsCount(t *testing.T) {
	r := newRig(t)
	tm := r.timer(&waitingv1.CreateTimerRequest{Every: seconds(10), Count: 3})
	require.Equal(t, epoch.Add(10*time.Second), tm.GetNextFireAt().AsTime(),
		"without a time the first is one period away")
	once := r.timer(&waitingv1.CreateTimerRequest{Every: seconds(10), Count: 1})
	for range 10 {
		r.clk.Advance(10 * time.Second)
		r.idle()
	}
	require.Len(t, r.fired(once.GetTimerId()), 1)
	fires := r.fired(tm.GetTimerId())
	require.Len(t, fires, 3)
	require.Equal(t, waitingv1.TimerStatus_TIMER_STATUS_COMPLETED, fires[2].GetTimer().GetStatus())
	require.Nil(t, fires[2].GetTimer().GetNextFireAt())

	forever := r.timer(&waitingv1.CreateTimerRequest{Every: seconds(10)})
	r.clk.Advance(10 * time.Second)
	r.idle()
	must.Value(r.service.CancelTimer(r.agent(), &waitingv1.CancelTimerRequest{
		AgentId: "keeper", TimerId: forever.GetTimerId(),
	}))(t)
	r.clk.Advance(time.Hour)
	r.idle()
	require.Len(t, r.fired(forever.GetTimerId()), 1)
	require.Zero(t, r.service.due.Len())
}

// A timer whose first time has passed fires at once, and then at its own slots.
func TestP4_ARepeatingTimerFromThePast(t *testing.T) {
	r := newRig(t)
	tm := r.timer(&waitingv1.CreateTimerRequest{
		Every: seconds(3600),
		At:    timestamppb.New(epoch.Add(-150 * time.Minute)),
	})
	r.idle()
	fires := r.fired(tm.GetTimerId())
	require.Len(t, fires, 1)
	require.Equal(t, epoch.Add(30*time.Minute), fires[0].GetTimer().GetNextFireAt().AsTime())
	require.EqualValues(t, 2, fires[0].GetTimer().GetSkippedCount())
}

// A stopped agent takes nothing from outside, and its timers are held back; a
// paused one takes both (SPEC A8).
func TestA8_AStoppedAgent(t *testing.T) {
	r := newRig(t)
	token := r.trigger("", contentful).GetToken()
	tm := r.timer(&waitingv1.CreateTimerRequest{After: seconds(60)})
	again := r.timer(&waitingv1.CreateTimerRequest{Every: seconds(60)})
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: timer, After: seconds(60), WorkItemId: itemA}).GetWait().GetWaitId()
	control := func(c agentv1.Control) {
		r.hear("", &agentv1.AgentSpawned{
			Agent: &agentv1.Agent{AgentId: "keeper", Control: c, Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE},
		})
	}
	deliver := func() error { return r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: token}) }
	control(agentv1.Control_CONTROL_PAUSED)
	require.NoError(t, deliver())
	control(agentv1.Control_CONTROL_STOPPED)
	n := len(r.events())
	control(agentv1.Control_CONTROL_STOPPED)
	require.Len(t, r.events(), n, "it is noted once")
	require.ErrorIs(t, deliver(), fault.AgentStopped)
	require.Len(t, r.events(), n)

	r.clk.Advance(90 * time.Second)
	r.idle()
	r.restart()
	r.idle()
	require.ErrorIs(t, deliver(), fault.AgentStopped, "also after a restart")
	require.Empty(t, r.fired(tm.GetTimerId()))
	require.Equal(t, came, r.wait(w).GetStatus(), "time passes for a stopped agent too")
	r.clk.Advance(5 * time.Minute)
	r.idle()
	require.Empty(t, r.fired(again.GetTimerId()))

	control(agentv1.Control_CONTROL_RUNNING)
	r.idle()
	require.NoError(t, deliver())
	require.Len(t, r.fired(tm.GetTimerId()), 1)
	fires := r.fired(again.GetTimerId())
	require.Len(t, fires, 1, "what was missed is one tick")
	require.Equal(t, epoch.Add(7*time.Minute), fires[0].GetTimer().GetNextFireAt().AsTime())
	require.Empty(t, r.service.held.Release(plane.KeyOf("acme", "keeper")))
}

// A deleted agent waits for nothing, and nothing comes for it (SPEC A8).
func TestA8_ADeletedAgent(t *testing.T) {
	r := newRig(t)
	made := r.trigger("", wakeHint)
	r.deliver(made.GetToken(), "")
	r.timer(&waitingv1.CreateTimerRequest{Every: seconds(60)})
	r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA})
	gone := &agentv1.AgentSpawned{
		Agent: &agentv1.Agent{AgentId: "keeper", Lifecycle: agentv1.Lifecycle_LIFECYCLE_DELETED},
	}
	before := len(r.events())
	r.hear("", gone)
	require.ElementsMatch(t, []string{
		"agent_noted", "wait_cancelled", "external_trigger_cancelled", "wait_cancelled",
		"timer_cancelled",
	}, r.since(before))
	r.hear("", gone)
	for range 2 { // nothing is made for it any more, also after a restart
		_, err := r.service.CreateTimer(r.agent(), &waitingv1.CreateTimerRequest{AgentId: "keeper", After: seconds(60)})
		require.ErrorIs(t, err, fault.AgentDeleted)
		_, err = r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{AgentId: "keeper"})
		require.ErrorIs(t, err, fault.AgentDeleted)
		must.Refuse(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{
			AgentId: "keeper", Source: "github", Condition: "merged",
		}))(t, fault.AgentDeleted)
		must.Refuse(r.service.WaitFor(r.agent(), &waitingv1.WaitForRequest{
			AgentId: "keeper", Wake: operatorInput, Reason: "x",
		}))(t, fault.AgentDeleted)
		r.restart()
	}
	require.Len(t, r.events(), before+5)
	require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: made.GetToken()}), fault.TriggerRevoked)
	r.idle()
	require.Zero(t, r.service.due.Len())
}

// FuzzTimes: whatever spans and times a request has, it is refused with a reason
// of ours or gives a timer that is due within the fault.Horizon and goes forward.
func FuzzTimes(f *testing.F) {
	f.Add(int64(1), int32(0), int64(0), int32(0), int64(60), int32(0), int64(0), uint8(7))
	f.Add(int64(1<<62), int32(-1), int64(-1<<62), int32(1<<30), int64(315576000000), int32(999999999), int64(-1),
		uint8(7))
	f.Fuzz(func(t *testing.T, afterS int64, afterN int32, atS int64, atN int32, everyS int64, everyN int32, count int64,
		which uint8,
	) {
		req := &waitingv1.CreateTimerRequest{Count: count}
		if which&1 != 0 {
			req.After = &durationpb.Duration{Seconds: afterS, Nanos: afterN}
		}
		if which&2 != 0 {
			req.At = &timestamppb.Timestamp{Seconds: atS, Nanos: atN}
		}
		if which&4 != 0 {
			req.Every = &durationpb.Duration{Seconds: everyS, Nanos: everyN}
		}
		err := fault.First(validTime(req.GetAfter(), req.GetAt(), req.GetEvery() != nil),
			validSpan("every", req.GetEvery(), Shortest), validCount(req))
		if err != nil {
			require.NotEqual(t, fault.InternalError, fault.From(err).Reason())
			return
		}
		d, err := decideCreateTimer(envAt(epoch), req, "")
		if err != nil {
			require.ErrorIs(t, err, fault.LimitExceeded)
			return
		}
		tm := d.Events[0].Payload.(*waitingv1.TimerCreated).GetTimer()
		due := tm.GetNextFireAt().AsTime()
		require.False(t, due.After(epoch.Add(fault.Horizon)))
		for range 3 {
			now := due
			if now.Before(epoch) {
				now = epoch
			}
			tm = fired(tm, now)
			if tm.GetNextFireAt() == nil {
				return
			}
			next := tm.GetNextFireAt().AsTime()
			require.True(t, next.After(now), "it goes forward")
			require.Zero(t, next.Sub(tm.GetStartAt().AsTime())%tm.GetEvery().AsDuration(), "and stays at its slots")
			require.GreaterOrEqual(t, tm.GetSkippedCount(), int64(0))
			due = next
		}
	})
}
