package waiting

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

func TestP1_WaitForEachKind(t *testing.T) {
	r := newRig(t)
	token := r.trigger(itemA, wakeHint)
	for name, c := range map[string]struct {
		req  *waitingv1.WaitForRequest
		kind waitingv1.WaitKind
	}{
		"operator": {&waitingv1.WaitForRequest{Wake: operatorInput}, waitingv1.WaitKind_WAIT_KIND_OPERATOR},
		"task":     {&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX}, waitingv1.WaitKind_WAIT_KIND_TASK},
		"any":      {&waitingv1.WaitForRequest{Wake: external}, waitingv1.WaitKind_WAIT_KIND_EXTERNAL},
		"external": {
			&waitingv1.WaitForRequest{Wake: external, Resource: token.GetTrigger().GetTriggerId()},
			waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
		},
		"timer": {&waitingv1.WaitForRequest{Wake: timer, After: seconds(60)}, waitingv1.WaitKind_WAIT_KIND_TIMER},
		"timer at": {
			&waitingv1.WaitForRequest{Wake: timer, At: timestamppb.New(epoch.Add(time.Hour))},
			waitingv1.WaitKind_WAIT_KIND_TIMER,
		},
	} {
		c.req.WorkItemId, c.req.Reason, c.req.RecheckAfter = itemA, "because of "+name, seconds(5)
		w := r.waitFor(c.req).GetWait()
		require.Equal(t, stands, w.GetStatus(), name)
		require.Equal(t, waitingv1.WaitMode_WAIT_MODE_WAIT, w.GetMode())
		require.Equal(t, itemA, w.GetWorkItemId())
		require.EqualValues(t, 1, w.GetRevision())
		require.Equal(t, epoch.Add(5*time.Second), w.GetRecheckAt().AsTime())
		// The work plane was told at once, of exactly this.
		told := r.others.attaches()
		a := told[len(told)-1].GetWait()
		require.Equal(t, w.GetWaitId(), a.GetWaitId())
		require.Equal(t, c.kind, a.GetKind())
		require.Equal(t, "because of "+name, a.GetReason())
		require.Equal(t, w.GetRecheckAt().AsTime(), a.GetRecheckAt().AsTime())
	}
}

func TestP1_WaitForRefusals(t *testing.T) {
	r := newRig(t)
	before := len(r.events())
	for name, req := range map[string]*waitingv1.WaitForRequest{
		"no wake":                  {},
		"an unknown wake":          {Wake: 99},
		"no task":                  {Wake: taskResult},
		"not a task":               {Wake: taskResult, Resource: itemA},
		"another agent's task":     {Wake: taskResult, Resource: "tsk_00000000000000000000000zzz"},
		"not a trigger":            {Wake: external, Resource: taskX},
		"an unknown trigger":       {Wake: external, Resource: "trg_00000000000000000000000zzz"},
		"no time":                  {Wake: timer},
		"two times":                {Wake: timer, After: seconds(1), At: timestamppb.New(epoch)},
		"a time without timer":     {Wake: operatorInput, After: seconds(1)},
		"a negative span":          {Wake: timer, After: seconds(-1)},
		"a span without end":       {Wake: timer, After: &durationpb.Duration{Seconds: 1 << 40}},
		"101 years":                {Wake: timer, After: durationpb.New(fault.Horizon + time.Second)},
		"no span at all":           {Wake: timer, After: &durationpb.Duration{Seconds: 1, Nanos: -1}},
		"a time out of time":       {Wake: timer, At: &timestamppb.Timestamp{Seconds: 1 << 40}},
		"a recheck without end":    {Wake: operatorInput, RecheckAfter: &durationpb.Duration{Seconds: 1 << 40}},
		"a completed item":         {Wake: operatorInput, WorkItemId: gone},
		"an unknown item":          {Wake: operatorInput, WorkItemId: "wi_00000000000000000000000zzz"},
		"not an item":              {Wake: operatorInput, WorkItemId: taskX},
		"blanks for a reason":      {Wake: operatorInput, Reason: "  "},
		"too long a reason":        {Wake: operatorInput, Reason: strings.Repeat("r", 16<<10+1)},
		"an operator's record":     {Wake: operatorInput, Resource: taskX},
		"a timer's record":         {Wake: timer, After: seconds(1), Resource: "tmr_0000000000000000000000000x"},
		"an operator's mode":       {Wake: operatorInput, DeliveryMode: contentful},
		"a task's mode":            {Wake: taskResult, Resource: taskX, DeliveryMode: wakeHint},
		"a timer's mode":           {Wake: timer, After: seconds(1), DeliveryMode: contentful},
		"a task's time":            {Wake: taskResult, Resource: taskX, At: timestamppb.New(epoch)},
		"a trigger's time":         {Wake: external, After: seconds(1)},
		"beyond the fault.Horizon": {Wake: timer, At: timestamppb.New(epoch.Add(fault.Horizon + time.Second))},
		"the year 9999":            {Wake: timer, At: timestamppb.New(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))},
	} {
		_, err := r.tryWaitFor(req)
		require.Error(t, err, name)
		require.NotEqual(t, fault.InternalError, fault.From(err).Reason(), name)
	}
	_, err := r.service.WaitFor(r.agent(), &waitingv1.WaitForRequest{AgentId: "keeper", Wake: operatorInput})
	require.ErrorIs(t, err, fault.InvalidArgument, "a wait says why")
	must.Refuse(r.service.WaitFor(planetest.AsAgent(t.Context(), "other"), &waitingv1.WaitForRequest{
		AgentId: "keeper", Reason: "x", Wake: operatorInput,
	}))(t, fault.PermissionDenied)
	require.Len(t, r.events(), before)
}

// The named item, else the one in focus, else the agent.
func TestP1_WhoWaits(t *testing.T) {
	r := newRig(t)
	require.Empty(t, r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput}).GetWait().GetWorkItemId())
	require.Empty(t, r.others.attaches(), "the agent's own wait is no item's")
	r.others.set(func() { r.others.current = itemB })
	require.Equal(t, itemB, r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput}).GetWait().GetWorkItemId())
	require.Equal(t, itemA, r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA}).GetWait().
		GetWorkItemId())
	l := must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"}))(t)
	require.Len(t, l.GetWaits(), 3, "one wait per owner, not per agent")
}

// The end of a task against the beginning of the wait for it (SPEC R8).
func TestP1_ATaskThatEnds(t *testing.T) {
	req := func() *waitingv1.WaitForRequest {
		return &waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemA}
	}
	end := &taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: taskX, Revision: 3}}

	t.Run("before, and the task plane knows", func(t *testing.T) {
		r := newRig(t)
		r.others.set(func() { r.others.ended[taskX] = true })
		w := r.waitFor(req()).GetWait()
		require.Equal(t, came, w.GetStatus())
		require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_TASK_RESULT_PRESENT, w.GetEndReason())
		require.Empty(t, r.others.attaches(), "nothing to attach")
		require.Equal(t, []string{"wait_registered", "wait_resolved"}, r.since(0))
	})
	t.Run("between the look and the wait", func(t *testing.T) {
		r := newRig(t)
		r.hear("", end) // GetTask still says that it runs
		require.Equal(t, came, r.waitFor(req()).GetWait().GetStatus())
	})
	t.Run("after", func(t *testing.T) {
		r := newRig(t)
		w := r.waitFor(req()).GetWait()
		other := r.waitFor(&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskY, WorkItemId: itemB}).GetWait()
		before := len(r.events())
		r.hear("", end)
		require.Equal(t, []string{"task_noted", "wait_resolved"}, r.since(before))
		require.Equal(t, came, r.wait(w.GetWaitId()).GetStatus())
		require.Equal(t, stands, r.wait(other.GetWaitId()).GetStatus(), "another task is another's")
		r.hear("", end)
		r.restart()
		r.hear("", end)
		require.Len(t, r.events(), before+2, "once")
	})
}

// One wait per owner; what came for the old one and was not seen is not lost
// (SPEC P1).
func TestP1_Replacement(t *testing.T) {
	r := newRig(t)
	token := r.trigger(itemA, wakeHint).GetToken()
	first := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	r.deliver(token, "")
	r.deliver(token, "")
	resp := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA})
	second := resp.GetWait()
	require.Equal(t, first.GetWaitId(), resp.GetReplacedWaitId())
	require.Equal(t, over, r.wait(first.GetWaitId()).GetStatus())
	require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_WAIT_REPLACED, r.wait(first.GetWaitId()).GetEndReason())
	require.True(t, second.GetTriggered())
	require.EqualValues(t, 2, second.GetTriggerCount())
	require.Equal(t, first.GetWaitId(), second.GetReplacesWaitId())

	// The turn that was shown the first wait, and then waited again, has seen it.
	shown := func(waitID string, n int64) *agentv1.TurnCompleted {
		return &agentv1.TurnCompleted{
			Turn: &agentv1.Turn{TurnId: "trn_1", ShownWaits: []*agentv1.ShownWait{{WaitId: waitID, TriggerCount: n}}},
		}
	}
	third := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	r.hear("", shown(first.GetWaitId(), 1))
	require.EqualValues(t, 1, r.wait(third.GetWaitId()).GetConsumedCount())
	require.True(t, r.wait(third.GetWaitId()).GetTriggered(), "the second came after that look")
	r.hear("", shown(first.GetWaitId(), 2))
	require.False(t, r.wait(third.GetWaitId()).GetTriggered())
	before := len(r.events())
	r.hear("", shown(first.GetWaitId(), 2))
	r.hear("", shown(second.GetWaitId(), 2))
	r.hear("", shown("wt_unknown", 2))
	require.Len(t, r.events(), before)

	// Nothing is inherited where everything was seen.
	fourth := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	require.Zero(t, fourth.GetTriggerCount())
	require.Empty(t, fourth.GetReplacesWaitId())
	r.hear("", shown(third.GetWaitId(), 9))
	require.Zero(t, r.wait(fourth.GetWaitId()).GetConsumedCount())
}

// TestP1_ReplacedWhileTheClockWasSetBack: the new wait is the newer one, also by its creation, which items go by.
func TestP1_ReplacedWhileTheClockWasSetBack(t *testing.T) {
	r := newRig(t)
	first := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	r.clk.Set(r.clk.Now().Add(-time.Hour))
	second := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA}).GetWait()
	require.Equal(t, first.GetCreatedAt().AsTime().Add(time.Microsecond), second.GetCreatedAt().AsTime())
	third := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	require.True(t, third.GetCreatedAt().AsTime().After(second.GetCreatedAt().AsTime()))
}

// TestP1_AWaitAndItsReplacementShown: a turn that was shown a wait and the one that replaced it consumes once.
func TestP1_AWaitAndItsReplacementShown(t *testing.T) {
	r := newRig(t)
	token := r.trigger(itemA, wakeHint).GetToken()
	first := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	r.deliver(token, "")
	r.deliver(token, "")
	second := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	require.Equal(t, first.GetWaitId(), second.GetReplacesWaitId())
	before := len(r.events())
	r.hear("", &agentv1.TurnCompleted{Turn: &agentv1.Turn{TurnId: "trn_1", ShownWaits: []*agentv1.ShownWait{
		{WaitId: first.GetWaitId(), TriggerCount: 1}, {WaitId: second.GetWaitId(), TriggerCount: 2},
	}}})
	events := r.events()[before:]
	require.Len(t, events, 1)
	require.EqualValues(t, 2, events[0].Payload.(*waitingv1.WaitConsumed).GetWait().GetConsumedCount())
}

func TestX2_ARepeatedWaitForIsOneWait(t *testing.T) {
	r := newRig(t)
	req := &waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, RequestId: "r1"}
	first := r.waitFor(req).GetWait()
	require.Equal(t, first.GetWaitId(), r.waitFor(req).GetWait().GetWaitId())
	require.Len(t, r.events(), 1)
	require.Len(t, r.others.attaches(), 2, "the item is told again: the first call may have been lost")

	// Once the wait has ended, a repetition does not bring it back to the item.
	must.Value(r.service.CancelWait(r.agent(), &waitingv1.CancelWaitRequest{
		AgentId: "keeper", WaitId: first.GetWaitId(),
	}))(t)
	require.Equal(t, first.GetWaitId(), r.waitFor(req).GetWait().GetWaitId())
	require.Len(t, r.others.attaches(), 2)
	_, err := r.tryWaitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA, RequestId: "r1"})
	require.ErrorIs(t, err, fault.RequestIDReused)
}

// A wait that was answered is answered again after its item was completed, also before this plane has
// received that and the work plane refuses the wait (seed 3534 of the simulation).
func TestX2_ARepeatedWaitForOfACompletedItem(t *testing.T) {
	r := newRig(t)
	req := &waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA, RequestId: "r1"}
	first := r.waitFor(req).GetWait()
	r.others.set(func() { r.others.refuse = true })
	require.Equal(t, first.GetWaitId(), r.waitFor(req).GetWait().GetWaitId())
	require.Len(t, r.others.attaches(), 2, "the first call may have been lost")
	require.Len(t, r.events(), 1)

	_, err := r.tryWaitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA, RequestId: "r2"})
	require.ErrorIs(t, err, fault.WorkItemCompleted, "the first call of a request is refused")

	r.others.set(func() { r.others.refuse = false })
	intent := &waitingv1.CreateWaitRequest{AgentId: "keeper", WorkItemId: itemB, RequestId: "r3"}
	made := must.Value(r.service.CreateWait(r.agent(), intent))(t)
	r.others.set(func() { r.others.refuse = true })
	again := must.Value(r.service.CreateWait(r.agent(), intent))(t)
	require.Equal(t, made.GetWait().GetWaitId(), again.GetWait().GetWaitId())
}

// The wait stands although the work plane is down: it hears of it by the event.
func TestR8_AWaitOutlivesItsMessenger(t *testing.T) {
	r := newRig(t)
	r.others.set(func() { r.others.down = true })
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA}).GetWait()
	require.Equal(t, stands, r.wait(w.GetWaitId()).GetStatus())

	r.others.set(func() { r.others.down, r.others.refuse = false, true })
	_, err := r.tryWaitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemB})
	require.ErrorIs(t, err, fault.WorkItemCompleted, "the caller learns that the item cannot wait")
	r.hear(itemA, &workv1.WaitAttachRefused{
		WaitId: w.GetWaitId(), WorkItemId: itemA, Reason: workv1.AttachRefusal_ATTACH_REFUSAL_WORK_ITEM_COMPLETED,
	})
	require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_ATTACH_REFUSED, r.wait(w.GetWaitId()).GetEndReason())
}

// Completing an item ends its timers: nothing fires for it any more, also after a restart, and it gets
// no new one. Timers of the agent and of other items go on (SPEC P9.1).
func TestP9_ACompletedItemHasNoTimers(t *testing.T) {
	r := newRig(t)
	create := func(item string, every bool) (*waitingv1.Timer, error) {
		req := &waitingv1.CreateTimerRequest{AgentId: "keeper", WorkItemId: item, After: seconds(60)}
		if every {
			req.Every = seconds(60)
		}
		resp, err := r.service.CreateTimer(r.agent(), req)
		return resp.GetTimer(), err
	}
	var all []*waitingv1.Timer
	for _, item := range []string{itemA, itemA, itemB, ""} {
		all = append(all, must.Value(create(item, len(all)%2 == 1))(t))
	}
	before := len(r.events())
	r.hear(itemA, &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: itemA}})
	r.hear(itemA, &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: itemA}})
	require.Equal(t, []string{"work_item_noted", "timer_cancelled", "timer_cancelled"}, r.since(before))
	must.Refuse(create(itemA, false))(t, fault.WorkItemCompleted,
		"what was heard is remembered: the work plane's answer may be older")

	r.restart()
	before = len(r.events())
	r.clk.Advance(61 * time.Second)
	require.Eventually(t, func() bool { return len(r.events()) >= before+2 }, time.Minute, 2*time.Millisecond)
	for _, ev := range r.events()[before:] {
		if fired, ok := ev.Payload.(*waitingv1.TimerFired); ok {
			require.NotEqual(t, itemA, fired.GetTimer().GetWorkItemId())
		}
	}
	list, err := r.service.ListTimers(r.agent(), &waitingv1.ListTimersRequest{AgentId: "keeper", IncludeEnded: true})
	require.NoError(t, err)
	var states []string
	for i, tm := range list.GetTimers() {
		require.Equal(t, all[i].GetTimerId(), tm.GetTimerId())
		states = append(states, tm.GetStatus().String())
	}
	const cancelled, completed, active = "TIMER_STATUS_CANCELLED", "TIMER_STATUS_COMPLETED", "TIMER_STATUS_ACTIVE"
	require.Equal(t, []string{cancelled, cancelled, completed, active}, states)
}

// Completing an item ends what it waited for; triggers stay (SPEC P9).
func TestP9_ACompletedItemWaitsForNothing(t *testing.T) {
	r := newRig(t)
	trigger := r.trigger(itemA, wakeHint)
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA}).GetWait()
	i := must.Value(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{
		AgentId: "keeper", WorkItemId: itemA, Source: "github",
	}))(t)
	other := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemB}).GetWait()
	done := &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: itemA}}
	before := len(r.events())
	r.hear(itemA, done)
	r.hear(itemA, done)
	require.Equal(t, []string{"work_item_noted", "wait_cancelled", "wait_cancelled"}, r.since(before))
	require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_WORK_ITEM_COMPLETED, r.wait(w.GetWaitId()).GetEndReason())
	require.Equal(t, over, r.wait(i.GetWait().GetWaitId()).GetStatus())
	require.Equal(t, stands, r.wait(other.GetWaitId()).GetStatus())

	// What was heard is remembered: the work plane's answer may be older.
	_, err := r.tryWaitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA})
	require.ErrorIs(t, err, fault.WorkItemCompleted)
	_, err = r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{AgentId: "keeper", WorkItemId: itemA})
	require.ErrorIs(t, err, fault.WorkItemCompleted)

	out := r.deliver(trigger.GetToken(), "late")
	require.Equal(t, waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED, out.GetOutcome())
	require.Equal(t, "work_item_completed", out.GetReason())
}

func TestP2_ClearingTheBlockerEndsItsWait(t *testing.T) {
	r := newRig(t)
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait()
	r.hear(itemA, &workv1.WorkItemUpdated{WorkItem: &workv1.WorkItemRecord{WorkItemId: itemA}})
	require.Equal(t, stands, r.wait(w.GetWaitId()).GetStatus(), "an update that ended no wait")
	r.hear(itemA, &workv1.WorkItemUpdated{
		WorkItem:    &workv1.WorkItemRecord{WorkItemId: itemA},
		EndedWaitId: w.GetWaitId(),
	})
	require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_BLOCKER_CLEARED, r.wait(w.GetWaitId()).GetEndReason())
}

// An operator's message resolves the named item's operator wait, else the only
// one, else none (SPEC P2).
func TestP2_OperatorMessages(t *testing.T) {
	const prompt, channel = agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
		agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT
	const followUp = agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP
	for name, c := range map[string]struct {
		waits   []string // items, "" the agent
		kind    agentv1.MessageKind
		names   string
		resolve []bool
		origin  agentv1.Origin
	}{
		"the only one":               {[]string{itemA}, prompt, "", []bool{true}, 0},
		"the agent's own":            {[]string{""}, prompt, "", []bool{true}, 0},
		"the named one of two":       {[]string{itemA, itemB}, prompt, itemB, []bool{false, true}, 0},
		"two, and none is named":     {[]string{itemA, itemB}, prompt, "", []bool{false, false}, 0},
		"the named item has none":    {[]string{itemA}, prompt, itemB, []bool{false}, 0},
		"a channel is no operator":   {[]string{itemA}, channel, "", []bool{false}, 0},
		"a child's supervisor":       {[]string{itemA}, followUp, "", []bool{true}, agentv1.Origin_ORIGIN_PARENT},
		"the runtime is no operator": {[]string{itemA}, followUp, "", []bool{false}, agentv1.Origin_ORIGIN_SYSTEM},
		"nobody waits":               {nil, prompt, "", nil, 0},
		"the item's, not the agent":  {[]string{itemA, ""}, prompt, itemA, []bool{true, false}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var waits []string
			for _, item := range c.waits {
				r.others.set(func() { r.others.current = "" })
				waits = append(waits, r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: item}).
					GetWait().GetWaitId())
			}
			// Waits of other kinds are none of an operator's business.
			if len(c.waits) == 1 && c.waits[0] == itemA {
				r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemB})
			}
			r.hear("", &agentv1.MessageQueued{Message: &agentv1.Message{
				MessageId: "msg_1", Kind: c.kind, WorkItemId: c.names, Origin: c.origin,
			}})
			for i, waitID := range waits {
				w := r.wait(waitID)
				require.Equal(t, c.resolve[i], w.GetStatus() == came, "%s", c.waits[i])
				if c.resolve[i] {
					require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_OPERATOR_INPUT, w.GetEndReason())
				}
			}
		})
	}
}

// A supervisor's message that names a wait resolves that one and no other, and none if it has ended
// or is no wait for an operator (SPEC P2.3).
func TestP2_AnAnswerNamesItsQuestion(t *testing.T) {
	r := newRig(t)
	ask := func(wake waitingv1.Wake, item string) string {
		return r.waitFor(&waitingv1.WaitForRequest{Wake: wake, WorkItemId: item}).GetWait().GetWaitId()
	}
	first, second := ask(operatorInput, itemA), ask(operatorInput, itemB)
	answer := func(messageID, waitID string) {
		r.hear("", &agentv1.MessageQueued{Message: &agentv1.Message{
			MessageId: messageID, Kind: agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP,
			Origin: agentv1.Origin_ORIGIN_PARENT, AnsweredWaitId: waitID,
		}})
	}
	answer("msg_0", "wt_00000000000000000000000zzz")
	require.Equal(t, stands, r.wait(first).GetStatus())
	require.Equal(t, stands, r.wait(second).GetStatus())
	answer("msg_1", second)
	require.Equal(t, stands, r.wait(first).GetStatus())
	require.Equal(t, came, r.wait(second).GetStatus())
	require.Equal(t, "msg_1", r.wait(second).GetEndedBy())
	answer("msg_2", second)
	require.Equal(t, stands, r.wait(first).GetStatus(), "it named another one, which has ended")
	elsewhere := ask(external, itemB)
	answer("msg_3", elsewhere)
	require.Equal(t, stands, r.wait(elsewhere).GetStatus())
	require.Equal(t, stands, r.wait(first).GetStatus())
	answer("msg_4", first)
	require.Equal(t, came, r.wait(first).GetStatus())
}

func TestP1_IntentsAndCancelling(t *testing.T) {
	r := newRig(t)
	create := func(req *waitingv1.CreateWaitRequest) (*waitingv1.CreateWaitResponse, error) {
		req.AgentId = "keeper"
		return r.service.CreateWait(r.agent(), req)
	}
	r.others.set(func() { r.others.current = itemB })
	first, err := create(&waitingv1.CreateWaitRequest{Source: "github", Condition: "a review", RequestId: "r1"})
	require.NoError(t, err)
	require.Empty(t, first.GetWait().GetWorkItemId(), "an interest is the agent's unless it names an item")
	require.Equal(t, waitingv1.WaitMode_WAIT_MODE_INTENT, first.GetWait().GetMode())
	again, err := create(&waitingv1.CreateWaitRequest{Source: "github", Condition: "a review", RequestId: "r1"})
	require.NoError(t, err)
	require.Equal(t, first.GetWait().GetWaitId(), again.GetWait().GetWaitId())
	for range 3 { // any number
		must.Value(create(&waitingv1.CreateWaitRequest{WorkItemId: itemA, Source: "github"}))(t)
	}
	for name, req := range map[string]*waitingv1.CreateWaitRequest{
		"an unknown trigger": {Resource: "trg_00000000000000000000000zzz"}, "a completed item": {WorkItemId: gone},
		"a long source": {Source: strings.Repeat("s", 257)}, "a long condition": {
			Condition: strings.Repeat("s", 16<<10+1),
		},
	} {
		require.Error(t, must.Err(create(req)), name)
	}

	cancel := func(waitID string) (*waitingv1.CancelWaitResponse, error) {
		return r.service.CancelWait(r.agent(), &waitingv1.CancelWaitRequest{AgentId: "keeper", WaitId: waitID})
	}
	before := len(r.events())
	for range 2 {
		resp := must.Value(cancel(first.GetWait().GetWaitId()))(t)
		require.Equal(t, over, resp.GetWait().GetStatus())
		require.EqualValues(t, 2, resp.GetWait().GetRevision())
	}
	require.Equal(t, []string{"wait_cancelled"}, r.since(before))
	must.Refuse(cancel("wt_00000000000000000000000zzz"))(t, fault.NotFound)
	// Another agent's wait looks like none.
	must.Refuse(r.service.CancelWait(planetest.AsAgent(t.Context(), "other"), &waitingv1.CancelWaitRequest{
		AgentId: "other", WaitId: first.GetWait().GetWaitId(),
	}))(t, fault.NotFound)

	l := must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{
		AgentId: "keeper", WorkItemId: itemA, PageSize: 2,
	}))(t)
	require.Len(t, l.GetWaits(), 2)
	l = must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{
		AgentId: "keeper", WorkItemId: itemA, PageSize: 2, PageToken: l.GetNextPageToken(),
	}))(t)
	require.Len(t, l.GetWaits(), 1)
	l, err = r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper", IncludeEnded: true})
	require.NoError(t, err)
	require.Len(t, l.GetWaits(), 4)
}

// A repeated WaitFor says no more of the wait than the first one did: the work
// plane is told of deliveries by their events (SPEC X2).
func TestX2_ARepeatedWaitTellsNothingNew(t *testing.T) {
	r := newRig(t)
	token := r.trigger(itemA, wakeHint).GetToken()
	req := &waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, RequestId: "once"}
	r.waitFor(req)
	r.deliver(token, "")
	r.deliver(token, "")
	r.waitFor(req)
	for _, a := range r.others.attaches() {
		require.EqualValues(t, 1, a.GetWait().GetRevision())
		require.Zero(t, a.GetWait().GetTriggerCount())
	}
}

// An agent that asks for the wait that it itself has changes nothing; another reason, or a time to be
// reminded, makes another wait.
func TestP1_TheSameWaitAgain(t *testing.T) {
	r := newRig(t)
	first := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, Reason: "which one?"})
	require.False(t, first.GetUnchanged())
	events := len(r.events())
	again := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, Reason: "which one?", RequestId: "r2"})
	require.True(t, again.GetUnchanged())
	require.Equal(t, first.GetWait().GetWaitId(), again.GetWait().GetWaitId())
	require.Empty(t, again.GetReplacedWaitId())
	require.Len(t, r.events(), events)
	for _, req := range []*waitingv1.WaitForRequest{
		{Wake: operatorInput, Reason: "which other one?"},
		{Wake: external, Reason: "which other one?"},
		{Wake: external, Reason: "which other one?", RecheckAfter: durationpb.New(time.Hour)},
		{Wake: waitingv1.Wake_WAKE_TIMER, Reason: "which other one?", After: durationpb.New(time.Hour)},
		{Wake: waitingv1.Wake_WAKE_TIMER, Reason: "which other one?", After: durationpb.New(time.Hour)},
	} {
		resp := r.waitFor(req)
		require.False(t, resp.GetUnchanged(), "%v", req)
		require.NotEmpty(t, resp.GetReplacedWaitId(), "%v", req)
	}
	for range 2 {
		require.False(t, r.waitFor(&waitingv1.WaitForRequest{
			Wake: operatorInput, Reason: "of an item", WorkItemId: itemA,
		}).GetUnchanged())
	}
}
