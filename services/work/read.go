package work

import (
	"context"
	"sort"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/yield"
	"quartet/services/work/derive"
	"quartet/services/work/homes"
)

// Maximum numbers of items in a queue: of each candidate class, and with a reminder (SPEC W9).
const (
	capTriggered = 3
	capQueued    = 5
	capOperator  = 3
	capBlocked   = 3
	capCompleted = 3
	capRechecks  = 5
)

// listDefault is the page size of ListWorkItems (SPEC W10).
const listDefault = 20

// GetWorkItem returns one item, by default the one in focus, with the beginning of its plan file, which it creates
// empty if an open item has none. Without an item in focus the error is INVALID_ARGUMENT (SPEC W3).
func (s *Service) GetWorkItem(ctx context.Context, req *workv1.GetWorkItemRequest) (*workv1.GetWorkItemResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admit(actor, req.GetAgentId()), optionalID("work_item_id", req.GetWorkItemId(),
		"wi_")); err != nil {
		return nil, err
	}
	it, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*workv1.WorkItem, error) {
		it, err := st.ownedOrCurrent(actor.Namespace, req.GetAgentId(), req.GetWorkItemId())
		if err != nil {
			return nil, err
		}
		return derive.View(it, st.current(actor.Namespace, req.GetAgentId())), nil
	})
	if err != nil {
		return nil, err
	}
	if req.GetOmitTodoList() {
		it.TodoList = nil
	}
	s.plans.Attach(actor.Namespace, it, homes.Ensured)
	return &workv1.GetWorkItemResponse{WorkItem: it}, nil
}

// ListWorkItems reads an agent's items by a filter, in order of creation (SPEC W10).
func (s *Service) ListWorkItems(ctx context.Context, req *workv1.ListWorkItemsRequest) (*workv1.ListWorkItemsResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), listDefault)
	if err != nil {
		return nil, err
	}
	kind := "work-items/" + req.GetFilter().String()
	position, err := page.Position(kind, req.GetPageToken(), 2)
	if err != nil {
		return nil, err
	}
	var after *workv1.WorkItemRecord
	if position != nil {
		nanos, err := strconv.ParseInt(position[0], 10, 64)
		if err != nil {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
		after = &workv1.WorkItemRecord{WorkItemId: position[1], CreatedAt: timestamppb.New(time.Unix(0, nanos))}
	}
	met := false
	items, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) ([]*workv1.WorkItem, error) {
		met = st.met(actor.Namespace, req.GetAgentId())
		return list(st, actor.Namespace, req.GetAgentId(), req.GetFilter(), after, size+1), nil
	})
	if err != nil {
		return nil, err
	}
	if !met {
		if err := s.neverMade(ctx, actor, req.GetAgentId()); err != nil {
			return nil, err
		}
	}
	resp := &workv1.ListWorkItemsResponse{}
	bytes := 0
	for i, it := range items {
		yield.Now() // a long page delays no other call
		if !req.GetIncludeTodoList() {
			it.TodoList = nil
		}
		bytes += proto.Size(it)
		if i == size || (i > 0 && bytes > page.MaxBytes) {
			last := items[i-1]
			resp.NextPageToken = page.Token(kind, strconv.FormatInt(last.GetCreatedAt().AsTime().UnixNano(), 10),
				last.GetWorkItemId())
			break
		}
		s.plans.Attach(actor.Namespace, it, homes.AsIs)
		if req.GetOmitPlanPreviews() {
			it.PlanArtifact = withoutPreview(it.GetPlanArtifact())
		}
		resp.WorkItems = append(resp.WorkItems, it)
	}
	return resp, nil
}

// withoutPreview returns a descriptor without its preview. It copies the descriptor, which the
// cache of plans shares with other responses.
func withoutPreview(a *workv1.PlanArtifact) *workv1.PlanArtifact {
	return &workv1.PlanArtifact{
		Path: a.GetPath(), Sha256: a.GetSha256(), Bytes: a.GetBytes(),
		UpdatedAt: a.GetUpdatedAt(), Problem: a.GetProblem(),
	}
}

// list returns at most limit items of an agent that a filter includes, in order of creation.
// If after is not nil, the list begins behind it; only its id and creation time are read.
func list(s *State, namespace, agentID string, f workv1.WorkItemFilter, after *workv1.WorkItemRecord,
	limit int,
) []*workv1.WorkItem {
	a := s.ByOwner.Get(plane.KeyOf(namespace, agentID))
	if a == nil {
		return nil
	}
	var out []*workv1.WorkItem
	if f == workv1.WorkItemFilter_WORK_ITEM_FILTER_CURRENT {
		if it := s.record(namespace, a.current); it != nil && after == nil {
			out = append(out, derive.View(it, a.current))
		}
		return out
	}
	var found []*workv1.WorkItemRecord
	// collect takes the first items of an order; each calls visit with its records until that returns false.
	collect := func(each func(visit func(*workv1.WorkItemRecord) bool)) {
		n := 0
		each(func(it *workv1.WorkItemRecord) bool {
			if derive.Matches(it, a.current, f) {
				found = append(found, it)
				n++
			}
			return n < limit
		})
	}
	every := f == workv1.WorkItemFilter_WORK_ITEM_FILTER_UNSPECIFIED || f == workv1.WorkItemFilter_WORK_ITEM_FILTER_ALL
	// Most items of an old agent are completed, and most filters need only open ones.
	if f != workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED {
		collect(func(visit func(*workv1.WorkItemRecord) bool) { a.open.each(byCreation, after, visit) })
	}
	if every || f == workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED {
		collect(func(visit func(*workv1.WorkItemRecord) bool) { a.done.each(byCreation, after, visit) })
		collect(func(visit func(*workv1.WorkItemRecord) bool) { s.eachPacked(a, after, visit) })
		sort.Slice(found, func(i, j int) bool { return derive.Older(found[i], found[j]) })
	}
	for _, it := range found[:min(len(found), limit)] {
		out = append(out, derive.View(it, a.current))
	}
	return out
}

// GetWorkQueue reads focus, classes and counts at one revision (SPEC W9).
func (s *Service) GetWorkQueue(ctx context.Context, req *workv1.GetWorkQueueRequest) (*workv1.GetWorkQueueResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admit(actor, req.GetAgentId()), fault.Entries("work_item_ids", len(req.GetWorkItemIds()),
		maxNamed), fault.Entries("passed_over", len(req.GetPassedOver()), maxNamed)); err != nil {
		return nil, err
	}
	met := false
	q, seq, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*workv1.GetWorkQueueResponse, error) {
		met = st.met(actor.Namespace, req.GetAgentId())
		q := queue(st, actor.Namespace, req.GetAgentId(), req.GetPassedOver()...)
		q.Named = named(st, actor.Namespace, req)
		return q, nil
	})
	if err != nil {
		return nil, err
	}
	if !met {
		if err := s.neverMade(ctx, actor, req.GetAgentId()); err != nil {
			return nil, err
		}
	}
	q.Revision = seq
	if !req.GetOmitPlans() {
		s.plans.Attach(actor.Namespace, q.GetCurrent(), homes.Ensured)
		s.plans.Attach(actor.Namespace, q.GetNamed(), homes.Ensured)
		for _, class := range [][]*workv1.WorkItem{
			q.GetTriggeredBlocked(), q.GetQueuedRunnable(),
			q.GetWaitingForOperator(), q.GetBlocked(),
		} {
			for _, it := range class {
				s.plans.Attach(actor.Namespace, it, homes.AsIs)
			}
		}
	}
	return q, nil
}

// maxNamed bounds the items that GetWorkQueue is asked about by id.
const maxNamed = 100

// named returns the first open item of the agent among the items that a request names; nil if
// there is none. Ids of other agents' items, and of items that do not exist, are ignored: a
// message may name any.
func named(s *State, namespace string, req *workv1.GetWorkQueueRequest) *workv1.WorkItem {
	for _, id := range req.GetWorkItemIds() {
		it := s.record(namespace, id)
		if it != nil && it.GetAgentId() == req.GetAgentId() && !derive.Completed(it) {
			return derive.View(it, s.current(namespace, req.GetAgentId()))
		}
	}
	return nil
}

// queue returns an agent's work queue, without plans. The item in focus is in Current only.
// Runnable items that passedOver names are in PassedOver instead of QueuedRunnable. Every
// surface that shows a queue uses this function.
func queue(s *State, namespace, agentID string, passedOver ...*workv1.PassedOver) *workv1.GetWorkQueueResponse {
	q := &workv1.GetWorkQueueResponse{AgentId: agentID, Counts: &workv1.WorkQueueCounts{}}
	a := s.ByOwner.Get(plane.KeyOf(namespace, agentID))
	if a == nil {
		return q
	}
	current := s.record(namespace, a.current)
	q.Current = derive.View(current, a.current)
	// top returns the first items of a class, and how many the class has besides the item in focus.
	top := func(c workv1.CandidateClass, limit int) (items []*workv1.WorkItem, total int32) {
		t := a.classes[c]
		n := t.size()
		if c == workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT {
			n += a.items.Packed()
		}
		if current != nil && derive.ClassOf(current) == c {
			n--
		}
		t.each(classOrder[c], nil, func(it *workv1.WorkItemRecord) bool {
			if len(items) == limit {
				return false
			}
			switch {
			case it.GetWorkItemId() == a.current:
			case c == workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE && derive.PassedOver(passedOver, it):
				q.PassedOver = append(q.PassedOver, derive.View(it, a.current))
			default:
				items = append(items, derive.View(it, a.current))
			}
			return true
		})
		return items, count(n)
	}
	counts := q.GetCounts()
	q.TriggeredBlocked, counts.TriggeredBlocked = top(workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED,
		capTriggered)
	q.QueuedRunnable, counts.QueuedRunnable = top(workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE, capQueued)
	q.WaitingForOperator, counts.WaitingForOperator = top(workv1.CandidateClass_CANDIDATE_CLASS_WAITING_FOR_OPERATOR,
		capOperator)
	q.Blocked, counts.Blocked = top(workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED, capBlocked)
	q.CompletedRecent, counts.Completed = top(workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT, capCompleted)
	counts.Open = count(a.open.size())
	if !a.changed.IsZero() {
		q.ChangedAt = timestamppb.New(a.changed)
	}
	a.rechecks.each(byRecheck, nil, func(it *workv1.WorkItemRecord) bool {
		q.Rechecks = append(q.Rechecks, derive.View(it, a.current))
		return len(q.GetRechecks()) < capRechecks
	})
	return q
}

// count converts a number of items; it returns the largest int32 for larger numbers.
func count(n int) int32 {
	const most = 1<<31 - 1
	return int32(min(n, most))
}
