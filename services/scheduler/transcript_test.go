package scheduler

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

// TestPlanTranscripts runs testdata/plan-*.txt: facts, and what is made of them.
// Times are ago, durations like 40s.
//
//	agent [control=stopped|paused by=olga since=40s reason=…] [idle=3] [failed=3] [last=5m] [lifecycle=deleted]
//	run [turn=… since=12s round=4 runner=X lease=20s] [by=…]
//	lane queued=2 since=5s [ahead=3] [runners=1] [tick=pick_queued]
//	woken by=trg_1 since=3s
//	shown wait=wt_1 count=2
//	stalled id=a turns=3 since=1m
//	item id=a class=current|triggered|queued|passed|operator|blocked|completed [is=runnable|blocked|asking] [says=…]
//	     [blocked=reason] [needs=input] [wait=task|external|timer|operator on=tsk_1 since=40s triggers=2 seen=1 at=10s] [recheck=5s|-5s]
//	changed since=10s
//	plan            the verdict, its sentence, and what is said of each candidate
//	facts           the list of facts
//	forget          begin anew
//
// In values a dot stands for a blank.
func TestPlanTranscripts(t *testing.T) {
	planetest.Transcripts(t, "testdata/plan-*.txt", func(*testing.T) planetest.Stage {
		s := &stage{}
		s.forget()
		return s
	})
}

type stage struct{ f Facts }

func (s *stage) forget() { s.f = facts() }

// Do runs one line of a transcript.
func (s *stage) Do(t *testing.T, l planetest.Line, _ *planetest.Names) string {
	o := options{t, l.Options}
	switch l.Verb {
	case "forget":
		s.forget()
	case "agent":
		s.agent(o)
	case "run":
		s.f.Agent.Agent.CurrentRunId = "run_1"
		if o.text("turn") != "" {
			s.f.Agent.OpenTurn = &agentv1.Turn{
				TurnId: o.text("turn"), RunId: "run_1", StartedAt: o.ago("since"), Rounds: o.number("round"),
				RunnerId: o.text("runner"), AcquiredBy: o.text("by"), LeaseExpiresAt: o.ahead("lease"),
			}
		}
	case "lane":
		s.f.Agent.Queued, s.f.Agent.HeadQueuedAt = o.number("queued"), o.ago("since")
		s.f.Agent.ReadyAhead, s.f.Agent.RunnersWaiting = o.number("ahead"), o.number("runners")
		s.f.Agent.QueuedInput = s.f.Agent.GetQueued()
		if tick := o.from["tick"]; tick != "" {
			s.f.Agent.QueuedInput--
			s.f.Agent.TickPending = true
			s.f.Agent.LastDecision = &agentv1.Decision{
				Action:     ActionTick,
				TickReason: agentv1.TickReason(agentv1.TickReason_value["TICK_REASON_"+strings.ToUpper(tick)]),
			}
		}
	case "woken":
		s.f.Agent.WakeHint, s.f.Agent.WakeHintSource, s.f.Agent.WokenAt = true, o.text("by"), o.ago("since")
	case "shown":
		s.f.Agent.ShownWaits = append(s.f.Agent.ShownWaits, &agentv1.ShownWait{
			WaitId:       o.text("wait"),
			TriggerCount: int64(o.number("count")),
		})
	case "stalled":
		s.f.Agent.StalledItems = append(s.f.Agent.StalledItems, &agentv1.StalledItem{
			WorkItemId: o.text("id"), Turns: o.number("turns"), Since: o.ago("since"),
		})
	case "changed":
		s.f.Queue.ChangedAt = o.ago("since")
	case "item":
		s.item(t, o)
	case "plan":
		return s.plan()
	case "facts":
		var b strings.Builder
		for _, fact := range account(s.f).GetFacts() {
			fmt.Fprintf(&b, "%s=%s\n", fact.GetName(), fact.GetValue())
		}
		return b.String()
	default:
		require.Fail(t, "no verb "+l.Verb)
	}
	return ""
}

func (s *stage) agent(o options) {
	a := s.f.Agent.Agent
	switch o.text("control") {
	case "stopped":
		a.Control = agentv1.Control_CONTROL_STOPPED
	case "paused":
		a.Control = agentv1.Control_CONTROL_PAUSED
	}
	if o.text("lifecycle") == "deleted" {
		a.Lifecycle = agentv1.Lifecycle_LIFECYCLE_DELETED
	}
	a.ControlBy, a.ControlAt, a.ControlReason = o.text("by"), o.ago("since"), o.text("reason")
	a.IdleTurns, s.f.Agent.FailedTicks = o.number("idle"), o.number("failed")
	s.f.Agent.LastTurnStartedAt = o.ago("last")
}

var readiness = map[string]workv1.Readiness{
	"runnable": runnable, "blocked": blocked, "asking": asking, "completed": workv1.Readiness_READINESS_COMPLETED,
}

var usual = map[string]string{
	"current": "runnable", "triggered": "blocked", "queued": "runnable", "passed": "runnable",
	"operator": "asking", "blocked": "blocked", "completed": "completed",
}

func (s *stage) item(t *testing.T, o options) {
	class := o.text("class")
	is := o.text("is")
	if is == "" {
		is = usual[class]
	}
	it := item(o.text("id"), readiness[is])
	it.Objective, it.BlockedBy = "objective of "+it.GetWorkItemId(), o.text("blocked")
	if says := o.text("says"); says != "" {
		it.Objective = says
	}
	if o.text("needs") == "input" {
		it.PlanStatus = workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT
	}
	if kind := o.text("wait"); kind != "" {
		w := &workv1.AttachedWait{
			WaitId: "wt_" + it.GetWorkItemId(), Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Reason: "the reply",
			Resource: o.text("on"), CreatedAt: o.ago("since"),
			Kind:         waitingv1.WaitKind(waitingv1.WaitKind_value["WAIT_KIND_"+strings.ToUpper(kind)]),
			TriggerCount: int64(o.number("triggers")), ConsumedCount: int64(o.number("seen")),
			LastTriggeredAt: o.ago("at"),
		}
		it.Waits, it.HasTriggeredWaits = append(it.Waits, w), w.GetTriggerCount() > w.GetConsumedCount()
	}
	if at := o.ahead("recheck"); at != nil {
		it.RecheckAt = at
		s.f.Queue.Rechecks = append(s.f.Queue.Rechecks, it)
	}
	switch class {
	case "current":
		current(it)(&s.f)
	case "triggered":
		isTriggered(it)(&s.f)
	case "queued":
		inQueue(it)(&s.f)
	case "passed":
		isPassedOver(it)(&s.f)
	case "operator":
		asks(it)(&s.f)
	case "blocked":
		isBlocked(it)(&s.f)
	case "completed":
		it.State = workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
		s.f.Queue.CompletedRecent = append(s.f.Queue.CompletedRecent, it)
		s.f.Queue.Counts.Completed++
	default:
		require.Fail(t, "no class "+class)
	}
}

// plan prints the decision. Deciding twice, or in another order of asking, is
// the same: that is what pure means.
func (s *stage) plan() string {
	v, e := Plan(s.f), account(s.f)
	if again := Plan(s.f); again != v {
		return fmt.Sprintf("not pure: %v, then %v\n", v, again)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", actionName(e.GetVerdict().GetAction()), e.GetVerdict().GetReason())
	if v.ItemID != "" {
		fmt.Fprintf(&b, " %s@%d", v.ItemID, v.Revision)
	}
	fmt.Fprintf(&b, "\n%s\n", e.GetVerdict().GetExplanation())
	for _, c := range e.GetCandidates() {
		fmt.Fprintf(&b, "  %s: %s\n", c.GetWorkItemId(), c.GetWhy())
	}
	return b.String()
}

type options struct {
	t    *testing.T
	from map[string]string
}

func (o options) text(name string) string { return strings.ReplaceAll(o.from[name], ".", " ") }

func (o options) number(name string) int32 {
	if o.from[name] == "" {
		return 0
	}
	return int32(must.Value(strconv.ParseInt(o.from[name], 10, 32))(o.t))
}

func (o options) ahead(name string) *timestamppb.Timestamp {
	if o.from[name] == "" {
		return nil
	}
	return timestamppb.New(now.Add(must.Value(time.ParseDuration(o.from[name]))(o.t)))
}

func (o options) ago(name string) *timestamppb.Timestamp {
	at := o.ahead(name)
	if at == nil {
		return nil
	}
	return timestamppb.New(now.Add(-at.AsTime().Sub(now)))
}
