package waiting

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane/planetest"
)

// month is what a month's agents asked for, and what came of it.
type month struct {
	r      *rig
	rand   *rand.Rand
	timers map[string]*waitingv1.Timer // as made
	waits  map[string]time.Time        // timer waits, by when they are due
	remind map[string]time.Time
	expire map[string]time.Time
}

// A month of 10 000 agents by the test's clock, with restarts in between:
// everything fires exactly once, nothing early, and repeats stay at their slots
// (SPEC P4, P5, P3, X14).
func TestX14_AMonthOfTenThousandAgents(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	const agents, days = 10_000, 30
	m := &month{
		r: newRig(t), rand: rand.New(rand.NewPCG(7, 11)), timers: map[string]*waitingv1.Timer{},
		waits: map[string]time.Time{}, remind: map[string]time.Time{}, expire: map[string]time.Time{},
	}
	m.ask(agents, days*24*time.Hour)
	// What falls due in a step fires in that step, unless the process was down.
	const step = 8 * time.Hour
	var downs []span
	crashes := 0
	const steps = 80 // about a month of them
	trouble := m.rand.Perm(steps)[:4]
	for n := 0; m.r.clk.Now().Before(epoch.Add((days + 1) * 24 * time.Hour)); n++ {
		switch at := slices.Index(trouble, n); {
		case at >= 0 && at < 2: // a crash, and back at once
			m.r.restart()
			crashes++
		case at >= 2: // a night without it
			m.r.down()
			down := span{m.r.clk.Now(), m.r.clk.Now().Add(time.Duration(m.rand.Int64N(int64(30 * time.Hour))))}
			m.r.clk.Set(down.to)
			downs = append(downs, down)
			m.r.up()
		default:
			m.r.clk.Advance(step)
		}
		m.r.idle()
	}
	require.GreaterOrEqual(t, len(downs), 2)
	require.GreaterOrEqual(t, crashes, 2)
	m.r.restart()
	m.r.idle()
	m.check(step, downs)
}

type span struct{ from, to time.Time }

// ask makes every agent's timers, waits, reminders and triggers.
func (m *month) ask(agents int, within time.Duration) {
	type made struct {
		timer  *waitingv1.Timer
		wait   *waitingv1.Wait
		remind *waitingv1.Wait
		expiry *waitingv1.Trigger
	}
	out := make([]made, agents)
	some := func(i int, salt uint64) time.Duration { // the same whatever the order
		return time.Duration(rand.New(rand.NewPCG(uint64(i), salt)).Int64N(int64(within)))
	}
	var asking sync.WaitGroup
	const callers = 64
	for c := range callers {
		asking.Go(func() {
			for i := c; i < agents; i += callers {
				out[i] = func() (x made) {
					agent := fmt.Sprintf("agent-%d", i)
					ctx := planetest.AsAgent(context.Background(), agent)
					req := &waitingv1.CreateTimerRequest{AgentId: agent, After: durationpb.New(some(i, 1))}
					if i%3 == 0 {
						req.Every, req.Count = durationpb.New(36*time.Hour+some(i, 2)/8), int64(i%5)
					}
					x.timer = must.Value(m.r.service.CreateTimer(ctx, req))(m.r.t).GetTimer()
					switch i % 4 {
					case 0:
						x.wait = must.Value(m.r.service.WaitFor(ctx, &waitingv1.WaitForRequest{
							AgentId: agent, Reason: "later", Wake: timer, After: durationpb.New(some(i, 3)),
						}))(m.r.t).GetWait()
					case 1:
						x.remind = must.Value(m.r.service.WaitFor(ctx, &waitingv1.WaitForRequest{
							AgentId: agent, Reason: "you",
							Wake: operatorInput, RecheckAfter: durationpb.New(some(i, 4)),
						}))(m.r.t).GetWait()
					case 2:
						t := must.Value(m.r.service.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{
							AgentId: agent, ExpiresAt: timestamppb.New(epoch.Add(time.Second + some(i, 5))),
						}))(m.r.t)
						x.expiry = t.GetTrigger()
					}
					return x
				}()
			}
		})
	}
	asking.Wait()
	for _, x := range out {
		m.timers[x.timer.GetTimerId()] = x.timer
		if x.wait != nil {
			m.waits[x.wait.GetWaitId()] = x.wait.GetDueAt().AsTime()
		}
		if x.remind != nil {
			m.remind[x.remind.GetWaitId()] = x.remind.GetRecheckAt().AsTime()
		}
		if x.expiry != nil {
			m.expire[x.expiry.GetTriggerId()] = x.expiry.GetExpiresAt().AsTime()
		}
	}
}

// check reads the whole journal and compares it with what was asked for.
func (m *month) check(step time.Duration, downs []span) {
	t := m.r.t
	onTime := func(due, at time.Time, what string) {
		if at.Before(due) {
			t.Fatalf("%s fired at %s, before %s", what, at, due)
		}
		// At the end of the step in which it was due, or of the time away.
		latest := due.Add(step)
		for _, d := range downs {
			if !due.Before(d.from) && !due.After(d.to) {
				latest = d.to
			}
		}
		if at.After(latest) {
			t.Fatalf("%s was due at %s and fired at %s", what, due, at)
		}
	}
	fires := map[string][]*waitingv1.TimerFired{}
	once := map[string]int{}
	for _, ev := range m.r.events() {
		switch p := ev.Payload.(type) {
		case *waitingv1.TimerFired:
			onTime(p.GetDueAt().AsTime(), ev.CreatedAt, p.GetTimer().GetTimerId())
			fires[p.GetTimer().GetTimerId()] = append(fires[p.GetTimer().GetTimerId()], p)
		case *waitingv1.WaitResolved:
			once[p.GetWait().GetWaitId()]++
			onTime(m.waits[p.GetWait().GetWaitId()], ev.CreatedAt, "a wait")
		case *waitingv1.WaitRechecked:
			once[p.GetWait().GetWaitId()]++
			onTime(m.remind[p.GetWait().GetWaitId()], ev.CreatedAt, "a reminder")
		case *waitingv1.TriggerExpired:
			once[p.GetTrigger().GetTriggerId()]++
			onTime(m.expire[p.GetTrigger().GetTriggerId()], ev.CreatedAt, "an expiry")
		}
	}
	require.Len(t, once, len(m.waits)+len(m.remind)+len(m.expire))
	for id, n := range once {
		require.Equal(t, 1, n, id)
	}
	now, repeats := m.r.clk.Now(), 0
	for id, made := range m.timers {
		m.checkTimer(made, fires[id], now)
		if made.GetEvery() != nil {
			repeats += len(fires[id])
		}
	}
	require.Greater(t, repeats, len(m.timers)/2, "the month had repeats")
}

func (m *month) checkTimer(made *waitingv1.Timer, fires []*waitingv1.TimerFired, now time.Time) {
	t := m.r.t
	require.NotEmpty(t, fires, made)
	require.Equal(t, made.GetNextFireAt().AsTime(), fires[0].GetDueAt().AsTime())
	if made.GetEvery() == nil {
		require.Len(t, fires, 1)
		return
	}
	start, every := made.GetStartAt().AsTime(), made.GetEvery().AsDuration()
	var last time.Time
	for n, f := range fires {
		require.EqualValues(t, n+1, f.GetTimer().GetFireCount())
		require.Zero(t, f.GetDueAt().AsTime().Sub(start)%every, "a slot, and no drift")
		require.True(t, f.GetDueAt().AsTime().After(last))
		last = f.GetDueAt().AsTime()
	}
	end := fires[len(fires)-1].GetTimer()
	if made.GetCount() > 0 && int64(len(fires)) >= made.GetCount() {
		require.Len(t, fires, int(made.GetCount()))
		require.Equal(t, waitingv1.TimerStatus_TIMER_STATUS_COMPLETED, end.GetStatus())
		return
	}
	// Every slot up to now had its fire or was skipped.
	require.EqualValues(t, now.Sub(start)/every+1, end.GetFireCount()+end.GetSkippedCount())
}
