package work

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
	"quartet/services/work/homes"
)

// CreateWorkItem creates an open item (SPEC W2). The text of its plan, if the request has one,
// is on disk before the response; otherwise the plan file is made now, or, when many items are
// created at once, by the first read of the plan.
func (s *Service) CreateWorkItem(ctx context.Context, req *workv1.CreateWorkItemRequest) (
	*workv1.CreateWorkItemResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := validateCreate(req); err != nil {
		return nil, err
	}
	k := plane.KeyOf(actor.Namespace, req.GetAgentId())
	// The rule returns refused, so that a repeated request gets its first response before that (SPEC X2).
	refused := s.exists(ctx, k)
	itemID := s.deps.IDs.New("wi_")
	if req.GetRequestId() != "" {
		// A repeated request has the same id, so that it makes no second plan folder.
		itemID = id.Derived("wi_", actor.Namespace, plane.Recorded(actor).Caller(), "CreateWorkItem",
			req.GetRequestId(), req.GetAgentId())
	}
	seeded := false
	if req.GetPlan() != "" && refused == nil {
		// The plan is on disk before the response (SPEC X1). A repetition of this request waits
		// until it is known whether the file stays.
		defer s.files.Lock(fileKey{k, homes.PlanPath(itemID)})()
		var err error
		if seeded, err = s.plans.Seed(k.Namespace, k.ID, itemID, req.GetPlan()); err != nil {
			return nil, err
		}
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *workv1.CreateWorkItemResponse]{
		Method: "CreateWorkItem", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.CreateWorkItemResponse], error) {
			return decideCreate(st, env, itemID, req, refused)
		},
		Answer: answerCreate,
	})
	if err != nil {
		// After an error whose outcome is unknown, such as an internal one, the item may have been created.
		if f := fault.From(err); seeded && f.Metadata()["outcome"] != "unknown" && f.Reason() != fault.InternalError {
			s.plans.Unseed(k.Namespace, k.ID, itemID) // nothing was created (SPEC X5.2)
		}
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
		fault.TextBytes("plan", req.GetPlan(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return err
	}
	return validTodos(req.GetTodoList())
}

// decideCreate is the rule of CreateWorkItem. refused is why the agent plane has no such agent, or nil.
func decideCreate(s *State, env journal.Env, itemID string, req *workv1.CreateWorkItemRequest, refused error) (
	journal.Decision[*workv1.CreateWorkItemResponse], error,
) {
	var none journal.Decision[*workv1.CreateWorkItemResponse]
	if err := s.ownerAlive(env.Actor.Namespace, req.GetAgentId()); err != nil {
		return none, err
	}
	if refused != nil {
		return none, refused
	}
	if s.record(env.Actor.Namespace, itemID) != nil { // of a request with this id that is not remembered any more
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

var answerCreate = journal.AnswerOf(func(p *workv1.WorkItemCreated) *workv1.CreateWorkItemResponse {
	return &workv1.CreateWorkItemResponse{
		WorkItem: derive.View(p.GetWorkItem(), p.GetCurrentWorkItemId()),
		Warnings: todoWarnings(p.GetWorkItem().GetTodoList()),
	}
})
