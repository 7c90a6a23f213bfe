package task

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
)

// pageKind marks the page tokens of ListTasks.
const pageKind = "tasks"

// listing is what one page is made of.
type listing struct {
	tasks  []*taskv1.Task
	last   int64 // ordinal of the last task of the page
	more   bool
	active int
}

// list selects tasks, newest first, those created before ordinal before. The
// order is that of creation, so pages stay stable under writes (SPEC X9).
func (s *State) list(o owner, req *taskv1.ListTasksRequest, before int64, size int) listing {
	var out listing
	of := s.agents[o]
	if of == nil {
		return out
	}
	out.active = len(of.active)
	var records []*record
	switch {
	case !req.GetIncludeTerminal():
		for id := range of.active {
			records = append(records, s.tasks[id])
		}
		slices.SortFunc(records, func(a, b *record) int { return cmp.Compare(a.ordinal, b.ordinal) })
	default:
		ids := of.ids
		if item := req.GetWorkItemId(); item != "" {
			ids = s.items[itemKey{o, item}]
		}
		// Only what the page may show is looked up: ids are in order.
		upto, _ := slices.BinarySearchFunc(ids, before, func(id string, at int64) int {
			return cmp.Compare(s.tasks[id].ordinal, at)
		})
		for _, id := range ids[max(0, upto-size-1):upto] {
			records = append(records, s.tasks[id])
		}
	}
	bytes := 0
	for _, r := range slices.Backward(records) {
		if r.ordinal >= before || req.GetWorkItemId() != "" && r.task.GetWorkItemId() != req.GetWorkItemId() {
			continue
		}
		bytes += proto.Size(r.task)
		if len(out.tasks) == size || len(out.tasks) > 0 && bytes > page.MaxBytes {
			out.more = true
			break
		}
		out.tasks = append(out.tasks, r.task)
		out.last = r.ordinal
	}
	return out
}

// ListTasks reads an agent's tasks, by default the active ones (SPEC T3, X9).
func (s *Service) ListTasks(ctx context.Context, req *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	actor, err := s.reader(ctx, req.GetAgentId())
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
	o := owner{actor.Namespace, req.GetAgentId()}
	found, _, err := journal.View(ctx, s.engine.For(o.namespace, o.agent), func(st *State) (listing, error) {
		return st.list(o, req, before, size), nil
	})
	if err != nil {
		return nil, err
	}
	if len(found.tasks) == 0 && s.deps.Workspace != nil {
		if err := plane.NeverMade(ctx, o.agent, func(ctx context.Context, agentID string) error {
			_, err := s.deps.Workspace(ctx, agentID)
			return err
		}); err != nil {
			return nil, err
		}
	}
	resp := &taskv1.ListTasksResponse{TotalActive: int32(min(found.active, 1<<30))}
	resp.Tasks = s.presentAll(o.namespace, found.tasks)
	if found.more {
		resp.NextPageToken = page.Token(pageKind, strconv.FormatInt(found.last, 10))
	}
	return resp, nil
}

// pageStart gives the ordinal below which a page begins.
func pageStart(token string) (int64, error) {
	const newest = 1<<63 - 1
	at, err := page.Position(pageKind, token, 1)
	if err != nil || at == nil {
		return newest, err
	}
	n, err := strconv.ParseInt(at[0], 10, 64)
	if err != nil || n < 1 {
		return 0, fault.CursorInvalid.New("page_token does not hold a position of ListTasks; leave it empty to begin with the newest task").
			WithField("page_token", "must be a next_page_token of ListTasks")
	}
	return n, nil
}
