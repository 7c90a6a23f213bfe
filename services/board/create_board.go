package board

import (
	"cmp"
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// CreateBoard makes a board out of a whole DAG (S2-303 to S2-308, SPEC B3).
func (s *Service) CreateBoard(ctx context.Context, req *boardv1.CreateBoardRequest) (*boardv1.CreateBoardResponse, error) {
	if err := fault.First(
		s.orchestrate(ctx, "agent.task_create", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()),
		fault.Name("board_id", req.GetBoardId()),
		fault.Name("wal_name", req.GetWalName()),
		fault.Text("title", req.GetTitle(), maxTitle, true),
		fault.NotBlank("title", req.GetTitle()),
		fault.TextBytes("summary", req.GetSummary(), fault.MaxFreeTextBytes, false),
		optionalName("default_worker_pool_id", req.GetDefaultWorkerPoolId()),
		fault.Entries("steps", len(req.GetSteps()), MaxSteps),
	); err != nil {
		return nil, err
	}
	if len(req.GetSteps()) == 0 {
		return nil, fault.InvalidArgument.New("steps is empty; a board has at least one").WithField("steps", "must have an entry")
	}
	if err := fault.First(checkSteps("steps", req.GetSteps()), checkGraph(req.GetSteps())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	bk := boardKey{k.namespace, k.id, req.GetWalName()}
	idBytes := 0
	for _, in := range req.GetSteps() {
		idBytes += len(in.GetStepId())
	}
	if err := fits(bk, req.GetBoardId(), len(req.GetSteps()), idBytes); err != nil {
		return nil, err
	}
	actor := rpc.ActorFrom(ctx)
	out, err := plane.Do(ctx, s.engine, plane.Command[*State, done]{
		Method: "CreateBoard", AgentID: k.id, RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (d journal.Decision[done], _ error) {
			d.Events = nil
			if err := st.owned(k); err != nil {
				return d, err
			}
			if err := st.vacant(k, req.GetBoardId(), req.GetWalName()); err != nil {
				return d, err
			}
			d.Events = created(bk, req, cmp.Or(actor.AgentID, k.id), actor.RunID)
			return d, nil
		},
		Answer: answered,
	})
	if err != nil {
		return nil, err
	}
	b, err := view(ctx, s, k, req.GetBoardId(), req.GetWalName(), func(_ *State, b *board) (*boardv1.Board, error) { return b.named(), nil })
	if err != nil {
		return nil, err
	}
	return &boardv1.CreateBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.n}, nil
}

func answered(events []*journal.Event) (done, error) {
	ids, n := written(events)
	return done{ids, n, events}, nil
}

// vacant refuses an id that an active board has, and a WAL's name that any
// board of the session has or had (S2-038, S2-094).
func (s *State) vacant(k key, boardID, wal string) error {
	se := s.sessions[k]
	if se == nil {
		return nil
	}
	if se.active[boardID] != nil {
		return fault.AlreadyExists.Newf("session %q has an active board %q; end it, or choose another board_id", k.id, boardID).With("board_id", boardID)
	}
	if b := se.byWal[wal]; b != nil {
		return fault.PathConflict.Newf("session %q has a WAL %q, of board %q; choose another wal_name", k.id, wal, b.id).
			With("wal_name", wal).With("wal_path", walPath(b.key))
	}
	return nil
}

// created are the first lines of a board.
func created(k boardKey, req *boardv1.CreateBoardRequest, agentID, runID string) []*journal.Event {
	b := newBoard(k, req.GetBoardId())
	first := b.event("", &boardv1.TaskCreated{
		WalName: req.GetWalName(), Title: req.GetTitle(), Summary: req.GetSummary(), Steps: req.GetSteps(),
		DefaultWorkerPoolId: cmp.Or(req.GetDefaultWorkerPoolId(), DefaultPool),
		CreatedByAgentId:    agentID, CreatedByRunId: runID,
	})
	events := []*journal.Event{first}
	for _, in := range req.GetSteps() {
		if len(in.GetDependsOnStepIds()) == 0 {
			events = append(events, b.event(in.GetStepId(), &boardv1.TaskStepReady{}))
		}
	}
	return append(events, b.event("", &boardv1.TaskRunning{}))
}
