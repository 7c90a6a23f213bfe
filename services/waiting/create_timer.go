package waiting

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
)

// CreateTimer creates a timer that fires once or repeatedly (SPEC P4).
func (s *Service) CreateTimer(ctx context.Context, req *waitingv1.CreateTimerRequest) (*waitingv1.CreateTimerResponse,
	error,
) {
	if err := fault.First(
		admitWrite(ctx, req),
		validItemID(req.GetWorkItemId()),
		fault.TextBytes("description", req.GetDescription(), fault.MaxFreeTextBytes, false),
		validTime(req.GetAfter(), req.GetAt(), req.GetEvery() != nil),
		validSpan("every", req.GetEvery(), Shortest),
		validCount(req),
	); err != nil {
		return nil, err
	}
	target, refused := s.target(ctx, req.GetAgentId(), req.GetWorkItemId(), false)
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CreateTimerResponse]{
		Method: "CreateTimer", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: forAgent(req.GetAgentId(), refused,
			func(st *State, env journal.Env) (journal.Decision[*waitingv1.CreateTimerResponse], error) {
				if a := st.agents.Get(plane.KeyOf(env.Actor.Namespace, req.GetAgentId())); a != nil && target != "" &&
					a.items.Has(target) {
					return journal.Decision[*waitingv1.CreateTimerResponse]{}, itemCompleted(target)
				}
				return decideCreateTimer(env, req, target)
			}),
		Answer: journal.AnswerOf(func(p *waitingv1.TimerCreated) *waitingv1.CreateTimerResponse {
			return &waitingv1.CreateTimerResponse{Timer: p.GetTimer()}
		}),
	})
}

// validCount refuses a negative count, and a count without a period.
func validCount(req *waitingv1.CreateTimerRequest) error {
	switch n := req.GetCount(); {
	case n < 0:
		return fault.Invalid("count", strconv.FormatInt(n, 10), "must be 0 (without end) or more")
	case n > 0 && req.GetEvery() == nil:
		return fault.Invalid("count", strconv.FormatInt(n, 10), "needs every: a timer without a period fires once")
	}
	return nil
}

// decideCreateTimer is the rule of CreateTimer. target is the item of the timer, empty for the
// agent.
func decideCreateTimer(env journal.Env, req *waitingv1.CreateTimerRequest, target string) (
	journal.Decision[*waitingv1.CreateTimerResponse], error,
) {
	var d journal.Decision[*waitingv1.CreateTimerResponse]
	repeats := req.GetEvery() != nil // then the first time may have passed
	if err := within("at", env.Now, req.GetAt(), repeats); err != nil {
		return d, err
	}
	t := &waitingv1.Timer{
		TimerId: env.NewID("tmr_"), AgentId: req.GetAgentId(), WorkItemId: target, Description: req.GetDescription(),
		Status:   waitingv1.TimerStatus_TIMER_STATUS_ACTIVE,
		Revision: 1, CreatedAt: timestamppb.New(env.Now), Count: req.GetCount(),
	}
	after := req.GetAfter()
	if repeats {
		// Whole microseconds, like the times in the journal: slots are counted from
		// start_at, and with a fraction of a microsecond left over one slot could fire twice.
		t.Every = durationpb.New(req.GetEvery().AsDuration().Truncate(time.Microsecond))
		if after == nil && req.GetAt() == nil {
			after = t.GetEvery()
		}
	}
	t.NextFireAt = dueAt(env.Now, after, req.GetAt())
	if t.GetEvery() != nil {
		t.StartAt = t.GetNextFireAt()
	}
	d.Events = []*journal.Event{timerEvent(env.Actor.Namespace, t, &waitingv1.TimerCreated{Timer: t})}
	return d, nil
}

// timerEvent returns the event of a payload about a timer.
func timerEvent(namespace string, t *waitingv1.Timer, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace: namespace, AgentID: t.GetAgentId(), WorkItemID: t.GetWorkItemId(),
		Payload: payload,
	}
}

// fired returns a copy of a timer after it fired at now. Its next time follows from the first
// one and not from now, so that a late fire does not shift the others. Times that have passed
// are skipped and counted. A timer without a period, or that has now fired Count times, is
// completed. t must be due at now.
func fired(t *waitingv1.Timer, now time.Time) *waitingv1.Timer {
	n := proto.CloneOf(t)
	n.Revision++
	n.FireCount++
	n.LastFiredAt = timestamppb.New(now)
	every := t.GetEvery().AsDuration()
	if t.GetEvery() == nil || t.GetCount() > 0 && n.GetFireCount() >= t.GetCount() {
		n.Status, n.NextFireAt = waitingv1.TimerStatus_TIMER_STATUS_COMPLETED, nil
		return n
	}
	// Count the times from the first one, which is 0: slot is the time that is due, passed the last one until now.
	start := t.GetStartAt().AsTime()
	slot, passed := int64(t.GetNextFireAt().AsTime().Sub(start)/every), int64(now.Sub(start)/every)
	n.SkippedCount += passed - slot
	n.NextFireAt = pbjson.Timestamp(start.Add(every * time.Duration(passed+1)))
	return n
}
