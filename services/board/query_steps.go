package board

import (
	"context"
	"slices"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// runCandidates is how many steps a run is shown by default (S2-367).
const runCandidates = 5

// QuerySteps reads steps in the order of their creation (S2-354 to S2-375).
func (s *Service) QuerySteps(ctx context.Context, req *boardv1.QueryStepsRequest) (*boardv1.QueryStepsResponse, error) {
	runID, err := s.reader(ctx, "agent.task_query_steps", req.GetSessionId())
	if err := fault.First(err, fault.Name("board_id", req.GetBoardId()), optionalName("worker_pool_id", req.GetWorkerPoolId()),
		optionalName("claimed_by_agent_id", req.GetClaimedByAgentId()), fault.Entries("step_ids", len(req.GetStepIds()), 500)); err != nil {
		return nil, err
	}
	for _, st := range req.GetStatuses() {
		if _, known := boardv1.StepStatus_name[int32(st)]; !known || st == 0 {
			return nil, fault.Invalid("statuses", st.String(), "must be statuses of steps")
		}
	}
	def := 50
	if runID != "" {
		def = runCandidates
	}
	limit, err := bounded(req.GetLimit(), req.GetOffset(), def)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	q := query{req, limit}
	var gone boardKey
	out, err := view(ctx, s, k, req.GetBoardId(), "", func(st *State, b *board) (*boardv1.QueryStepsResponse, error) {
		r, err := st.seen(b, runID)
		switch {
		case err != nil:
			return nil, err
		case terminal(b.status):
			gone = b.key
			return &boardv1.QueryStepsResponse{BoardStatus: b.status}, nil
		case r == nil:
			return q.all(b), nil
		case len(req.GetStepIds()) > 0:
			return q.named(b, r)
		}
		return q.claimable(b, r), nil
	})
	if err != nil || gone.wal == "" || runID != "" {
		return out, err
	}
	replayed, err := s.replayed(ctx, gone)
	if err != nil {
		return nil, err
	}
	return q.all(replayed), nil
}

type query struct {
	req   *boardv1.QueryStepsRequest
	limit int
}

// add counts a step and takes it if it is on the page; false: the page is full.
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

// all is what an orchestrator is shown.
func (q query) all(b *board) *boardv1.QueryStepsResponse {
	out := &boardv1.QueryStepsResponse{BoardStatus: b.status}
	n := 0
	for _, s := range b.order {
		if s != nil && q.wants(s.rec) && !q.add(out, &n, b.shown(s)) {
			break
		}
	}
	return out
}

func (q query) wants(rec *boardv1.Step) bool {
	st := rec.GetStatus()
	switch {
	case settledStep(st) && !q.req.GetIncludeTerminalSteps():
		return false
	case len(q.req.GetStatuses()) > 0 && !slices.Contains(q.req.GetStatuses(), st):
		return false
	case len(q.req.GetStepIds()) > 0 && !slices.Contains(q.req.GetStepIds(), rec.GetStepId()):
		return false
	case q.req.GetWorkerPoolId() != "" && rec.GetWorkerPoolId() != q.req.GetWorkerPoolId():
		return false
	}
	return q.req.GetClaimedByAgentId() == "" || rec.GetClaimedByAgentId() == q.req.GetClaimedByAgentId()
}

// claimable is what a run is shown: what it could claim now (S2-366).
func (q query) claimable(b *board, r *run) *boardv1.QueryStepsResponse {
	out := &boardv1.QueryStepsResponse{BoardStatus: b.status}
	if r.step == nil && r.live() && b.dispatchable() {
		ready, n := b.ready[r.rec.GetWorkerPoolId()], 0
		for i := ready.next(0, r.bits); i >= 0; i = ready.next(i+1, r.bits) {
			if !q.add(out, &n, b.order[i].rec) {
				break
			}
		}
	}
	out.NoStepClaimed = len(out.Steps) == 0 && r.step == nil
	return out
}

// named are steps that a run asks for by name, within what it may see.
func (q query) named(b *board, r *run) (*boardv1.QueryStepsResponse, error) {
	out := &boardv1.QueryStepsResponse{BoardStatus: b.status}
	for _, id := range q.req.GetStepIds() {
		s := b.steps[id]
		if s == nil {
			return nil, noStep(b, id)
		}
		if !r.sees(s) {
			return nil, outOfScope(r, id)
		}
		out.Steps = append(out.Steps, b.shown(s))
	}
	return out, nil
}

func outOfScope(r *run, stepID string) error {
	return fault.PermissionDenied.Newf("step %q is outside of what run %s was dispatched to", stepID, r.rec.GetRunId()).
		With("step_id", stepID).With("run_id", r.rec.GetRunId())
}
