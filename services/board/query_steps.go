package board

import (
	"context"
	"slices"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// runCandidates is how many steps a run is shown by default (S2-367).
const runCandidates = 5

// QuerySteps reads steps in the order of their creation (S2-354 to S2-375). A run gets
// the steps that it could claim now or, if it names steps, those in the order in which it
// names them; of a board that has ended it gets none. The filters hold for runs too.
func (s *Service) QuerySteps(ctx context.Context, req *boardv1.QueryStepsRequest) (*boardv1.QueryStepsResponse, error) {
	runID, err := s.reader(ctx, "board_query_steps", req.GetSessionId())
	if err := fault.First(err, fault.Name("board_id", req.GetBoardId()),
		patch.OptionalName("worker_pool_id", req.GetWorkerPoolId()),
		patch.OptionalName("claimed_by_agent_id", req.GetClaimedByAgentId()),
		fault.Entries("step_ids", len(req.GetStepIds()), 500)); err != nil {
		return nil, err
	}
	for _, st := range req.GetStatuses() {
		if st == 0 {
			return nil, fault.Invalid("statuses", st.String(), "must be statuses of steps")
		}
	}
	def := 50
	if runID != "" {
		def = runCandidates
	}
	limit, err := checkPage(req.GetLimit(), req.GetOffset(), def)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	q := query{req, limit, s.leases.Expiry(k.Namespace)}
	var endedKey model.BoardKey
	out, err := viewBoard(ctx, s, k, req.GetBoardId(), "",
		func(st *model.State, b *model.Board) (*boardv1.QueryStepsResponse, error) {
			r, err := st.CallerRun(b, runID)
			switch {
			case err != nil:
				return nil, err
			case model.Ended(b.Status):
				endedKey = b.Key
				return &boardv1.QueryStepsResponse{BoardStatus: b.Status}, nil
			case r == nil:
				return q.all(b), nil
			case len(req.GetStepIds()) > 0:
				return q.named(b, r)
			}
			return q.claimable(b, r), nil
		})
	if err != nil || endedKey.WAL == "" || runID != "" {
		return out, err
	}
	replayed, err := s.replayEnded(ctx, endedKey)
	if err != nil {
		return nil, err
	}
	return q.all(replayed), nil
}

// query is a QuerySteps request that is being answered.
type query struct {
	req    *boardv1.QueryStepsRequest
	limit  int // steps of the page
	leases model.LeaseExpiry
}

// add counts a step that matches in n and adds it to the page if it belongs there. It sets
// truncated and reports false if the page is full.
func (q query) add(out *boardv1.QueryStepsResponse, n *int, rec *boardv1.Step) bool {
	*n++
	if *n <= int(q.req.GetOffset()) {
		return true
	}
	if len(out.Steps) == q.limit {
		out.Truncated = true
		return false
	}
	out.Steps = append(out.Steps, rec)
	return true
}

// all returns the steps that the request selects, as an orchestrator or an operator sees them.
func (q query) all(b *model.Board) *boardv1.QueryStepsResponse {
	out := &boardv1.QueryStepsResponse{BoardStatus: b.Status}
	n := 0
	for _, s := range b.Order {
		if s != nil && q.matches(s.Record) && !q.add(out, &n, b.ShownStep(s, q.leases)) {
			break
		}
	}
	return out
}

// matches reports whether the request selects a step.
func (q query) matches(rec *boardv1.Step) bool {
	switch {
	case model.Finished(rec.GetStatus()) && !q.req.GetIncludeTerminalSteps():
		return false
	case len(q.req.GetStepIds()) > 0 && !slices.Contains(q.req.GetStepIds(), rec.GetStepId()):
		return false
	}
	return q.filtered(rec)
}

// filtered reports whether the filters of the request other than ids and include_terminal_steps
// select a step.
func (q query) filtered(rec *boardv1.Step) bool {
	switch {
	case len(q.req.GetStatuses()) > 0 && !slices.Contains(q.req.GetStatuses(), rec.GetStatus()):
		return false
	case q.req.GetWorkerPoolId() != "" && rec.GetWorkerPoolId() != q.req.GetWorkerPoolId():
		return false
	}
	return q.req.GetClaimedByAgentId() == "" || rec.GetClaimedByAgentId() == q.req.GetClaimedByAgentId()
}

// claimable returns, of the steps that a run could claim now, those that the filters of the request
// select (S2-366). no_step_claimed says that the run has claimed none and could claim none, whatever the
// filters select.
func (q query) claimable(b *model.Board, r *model.Run) *boardv1.QueryStepsResponse {
	out := &boardv1.QueryStepsResponse{BoardStatus: b.Status}
	found := false
	if !r.HasClaimed() && r.Running() && b.Dispatchable() {
		ready, n := b.Ready[r.Record.GetWorkerPoolId()], 0
		for i := ready.Next(0, r.AllowedSet); i >= 0; i = ready.Next(i+1, r.AllowedSet) {
			found = true
			if rec := b.Order[i].Record; q.filtered(rec) && !q.add(out, &n, rec) {
				break
			}
		}
	}
	out.NoStepClaimed = !found && !r.HasClaimed()
	return out
}

// named returns, of the steps that a run's request names, those that its filters select, in the order of
// the names and in any status. It refuses steps that the run may not read. If the request has no limit,
// the page has room for all of them.
func (q query) named(b *model.Board, r *model.Run) (*boardv1.QueryStepsResponse, error) {
	out := &boardv1.QueryStepsResponse{BoardStatus: b.Status}
	if q.req.GetLimit() == 0 {
		q.limit = len(q.req.GetStepIds())
	}
	n, full := 0, false
	for _, id := range q.req.GetStepIds() {
		s := b.Steps[id]
		if s == nil {
			return nil, model.NoStep(b, id)
		}
		if !r.Sees(s) {
			return nil, model.OutOfScope(r, id)
		}
		if !full && q.filtered(s.Record) {
			full = !q.add(out, &n, b.ShownStep(s, q.leases))
		}
	}
	return out, nil
}
