package task

import (
	"context"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
)

// pageKind marks the page tokens of ListTasks.
const pageKind = "tasks"

// ListTasks reads an agent's tasks, newest first: the active ones, or with include_terminal
// also those that have ended (SPEC T3, X9).
func (s *Service) ListTasks(ctx context.Context, req *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	actor, err := admit(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	if item := req.GetWorkItemId(); item != "" {
		if err := fault.Name("work_item_id", item); err != nil {
			return nil, err
		}
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	before, err := pageStart(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	o := model.Owner{Namespace: actor.Namespace, ID: req.GetAgentId()}
	found, _, err := journal.View(ctx, s.engine.For(o.Namespace, o.ID), func(st *model.State) (model.Page, error) {
		return st.ListPage(o, req, before, size), nil
	})
	if err != nil {
		return nil, err
	}
	if len(found.Tasks) == 0 && s.deps.Workspace != nil {
		if err := plane.NeverMade(ctx, o.ID, func(ctx context.Context, agentID string) error {
			_, err := s.deps.Workspace(ctx, agentID)
			return err
		}); err != nil {
			return nil, err
		}
	}
	resp := &taskv1.ListTasksResponse{TotalActive: int32(min(found.Active, 1<<30))}
	resp.Tasks = s.presentAll(o.Namespace, found.Tasks)
	if found.More {
		resp.NextPageToken = page.Token(pageKind, strconv.FormatInt(found.Last, 10))
	}
	return resp, nil
}

// pageStart returns the ordinal before which the tasks of a page are; the largest one for the
// first page.
func pageStart(token string) (int64, error) {
	const newest = 1<<63 - 1
	at, err := page.Position(pageKind, token, 1)
	if err != nil || at == nil {
		return newest, err
	}
	n, err := strconv.ParseInt(at[0], 10, 64)
	if err != nil || n < 1 {
		return 0, fault.CursorInvalid.New("page_token does not hold a position of ListTasks; leave it empty to begin "+
			"with the newest task").
			WithField("page_token", "must be a next_page_token of ListTasks")
	}
	return n, nil
}
