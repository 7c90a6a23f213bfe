package model

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/page"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Page is one page of an agent's tasks.
type Page struct {
	Tasks  []*taskv1.Task // newest first
	Last   int64          // ordinal of the last task of the page
	More   bool           // older tasks follow
	Active int            // how many active tasks the agent has, whatever the filter
}

// ListPage returns at most size tasks of an owner that pass the filter of req and were
// created before the one with the ordinal before, newest first. The order is that of
// creation, so that pages do not change with writes (SPEC X9).
func (s *State) ListPage(o Owner, req *taskv1.ListTasksRequest, before int64, size int) Page {
	var out Page
	if _, evicted := s.ByOwner.Summary(o); evicted && !req.GetIncludeTerminal() {
		return out
	}
	of := s.ByOwner.Get(o)
	if of == nil {
		return out
	}
	out.Active = len(of.active)
	records := s.before(of, before, req.GetWorkItemId())
	if !req.GetIncludeTerminal() {
		var active []*Record
		for r := range s.Active(o) {
			if r.Ordinal < before && (req.GetWorkItemId() == "" || r.Task.GetWorkItemId() == req.GetWorkItemId()) {
				active = append(active, r)
			}
		}
		slices.SortFunc(active, func(a, b *Record) int { return cmp.Compare(b.Ordinal, a.Ordinal) })
		records = slices.Values(active)
	}
	bytes := 0
	for r := range records {
		bytes += proto.Size(r.Task)
		if len(out.Tasks) == size || len(out.Tasks) > 0 && bytes > page.MaxBytes {
			out.More = true
			break
		}
		out.Tasks = append(out.Tasks, r.Task)
		out.Last = r.Ordinal
	}
	return out
}
