package waiting

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateTimer sets a point in time (SPEC P4).
func (s *Service) CreateTimer(ctx context.Context, req *waitingv1.CreateTimerRequest) (*waitingv1.CreateTimerResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admitWrite(actor, req.GetAgentId()),
		fault.RequestID(req.GetRequestId()),
		itemID(req.GetWorkItemId()),
		fault.TextBytes("description", req.GetDescription(), fault.MaxFreeTextBytes, false),
		validTime(req.GetAfter(), req.GetAt()),
	); err != nil {
		return nil, err
	}
	target, refused := s.target(ctx, req.GetAgentId(), req.GetWorkItemId(), false)
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CreateTimerResponse]{
		Method: "CreateTimer", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(_ *State, env journal.Env) (journal.Decision[*waitingv1.CreateTimerResponse], error) {
			if refused != nil { // for the rule to say: a repetition has its first answer
				return journal.Decision[*waitingv1.CreateTimerResponse]{}, refused
			}
			t := &waitingv1.Timer{
				TimerId: env.NewID("tmr_"), AgentId: req.GetAgentId(), WorkItemId: target, Description: req.GetDescription(),
				Status: waitingv1.TimerStatus_TIMER_STATUS_ACTIVE, NextFireAt: dueAt(env.Now, req.GetAfter(), req.GetAt()),
				Revision: 1, CreatedAt: timestamppb.New(env.Now),
			}
			return journal.Decision[*waitingv1.CreateTimerResponse]{
				Events: []*journal.Event{timerEvent(env.Actor.Namespace, t, &waitingv1.TimerCreated{Timer: t})},
			}, nil
		},
		Answer: func(events []*journal.Event) (*waitingv1.CreateTimerResponse, error) {
			for _, ev := range events {
				if p, ok := ev.Payload.(*waitingv1.TimerCreated); ok {
					return &waitingv1.CreateTimerResponse{Timer: p.GetTimer()}, nil
				}
			}
			return nil, fmt.Errorf("waiting: no timer_created among %d events", len(events))
		},
	})
}

func timerEvent(namespace string, t *waitingv1.Timer, payload proto.Message) *journal.Event {
	return &journal.Event{Namespace: namespace, AgentID: t.GetAgentId(), WorkItemID: t.GetWorkItemId(), Payload: payload}
}

// CancelTimer gives a timer up. Repeating it changes nothing.
func (s *Service) CancelTimer(ctx context.Context, req *waitingv1.CancelTimerRequest) (*waitingv1.CancelTimerResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admitWrite(actor, req.GetAgentId()),
		fault.RequestID(req.GetRequestId()),
		fault.ID("timer_id", req.GetTimerId(), "tmr_"),
	); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CancelTimerResponse]{
		Method: "CancelTimer", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.CancelTimerResponse], error) {
			var d journal.Decision[*waitingv1.CancelTimerResponse]
			var t *waitingv1.Timer
			if a := st.agents[key{env.Actor.Namespace, req.GetAgentId()}]; a != nil {
				t = a.timers.byID[req.GetTimerId()]
			}
			switch {
			case t == nil:
				return d, fault.NotFound.Newf("agent %q has no timer %q", req.GetAgentId(), req.GetTimerId()).With("timer_id", req.GetTimerId())
			case t.GetStatus() != waitingv1.TimerStatus_TIMER_STATUS_ACTIVE:
				d.Reply = &waitingv1.CancelTimerResponse{Timer: t}
				return d, nil
			}
			n := proto.CloneOf(t)
			n.Revision++
			n.Status, n.NextFireAt = waitingv1.TimerStatus_TIMER_STATUS_CANCELLED, nil
			d.Events = []*journal.Event{timerEvent(env.Actor.Namespace, n, &waitingv1.TimerCancelled{Timer: n})}
			return d, nil
		},
		Answer: func(events []*journal.Event) (*waitingv1.CancelTimerResponse, error) {
			for _, ev := range events {
				if p, ok := ev.Payload.(*waitingv1.TimerCancelled); ok {
					return &waitingv1.CancelTimerResponse{Timer: p.GetTimer()}, nil
				}
			}
			return nil, fmt.Errorf("waiting: no timer_cancelled among %d events", len(events))
		},
	})
}

// ListTimers reads an agent's timers in order of creation.
func (s *Service) ListTimers(ctx context.Context, req *waitingv1.ListTimersRequest) (*waitingv1.ListTimersResponse, error) {
	ts, next, _, err := listed(ctx, s, "timers", req.GetAgentId(), req.GetPageSize(), req.GetPageToken(),
		func(a *agentWaits) *records[*waitingv1.Timer] { return &a.timers },
		func(t *waitingv1.Timer) bool {
			return req.GetIncludeEnded() || t.GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE
		})
	return &waitingv1.ListTimersResponse{Timers: ts, NextPageToken: next}, err
}

// The due-time index holds waits and timers by kind, namespace, agent and id.
// It is rebuilt from state at every start, so overdue ones fire then, once.
func dueKey(kind, namespace, agentID, id string) string {
	return strings.Join([]string{kind, namespace, agentID, id}, "\x00")
}

// index keeps the due-time index up to date with what is durable. It runs in
// the journal's loop.
func (s *Service) index(_ int, events []*journal.Event) {
	for _, ev := range events {
		switch p := ev.Payload.(type) {
		case *waitingv1.WaitRegistered:
			s.indexWait(ev.Namespace, p.GetWait())
		case *waitingv1.WaitResolved:
			s.due.Remove(dueKey("wait", ev.Namespace, ev.AgentID, p.GetWait().GetWaitId()))
		case *waitingv1.WaitCancelled:
			s.due.Remove(dueKey("wait", ev.Namespace, ev.AgentID, p.GetWait().GetWaitId()))
		case *waitingv1.TimerCreated:
			s.indexTimer(ev.Namespace, p.GetTimer())
		case *waitingv1.TimerCancelled:
			s.due.Remove(dueKey("timer", ev.Namespace, ev.AgentID, p.GetTimer().GetTimerId()))
		}
	}
}

func (s *Service) indexWait(namespace string, w *waitingv1.Wait) {
	if active(w) && w.GetDueAt() != nil {
		s.due.Set(dueKey("wait", namespace, w.GetAgentId(), w.GetWaitId()), w.GetDueAt().AsTime())
	}
}

func (s *Service) indexTimer(namespace string, t *waitingv1.Timer) {
	if t.GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE {
		s.due.Set(dueKey("timer", namespace, t.GetAgentId(), t.GetTimerId()), t.GetNextFireAt().AsTime())
	}
}

// reindex rebuilds the index from a state that was loaded.
func (s *Service) reindex(st *State) {
	for k, a := range st.agents {
		for _, w := range a.waits.byID {
			s.indexWait(k.namespace, w)
		}
		for _, t := range a.timers.byID {
			s.indexTimer(k.namespace, t)
		}
	}
}

// fire brings about what is due. The journal decides whether it still is, so a
// fire that comes twice, or after a cancel, changes nothing.
func (s *Service) fire(keys []string) {
	// An agent's fire in their order; those of different agents share frames,
	// so that what fell due while the process was down costs few fsyncs.
	byAgent := map[key][][]string{}
	for _, k := range keys {
		if parts := strings.Split(k, "\x00"); len(parts) == 4 {
			agent := key{parts[1], parts[2]}
			byAgent[agent] = append(byAgent[agent], parts)
		}
	}
	var firing sync.WaitGroup
	for agent, due := range byAgent {
		firing.Go(func() {
			for _, parts := range due {
				if err := s.fireOne(parts[0], agent, parts[3]); err != nil {
					s.deps.Logger.Warn("could not fire; trying again", zap.String("id", parts[3]), zap.Error(err))
					s.due.Set(strings.Join(parts, "\x00"), s.deps.Clock.Now().Add(time.Second))
				}
			}
		})
	}
	firing.Wait()
}

func (s *Service) fireOne(kind string, k key, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var early time.Time
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, struct{}]{
		Method: "Fire", AgentID: k.id, Actor: plane.System(k.namespace),
		Decide: func(st *State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			early = time.Time{}
			a := st.agents[k]
			if a == nil {
				return d, nil
			}
			if kind == "wait" {
				switch w := a.waits.byID[id]; {
				case !active(w) || w.GetDueAt() == nil:
				case w.GetDueAt().AsTime().After(env.Now):
					early = w.GetDueAt().AsTime()
				default:
					d.Events = []*journal.Event{resolved(k.namespace, w, env, causeTimer, id)}
				}
				return d, nil
			}
			switch t := a.timers.byID[id]; {
			case t.GetStatus() != waitingv1.TimerStatus_TIMER_STATUS_ACTIVE:
			case t.GetNextFireAt().AsTime().After(env.Now):
				early = t.GetNextFireAt().AsTime()
			default:
				n := proto.CloneOf(t)
				n.Revision++
				n.FireCount++
				n.LastFiredAt = timestamppb.New(env.Now)
				n.Status, n.NextFireAt = waitingv1.TimerStatus_TIMER_STATUS_COMPLETED, nil
				d.Events = []*journal.Event{timerEvent(k.namespace, n, &waitingv1.TimerFired{Timer: n, DueAt: t.GetNextFireAt()})}
			}
			return d, nil
		},
	})
	if err == nil && !early.IsZero() {
		// The clock stepped back since the alarm rang. It rings again.
		s.due.Set(dueKey(kind, k.namespace, k.id, id), early)
	}
	return err
}
