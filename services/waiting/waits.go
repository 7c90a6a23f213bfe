package waiting

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/waiting/records"
)

// CreateWait registers an intent for deliveries of triggers, which blocks nothing (SPEC P1).
func (s *Service) CreateWait(ctx context.Context, req *waitingv1.CreateWaitRequest) (*waitingv1.CreateWaitResponse,
	error,
) {
	if err := fault.First(
		admitWrite(ctx, req),
		validItemID(req.GetWorkItemId()),
		fault.Text("source", req.GetSource(), 256, false),
		fault.TextBytes("condition", req.GetCondition(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return nil, err
	}
	if req.GetResource() != "" {
		if err := fault.ID("resource", req.GetResource(), "trg_"); err != nil {
			return nil, err
		}
	}
	target, refused := s.target(ctx, req.GetAgentId(), req.GetWorkItemId(), false)
	reminded := refused == nil && s.reminded(ctx, req.GetAgentId(), target)
	resp, result, err := plane.DoResult(ctx, s.engine, plane.Command[*State, *waitingv1.CreateWaitResponse]{
		Method: "CreateWait", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: forAgent(req.GetAgentId(), refused,
			func(st *State, env journal.Env) (journal.Decision[*waitingv1.CreateWaitResponse], error) {
				var d journal.Decision[*waitingv1.CreateWaitResponse]
				a := st.agents.Get(plane.KeyOf(env.Actor.Namespace, req.GetAgentId()))
				if a != nil && target != "" && a.items.Has(target) {
					return d, itemCompleted(target)
				}
				described := ""
				if req.GetResource() != "" {
					t, err := st.trigger(env.Actor.Namespace, req.GetAgentId(), req.GetResource())
					if err != nil {
						return d, err
					}
					described = t.GetDescription()
				}
				w := &waitingv1.Wait{
					WaitId: env.NewID("wt_"), AgentId: req.GetAgentId(), WorkItemId: target,
					Mode: waitingv1.WaitMode_WAIT_MODE_INTENT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
					Source: req.GetSource(), Resource: req.GetResource(), Condition: req.GetCondition(),
					ResourceDescription: described,
					DeliveryMode:        req.GetDeliveryMode(), Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
					Revision: 1, CreatedAt: timestamppb.New(env.Now),
				}
				d.Events = []*journal.Event{
					waitEvent(env.Actor.Namespace, w, &waitingv1.WaitRegistered{
						Wait: w, WeakReason: a.weakIf(w, env.Now, reminded),
					}),
				}
				return d, nil
			}),
		Answer: journal.AnswerOf(func(p *waitingv1.WaitRegistered) *waitingv1.CreateWaitResponse {
			resp := &waitingv1.CreateWaitResponse{Wait: asStored(p.GetWait()), Warnings: warnings(p.GetWeakReason())}
			resp.Wait.WeakReason = p.GetWeakReason()
			return resp
		}),
	})
	if err != nil {
		return nil, err
	}
	return resp, s.attach(ctx, resp.GetWait(), result.Replayed)
}

// CancelWait cancels a wait or an intent. One that has ended is returned unchanged (SPEC P1).
func (s *Service) CancelWait(ctx context.Context, req *waitingv1.CancelWaitRequest) (*waitingv1.CancelWaitResponse,
	error,
) {
	if err := fault.First(admitWrite(ctx, req), fault.ID("wait_id", req.GetWaitId(), "wt_")); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CancelWaitResponse]{
		Frees: true, Method: "CancelWait", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.CancelWaitResponse], error) {
			var d journal.Decision[*waitingv1.CancelWaitResponse]
			w, err := st.wait(env.Actor.Namespace, req.GetAgentId(), req.GetWaitId())
			if err != nil {
				return d, err
			}
			if !active(w) {
				d.Reply = &waitingv1.CancelWaitResponse{Wait: asStored(w)}
				return d, nil
			}
			d.Events = []*journal.Event{
				cancelled(env.Actor.Namespace, w, env, waitingv1.WaitEndReason_WAIT_END_REASON_CANCELLED),
			}
			return d, nil
		},
		Answer: journal.AnswerOf(func(p *waitingv1.WaitCancelled) *waitingv1.CancelWaitResponse {
			return &waitingv1.CancelWaitResponse{Wait: asStored(p.GetWait())}
		}),
	})
}

// GetWait returns a wait or an intent.
func (s *Service) GetWait(ctx context.Context, req *waitingv1.GetWaitRequest) (*waitingv1.GetWaitResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admit(actor, req.GetAgentId()), fault.ID("wait_id", req.GetWaitId(), "wt_")); err != nil {
		return nil, err
	}
	now := s.deps.Clock.Now()
	w, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*waitingv1.Wait, error) {
		w, err := st.wait(actor.Namespace, req.GetAgentId(), req.GetWaitId())
		if err != nil {
			return nil, err
		}
		return st.agents.Get(plane.KeyOf(actor.Namespace, req.GetAgentId())).shown(w, now), nil
	})
	if err != nil {
		return nil, err
	}
	s.strengthen(ctx, w)
	s.addSupervision(ctx, req.GetAgentId(), w)
	return &waitingv1.GetWaitResponse{Wait: w}, nil
}

// maxNamed bounds the waits that ListWaits is asked for by id.
const maxNamed = 100

// listsWait reports whether the filter of a request includes a wait. An item, if named, must
// be that of the wait; ids and ended_by select waits whether or not they ended.
func listsWait(req *waitingv1.ListWaitsRequest, w *waitingv1.Wait) bool {
	switch {
	case req.GetWorkItemId() != "" && w.GetWorkItemId() != req.GetWorkItemId():
		return false
	case len(req.GetWaitIds()) > 0 || req.GetEndedBy() != "":
		return slices.Contains(req.GetWaitIds(), w.GetWaitId()) || req.GetEndedBy() != "" &&
			w.GetEndedBy() == req.GetEndedBy() ||
			req.GetAlsoActive() && active(w)
	}
	return req.GetIncludeEnded() || active(w)
}

// ListWaits returns an agent's waits and intents in order of creation.
func (s *Service) ListWaits(ctx context.Context, req *waitingv1.ListWaitsRequest) (*waitingv1.ListWaitsResponse,
	error,
) {
	if err := validItemID(req.GetWorkItemId()); err != nil {
		return nil, err
	}
	if err := fault.Entries("wait_ids", len(req.GetWaitIds()), maxNamed); err != nil {
		return nil, err
	}
	if err := fault.Text("ended_by", req.GetEndedBy(), fault.MaxNameChars, false); err != nil {
		return nil, err
	}
	now := s.deps.Clock.Now()
	ws, next, seq, err := listed(ctx, s, "waits", req.GetAgentId(), req.GetPageSize(), req.GetPageToken(),
		func(a *agentWaits) *records.Set[*waitingv1.Wait] { return &a.waits },
		req.GetIncludeEnded() || len(req.GetWaitIds()) > 0 || req.GetEndedBy() != "",
		func(w *waitingv1.Wait) bool { return listsWait(req, w) },
		func(a *agentWaits, w *waitingv1.Wait) *waitingv1.Wait { return a.shown(w, now) })
	if err != nil {
		return nil, err
	}
	if len(req.GetWaitIds()) == 0 && req.GetEndedBy() == "" && !req.GetAlsoActive() {
		// Lists that a turn reads name waits; it does not show why they are weak, and must
		// not wait for another call.
		s.strengthen(ctx, ws...)
		s.addSupervision(ctx, req.GetAgentId(), ws...)
	}
	return &waitingv1.ListWaitsResponse{Waits: ws, NextPageToken: next, Revision: seq}, nil
}

// listed checks that the caller may read what belongs to an agent, and returns one page of its records of one kind:
// of the Set that recordsOf returns, those that keep accepts, each as shown returns it. ended says that keep may accept
// some that have ended. next is the token of the next page, empty on the last, and seq the revision that was read. An
// agent that never existed is NOT_FOUND.
func listed[R records.Record](ctx context.Context, s *Service, kind, agentID string, pageSize int32, token string,
	recordsOf func(*agentWaits) *records.Set[R], ended bool, keep func(R) bool, shown func(*agentWaits, R) R,
) (out []R, next string, seq int64, err error) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, agentID); err != nil {
		return nil, "", 0, err
	}
	size, err := page.Size(pageSize, 0)
	if err != nil {
		return nil, "", 0, err
	}
	position, err := page.Position(kind, token, 1)
	if err != nil {
		return nil, "", 0, err
	}
	after := ""
	if position != nil {
		after = position[0]
	}
	met := false
	out, seq, err = plane.View(ctx, s.engine, agentID, func(st *State) ([]R, error) {
		a := st.agents.Get(plane.KeyOf(actor.Namespace, agentID))
		if a == nil {
			return nil, nil
		}
		met = true
		rs := recordsOf(a).List(after, size+1, ended, keep)
		for i, r := range rs {
			rs[i] = shown(a, r)
		}
		return rs, nil
	})
	if err == nil && !met {
		err = plane.NeverMade(ctx, agentID, s.deps.Agents.AgentExists)
	}
	if err == nil && len(out) > size {
		out = out[:size]
		next = page.Token(kind, records.ID(out[size-1]))
	}
	return out, next, seq, err
}
