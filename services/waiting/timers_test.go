package waiting

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/services/waiting/records"
)

func (r *rig) setTimer(after time.Duration) *waitingv1.Timer {
	r.t.Helper()
	return must.Value(r.service.CreateTimer(r.agent(), &waitingv1.CreateTimerRequest{
		AgentId: "keeper", Description: "look", After: durationpb.New(after),
	}))(r.t).GetTimer()
}

// fired returns the fires of a timer.
func (r *rig) fired(timerID string) []*waitingv1.TimerFired {
	var out []*waitingv1.TimerFired
	for _, ev := range r.events() {
		if p, ok := ev.Payload.(*waitingv1.TimerFired); ok && p.GetTimer().GetTimerId() == timerID {
			out = append(out, p)
		}
	}
	return out
}

func TestP4_ATimerFiresOnce(t *testing.T) {
	r := newRig(t)
	tm := r.setTimer(time.Minute)
	require.Equal(t, epoch.Add(time.Minute), tm.GetNextFireAt().AsTime())
	r.clk.Advance(time.Minute - time.Microsecond)
	require.Empty(t, r.fired(tm.GetTimerId()), "never early")
	r.clk.Advance(time.Microsecond)
	r.eventually(func() bool { return len(r.fired(tm.GetTimerId())) == 1 })
	f := r.fired(tm.GetTimerId())[0]
	require.Equal(t, waitingv1.TimerStatus_TIMER_STATUS_COMPLETED, f.GetTimer().GetStatus())
	require.EqualValues(t, 1, f.GetTimer().GetFireCount())
	require.Equal(t, epoch.Add(time.Minute), f.GetDueAt().AsTime())
	r.service.fire([]string{dueKey("timer", "acme", "keeper", tm.GetTimerId()), "nonsense"})
	r.restart()
	r.clk.Advance(time.Hour)
	require.Len(t, r.fired(tm.GetTimerId()), 1)
}

// What fell due while the process was down fires once after the start, whether
// or not anybody touches the agent (SPEC X14).
func TestP4_OverdueFiresOnceAfterARestart(t *testing.T) {
	r := newRig(t)
	var timers []string
	for i := range 5 {
		timers = append(timers, r.setTimer(time.Duration(i+1)*time.Second).GetTimerId())
	}
	late := r.setTimer(time.Hour).GetTimerId()
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: timer, After: seconds(5), WorkItemId: itemA}).GetWait().GetWaitId()
	r.down()
	r.clk.Advance(10 * time.Minute)
	r.up()
	for _, id := range timers {
		r.eventually(func() bool { return len(r.fired(id)) == 1 })
	}
	r.eventually(func() bool { return r.wait(w).GetStatus() == came })
	require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_TIMER, r.wait(w).GetEndReason())
	require.Empty(t, r.fired(late))
	r.restart()
	for _, id := range timers {
		require.Len(t, r.fired(id), 1)
	}
	var order []string
	for _, ev := range r.events() {
		if p, ok := ev.Payload.(*waitingv1.TimerFired); ok {
			order = append(order, p.GetTimer().GetTimerId())
		}
	}
	require.Equal(t, timers, order, "an agent's timers fire in their order")
}

func TestP4_Cancelling(t *testing.T) {
	r := newRig(t)
	tm := r.setTimer(time.Minute)
	before := len(r.events())
	for range 2 {
		resp := must.Value(r.service.CancelTimer(r.agent(), &waitingv1.CancelTimerRequest{
			AgentId: "keeper", TimerId: tm.GetTimerId(),
		}))(t)
		require.Equal(t, waitingv1.TimerStatus_TIMER_STATUS_CANCELLED, resp.GetTimer().GetStatus())
	}
	require.Equal(t, []string{"timer_cancelled"}, r.since(before))
	r.clk.Advance(time.Hour)
	r.service.fire([]string{dueKey("timer", "acme", "keeper", tm.GetTimerId())})
	require.Empty(t, r.fired(tm.GetTimerId()))
	must.Refuse(r.service.CancelTimer(planetest.AsAgent(t.Context(), "other"), &waitingv1.CancelTimerRequest{
		AgentId: "other", TimerId: tm.GetTimerId(),
	}))(t, fault.NotFound, "another agent's timer looks like none")

	r.setTimer(time.Hour)
	l := must.Value(r.service.ListTimers(r.agent(), &waitingv1.ListTimersRequest{AgentId: "keeper"}))(t)
	require.Len(t, l.GetTimers(), 1)
	l, err := r.service.ListTimers(r.agent(), &waitingv1.ListTimersRequest{AgentId: "keeper", IncludeEnded: true})
	require.NoError(t, err)
	require.Len(t, l.GetTimers(), 2)
}

func TestP4_TimesThatAreNone(t *testing.T) {
	r := newRig(t)
	for name, req := range map[string]*waitingv1.CreateTimerRequest{
		"neither":         {},
		"both":            {After: seconds(1), At: timestamppb.New(epoch)},
		"negative":        {After: seconds(-1)},
		"centuries":       {After: durationpb.New(fault.Horizon + 1)},
		"beyond all":      {After: &durationpb.Duration{Seconds: 1 << 60}},
		"no duration":     {After: &durationpb.Duration{Seconds: -1, Nanos: 1}},
		"beyond 9999":     {At: &timestamppb.Timestamp{Seconds: 1 << 40}},
		"a bad item":      {After: seconds(1), WorkItemId: "x"},
		"nobody's":        {After: seconds(1), AgentId: "nobody"},
		"before the year": {At: &timestamppb.Timestamp{Seconds: -1 << 40}},
	} {
		ctx := planetest.As(t.Context(), "operator")
		if req.GetAgentId() == "" {
			req.AgentId = "keeper"
		}
		require.Error(t, must.Err(r.service.CreateTimer(ctx, req)), name)
	}
	require.Empty(t, r.events())
	// The longest that is taken, and the past, which is now.
	r.setTimer(fault.Horizon)
	resp := must.Value(r.service.CreateTimer(r.agent(), &waitingv1.CreateTimerRequest{
		AgentId: "keeper", At: timestamppb.New(epoch.Add(-time.Hour)),
	}))(t)
	r.eventually(func() bool { return len(r.fired(resp.GetTimer().GetTimerId())) == 1 })
	now := r.setTimer(0)
	r.eventually(func() bool { return len(r.fired(now.GetTimerId())) == 1 })
}

// A wall clock that steps back between the alarm and the fire loses no timer.
func TestP4_AClockThatStepsBack(t *testing.T) {
	r := newRig(t)
	tm := r.setTimer(time.Minute)
	r.service.fire([]string{dueKey("timer", "acme", "keeper", tm.GetTimerId())}) // rung too early
	require.Empty(t, r.fired(tm.GetTimerId()))
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: timer, After: seconds(60), WorkItemId: itemA}).GetWait().GetWaitId()
	r.service.due.Remove(dueKey("wait", "acme", "keeper", w))
	r.service.fire([]string{dueKey("wait", "acme", "keeper", w)})
	r.clk.Advance(time.Minute)
	r.eventually(func() bool { return len(r.fired(tm.GetTimerId())) == 1 && r.wait(w).GetStatus() == came })
}

// A timer wait resolves once and only at its time; a repeated fire is nothing.
func TestP1_ATimerWaitIsOneShot(t *testing.T) {
	r := newRig(t)
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: timer, After: seconds(60), WorkItemId: itemA}).GetWait().GetWaitId()
	other := r.waitFor(&waitingv1.WaitForRequest{Wake: timer, After: seconds(60), WorkItemId: itemB}).GetWait().
		GetWaitId()
	must.Value(r.service.CancelWait(r.agent(), &waitingv1.CancelWaitRequest{AgentId: "keeper", WaitId: other}))(t)
	r.clk.Advance(time.Minute)
	r.eventually(func() bool { return r.wait(w).GetStatus() == came })
	before := len(r.events())
	for _, id := range []string{w, other, "wt_unknown"} {
		r.service.fire([]string{dueKey("wait", "acme", "keeper", id)})
	}
	require.Len(t, r.events(), before)
	require.Equal(t, over, r.wait(other).GetStatus())
}

// The other planes are followed, and replaying the log gives the live state,
// times finer than the journal's included.
func TestX7_ReplayIsLive(t *testing.T) {
	r := newRig(t)
	tasks := r.journals.NewWriter(t, "task", taskv1.File_quartet_task_v1_task_event_proto)
	agents := r.journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	r.clk.Advance(1234567 * time.Nanosecond)
	token := r.trigger(itemA, contentful)
	r.setTimer(time.Hour + 1)
	soon := r.setTimer(time.Millisecond + 1).GetTimerId()
	must.Value(r.service.CreateTimer(r.agent(), &waitingv1.CreateTimerRequest{
		AgentId: "keeper", At: timestamppb.New(epoch.Add(time.Hour + 999)),
	}))(t)
	must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", ExpiresAt: timestamppb.New(epoch.Add(time.Hour + 999)),
	}))(t)
	op := r.waitFor(&waitingv1.WaitForRequest{
		Wake: operatorInput, WorkItemId: itemB, RecheckAfter: durationpb.New(time.Second + 1),
	}).GetWait().GetWaitId()
	tw := r.waitFor(&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemA}).GetWait().
		GetWaitId()
	tasks.Write(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &taskv1.TaskFailed{
		Task: &taskv1.Task{TaskId: taskX},
	}})
	agents.Write(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.MessageQueued{
		Message: &agentv1.Message{MessageId: "msg_1", Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT},
	}})
	r.eventually(func() bool { return r.wait(op).GetStatus() == came && r.wait(tw).GetStatus() == came })
	r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA})
	r.deliver(token.GetToken(), "x")
	r.waitFor(&waitingv1.WaitForRequest{
		Wake: timer, At: timestamppb.New(epoch.Add(time.Hour + 999)), WorkItemId: itemA,
	})
	r.clk.Advance(time.Second)
	r.eventually(func() bool { return len(r.fired(soon)) == 1 })

	live, _, err := journal.View(context.Background(), r.service.engine.All()[0], func(s *State) (*State, error) {
		return s, nil
	})
	require.NoError(t, err)
	replayed := NewState()
	for _, ev := range r.events() {
		require.NoError(t, replayed.Apply(ev))
	}
	require.NoError(t, journaltest.Same(live, replayed))
}

// What ended long ago leaves the memory; what lives stays.
func TestX8_EndedWaitsAreForgotten(t *testing.T) {
	r := newRig(t)
	lives := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemB}).GetWait().GetWaitId()
	for i := range records.KeptEnded + 10 {
		r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA, Reason: fmt.Sprint(i)})
	}
	live, _, err := journal.View(context.Background(), r.service.engine.All()[0], func(s *State) (*agentWaits, error) {
		return s.agents.Get(plane.KeyOf("acme", "keeper")), nil
	})
	require.NoError(t, err)
	require.Equal(t, records.KeptEnded+2, live.waits.Len())
	require.Equal(t, stands, r.wait(lives).GetStatus())
}
