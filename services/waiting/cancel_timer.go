package waiting

import (
	"context"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/waiting/records"
)

// CancelTimer cancels a timer. A timer that has ended is returned unchanged. One that ended so
// long ago that it was dropped from memory (records.KeptEnded) is NOT_FOUND.
func (s *Service) CancelTimer(ctx context.Context, req *waitingv1.CancelTimerRequest) (*waitingv1.CancelTimerResponse,
	error,
) {
	if err := fault.First(admitWrite(ctx, req), fault.ID("timer_id", req.GetTimerId(), "tmr_")); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CancelTimerResponse]{
		Frees: true, Method: "CancelTimer", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.CancelTimerResponse], error) {
			var d journal.Decision[*waitingv1.CancelTimerResponse]
			t, err := st.timer(env.Actor.Namespace, req.GetAgentId(), req.GetTimerId())
			switch {
			case err != nil:
				return d, err
			case !ticking(t):
				d.Reply = &waitingv1.CancelTimerResponse{Timer: t}
				return d, nil
			}
			d.Events = []*journal.Event{cancelledTimer(env.Actor.Namespace, t)}
			return d, nil
		},
		Answer: journal.AnswerOf(func(p *waitingv1.TimerCancelled) *waitingv1.CancelTimerResponse {
			return &waitingv1.CancelTimerResponse{Timer: p.GetTimer()}
		}),
	})
}

// GetTimer returns one timer (SPEC P4.2).
func (s *Service) GetTimer(ctx context.Context, req *waitingv1.GetTimerRequest) (*waitingv1.GetTimerResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admit(actor, req.GetAgentId()), fault.ID("timer_id", req.GetTimerId(), "tmr_")); err != nil {
		return nil, err
	}
	t, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*waitingv1.Timer, error) {
		return st.timer(actor.Namespace, req.GetAgentId(), req.GetTimerId())
	})
	if err != nil {
		return nil, err
	}
	return &waitingv1.GetTimerResponse{Timer: t}, nil
}

// ListTimers returns an agent's timers in order of creation: the active ones, or with
// include_ended also those that ended and are still in memory.
func (s *Service) ListTimers(ctx context.Context, req *waitingv1.ListTimersRequest) (*waitingv1.ListTimersResponse,
	error,
) {
	ts, next, _, err := listed(ctx, s, "timers", req.GetAgentId(), req.GetPageSize(), req.GetPageToken(),
		func(a *agentWaits) *records.Set[*waitingv1.Timer] { return &a.timers },
		req.GetIncludeEnded(), func(t *waitingv1.Timer) bool { return req.GetIncludeEnded() || ticking(t) },
		func(_ *agentWaits, t *waitingv1.Timer) *waitingv1.Timer { return t })
	return &waitingv1.ListTimersResponse{Timers: ts, NextPageToken: next}, err
}

// ticking reports whether a timer has not ended; false for nil.
func ticking(t *waitingv1.Timer) bool {
	return t.GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE
}

// cancelledTimer returns the event that a timer was cancelled.
func cancelledTimer(namespace string, t *waitingv1.Timer) *journal.Event {
	n := proto.CloneOf(t)
	n.Revision++
	n.Status, n.NextFireAt = waitingv1.TimerStatus_TIMER_STATUS_CANCELLED, nil
	return timerEvent(namespace, n, &waitingv1.TimerCancelled{Timer: n})
}
