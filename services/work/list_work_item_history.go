package work

import (
	"context"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/past"
)

// ListWorkItemHistory reads one page of an item's mutations back from the journal: all since
// its creation, and the moves of the focus (SPEC W11). The oldest is first unless
// newest_first is set.
func (s *Service) ListWorkItemHistory(ctx context.Context, req *workv1.ListWorkItemHistoryRequest) (
	*workv1.ListWorkItemHistoryResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admit(actor, req.GetAgentId()), fault.ID("work_item_id", req.GetWorkItemId(),
		"wi_")); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), page.DefaultSize)
	if err != nil {
		return nil, err
	}
	kind := "work-item-history/" + req.GetWorkItemId() + "/" + strconv.FormatBool(req.GetNewestFirst())
	position, err := page.Position(kind, req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	seqs, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) ([]uint64, error) {
		if _, err := st.owned(actor.Namespace, req.GetAgentId(), req.GetWorkItemId()); err != nil {
			return nil, err
		}
		return st.item(actor.Namespace, req.GetWorkItemId()).history.All(), nil
	})
	if err != nil {
		return nil, err
	}
	offset := 0 // how many mutations the pages before this one had
	if position != nil {
		if offset, err = strconv.Atoi(position[0]); err != nil || offset < 0 || offset > len(seqs) {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
		if req.GetNewestFirst() {
			offset = len(seqs) - offset // the token counts from the oldest one, whose number does not change
		}
	}
	part := s.engine.For(actor.Namespace, req.GetAgentId())
	h := past.Of(req.GetWorkItemId(), seqs, func(seqs []uint64) ([]*journal.Event, error) {
		return journal.ReadBack(ctx, part, seqs)
	}, entryOf)
	resp, next, err := h.Page(offset, size, req.GetNewestFirst())
	if err != nil {
		return nil, err
	}
	if next < len(seqs) {
		if req.GetNewestFirst() {
			next = len(seqs) - next
		}
		resp.NextPageToken = page.Token(kind, strconv.Itoa(next))
	}
	return resp, nil
}

// entryOf returns what an event says about an item; nothing if it is in no history.
func entryOf(ev *journal.Event, itemID string) past.Entry {
	row, err := eventRows.Of(ev)
	if err != nil || row.entry == nil {
		return past.Entry{}
	}
	return row.entry(ev, itemID)
}
