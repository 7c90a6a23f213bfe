package work

import (
	"context"
	"fmt"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/homes"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateWorkItem makes an open item and its plan file (SPEC W2).
func (s *Service) CreateWorkItem(ctx context.Context, req *workv1.CreateWorkItemRequest) (*workv1.CreateWorkItemResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := s.admitAgent(ctx, actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := validateCreate(req); err != nil {
		return nil, err
	}
	itemID := s.deps.IDs.New("wi_")
	if req.GetRequestId() != "" {
		// The same request makes the same id, so that a repetition does not
		// leave a second plan folder behind.
		itemID = id.Derived("wi_", actor.Namespace, actor.Principal, "CreateWorkItem", req.GetRequestId(), req.GetAgentId())
	}
	if req.GetPlan() != "" {
		// What the caller gave is on disk before the answer says so (SPEC X1).
		// A refusal after this leaves a file that no item names; that is all.
		if err := s.plans.Seed(actor.Namespace, req.GetAgentId(), itemID, req.GetPlan()); err != nil {
			return nil, err
		}
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *workv1.CreateWorkItemResponse]{
		Method: "CreateWorkItem", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.CreateWorkItemResponse], error) {
			return decideCreate(st, env, itemID, req)
		},
		Answer: answerCreate,
	})
	if err != nil {
		return nil, err
	}
	effort := homes.Eager
	if req.GetRequestId() == "" && req.GetPlan() == "" {
		effort = homes.EagerNew // its id is new, so there is no file
	}
	s.plans.Attach(actor.Namespace, resp.GetWorkItem(), effort)
	return resp, nil
}

func validateCreate(req *workv1.CreateWorkItemRequest) error {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.Text("objective", req.GetObjective(), fault.MaxObjectiveChars, true),
		fault.NotBlank("objective", req.GetObjective()),
		knownPlanStatus(req.GetPlanStatus()),
		fault.TextBytes("plan", req.GetPlan(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return err
	}
	return validTodos(req.GetTodoList())
}

func decideCreate(s *State, env journal.Env, itemID string, req *workv1.CreateWorkItemRequest) (journal.Decision[*workv1.CreateWorkItemResponse], error) {
	var none journal.Decision[*workv1.CreateWorkItemResponse]
	if err := s.ownerAlive(env.Actor.Namespace, req.GetAgentId()); err != nil {
		return none, err
	}
	if s.record(env.Actor.Namespace, itemID) != nil {
		return none, fault.AlreadyExists.Newf("work item %q exists already", itemID)
	}
	status := req.GetPlanStatus()
	if status == workv1.PlanStatus_PLAN_STATUS_UNSPECIFIED {
		status = workv1.PlanStatus_PLAN_STATUS_DRAFT
	}
	now := timestamppb.New(env.Now)
	it := &workv1.WorkItemRecord{
		WorkItemId: itemID,
		AgentId:    req.GetAgentId(),
		Objective:  req.GetObjective(),
		State:      workv1.WorkItemState_WORK_ITEM_STATE_OPEN,
		PlanStatus: status,
		TodoList:   req.GetTodoList(),
		Revision:   1,
		CreatedAt:  now,
		UpdatedAt:  now,
	}
	ev := itemEvent(it, nil, &workv1.WorkItemCreated{
		WorkItem: it, CurrentWorkItemId: s.current(env.Actor.Namespace, req.GetAgentId()),
	})
	return journal.Decision[*workv1.CreateWorkItemResponse]{Events: []*journal.Event{ev}}, nil
}

func answerCreate(events []*journal.Event) (*workv1.CreateWorkItemResponse, error) {
	for _, ev := range events {
		if p, ok := ev.Payload.(*workv1.WorkItemCreated); ok {
			return &workv1.CreateWorkItemResponse{
				WorkItem: view(p.GetWorkItem(), p.GetCurrentWorkItemId()),
				Warnings: todoWarnings(p.GetWorkItem().GetTodoList()),
			}, nil
		}
	}
	return nil, fmt.Errorf("work: no work_item_created among %d events", len(events))
}
