package waiting

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"

	"google.golang.org/protobuf/proto"
)

// CancelTimer cancels a timer. A timer that has ended is returned unchanged, so the call is
// idempotent. One that ended so long ago that it was dropped from memory (keptEnded) is
// NOT_FOUND.
func (s *Service) CancelTimer(ctx context.Context, req *waitingv1.CancelTimerRequest) (*waitingv1.CancelTimerResponse, error) {
	if err := fault.First(admitWrite(ctx, req), fault.ID("timer_id", req.GetTimerId(), "tmr_")); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CancelTimerResponse]{
		Method: "CancelTimer", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.CancelTimerResponse], error) {
			var d journal.Decision[*waitingv1.CancelTimerResponse]
			var t *waitingv1.Timer
			if a := st.agents[plane.KeyOf(env.Actor.Namespace, req.GetAgentId())]; a != nil {
				t = a.timers.byID[req.GetTimerId()]
			}
			switch {
			case t == nil:
				return d, fault.NotFound.Newf("agent %q has no timer %q", req.GetAgentId(), req.GetTimerId()).With("timer_id", req.GetTimerId())
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

// ListTimers returns an agent's timers in order of creation.
func (s *Service) ListTimers(ctx context.Context, req *waitingv1.ListTimersRequest) (*waitingv1.ListTimersResponse, error) {
	ts, next, _, err := listed(ctx, s, "timers", req.GetAgentId(), req.GetPageSize(), req.GetPageToken(),
		func(a *agentWaits) *records[*waitingv1.Timer] { return &a.timers },
		func(t *waitingv1.Timer) bool {
			return req.GetIncludeEnded() || ticking(t)
		},
		func(_ *agentWaits, t *waitingv1.Timer) *waitingv1.Timer { return t })
	return &waitingv1.ListTimersResponse{Timers: ts, NextPageToken: next}, err
}

func ticking(t *waitingv1.Timer) bool {
	return t.GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE
}

func cancelledTimer(namespace string, t *waitingv1.Timer) *journal.Event {
	n := proto.CloneOf(t)
	n.Revision++
	n.Status, n.NextFireAt = waitingv1.TimerStatus_TIMER_STATUS_CANCELLED, nil
	return timerEvent(namespace, n, &waitingv1.TimerCancelled{Timer: n})
}
