package cli

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/cli/boards"
)

const (
	pendingStep   = boardv1.StepStatus_STEP_STATUS_PENDING
	readyStep     = boardv1.StepStatus_STEP_STATUS_READY
	runningStep   = boardv1.StepStatus_STEP_STATUS_RUNNING
	completedStep = boardv1.StepStatus_STEP_STATUS_COMPLETED
	failedStep    = boardv1.StepStatus_STEP_STATUS_FAILED
)

// newBoard returns the board "build" of the fake planes.
func newBoard() *boardv1.Board {
	return &boardv1.Board{
		BoardId: "build", SessionId: "keeper", WalName: "build", WalPath: "/v1/sessions/keeper/wal/build.wal.jsonl",
		Title: "Build and test", Revision: 7,
		Status: boardv1.BoardStatus_BOARD_STATUS_RUNNING, UpdatedAt: at,
		Counts:      &boardv1.StepCounts{Completed: 1, Running: 1, Ready: 1, Failed: 1, Pending: 1},
		Diagnostics: &boardv1.Diagnostics{},
		Steps: []*boardv1.Step{
			{
				StepId: "fetch", Title: "fetch", Status: completedStep, Required: true, ResultSummary: "12 MB",
				WorkerPoolId: "go", UpdatedAt: at,
			},
			{
				StepId: "vet", Title: "vet", Status: runningStep, Required: true, DependsOnStepIds: []string{"fetch"},
				ClaimedByAgentId: "worker-1", WorkerPoolId: "go", UpdatedAt: at,
			},
			{StepId: "test", Title: "Run the tests", Status: failedStep, Required: true, DependsOnStepIds: []string{
				"fetch",
			}, Reason: "exit code 1", WorkerPoolId: "go", UpdatedAt: at},
			{StepId: "lint", Title: "lint", Status: readyStep, WorkerPoolId: "go", UpdatedAt: at},
			{StepId: "release", Title: "release", Status: pendingStep, Required: true, DependsOnStepIds: []string{
				"vet", "test",
			}, WorkerPoolId: "go", UpdatedAt: at},
		},
	}
}

func newRun() *boardv1.WorkerRun {
	return &boardv1.WorkerRun{
		RunId: "run_1", SessionId: "keeper", BoardId: "build", WorkerPoolId: "go", WorkerId: "worker-1",
		Status:        boardv1.RunStatus_RUN_STATUS_FINISHED,
		ClaimedStepId: "fetch", StepStatus: completedStep, StepResultSummary: "12 MB", DispatchedAt: at,
	}
}

func (p *planes) GetBoard(ctx context.Context, r *boardv1.GetBoardRequest) (*boardv1.GetBoardResponse, error) {
	if r.GetBoardId() != "build" {
		return nil, fault.NotFound.Newf("no board %q", r.GetBoardId())
	}
	return &boardv1.GetBoardResponse{Board: newBoard()}, p.record(ctx, r)
}

func (p *planes) ListBoards(ctx context.Context, r *boardv1.ListBoardsRequest) (*boardv1.ListBoardsResponse, error) {
	return &boardv1.ListBoardsResponse{Boards: []*boardv1.Board{newBoard()}, Total: 3, Truncated: true},
		p.record(ctx, r)
}

func (p *planes) CreateBoard(ctx context.Context, r *boardv1.CreateBoardRequest) (*boardv1.CreateBoardResponse, error) {
	return &boardv1.CreateBoardResponse{
			Board: &boardv1.Board{BoardId: r.GetBoardId(), Counts: &boardv1.StepCounts{
				Ready: int32(len(r.GetSteps())),
			}},
		},
		p.record(ctx, r)
}

func (p *planes) UpdateBoard(ctx context.Context, r *boardv1.UpdateBoardRequest) (*boardv1.UpdateBoardResponse, error) {
	return &boardv1.UpdateBoardResponse{Board: newBoard()}, p.record(ctx, r)
}

func (p *planes) UpdateStep(ctx context.Context, r *boardv1.UpdateStepRequest) (*boardv1.UpdateStepResponse, error) {
	return &boardv1.UpdateStepResponse{Step: &boardv1.Step{StepId: r.GetStepId(), Status: r.GetStatus()}},
		p.record(ctx, r)
}

func (p *planes) CompleteBoard(ctx context.Context, r *boardv1.CompleteBoardRequest) (*boardv1.CompleteBoardResponse,
	error,
) {
	return &boardv1.CompleteBoardResponse{Board: boardWith(boardv1.BoardStatus_BOARD_STATUS_COMPLETED)},
		p.record(ctx, r)
}

func (p *planes) FailBoard(ctx context.Context, r *boardv1.FailBoardRequest) (*boardv1.FailBoardResponse, error) {
	return &boardv1.FailBoardResponse{
		Board:          boardWith(boardv1.BoardStatus_BOARD_STATUS_FAILED),
		TimedOutRunIds: []string{"run_2"},
	}, p.record(ctx, r)
}

func (p *planes) CancelBoard(ctx context.Context, r *boardv1.CancelBoardRequest) (*boardv1.CancelBoardResponse, error) {
	return &boardv1.CancelBoardResponse{Board: boardWith(boardv1.BoardStatus_BOARD_STATUS_CANCELLED)}, p.record(ctx, r)
}

// boardWith returns the board with a status.
func boardWith(s boardv1.BoardStatus) *boardv1.Board {
	b := newBoard()
	b.Status = s
	return b
}

func (p *planes) DispatchWorker(ctx context.Context, r *boardv1.DispatchWorkerRequest) (*boardv1.DispatchWorkerResponse,
	error,
) {
	return &boardv1.DispatchWorkerResponse{Run: newRun()}, p.record(ctx, r)
}

func (p *planes) ListWorkerRuns(ctx context.Context, r *boardv1.ListWorkerRunsRequest) (*boardv1.ListWorkerRunsResponse,
	error,
) {
	none := newRun()
	none.RunId, none.ClaimedStepId, none.NoStepClaimed, none.StepStatus, none.StepResultSummary = "run_2", "", true, 0,
		""
	return &boardv1.ListWorkerRunsResponse{Runs: []*boardv1.WorkerRun{newRun(), none}}, p.record(ctx, r)
}

func (p *planes) CancelWorkerRun(ctx context.Context, r *boardv1.CancelWorkerRunRequest) (
	*boardv1.CancelWorkerRunResponse, error,
) {
	run := newRun()
	run.Status, run.EndReason = boardv1.RunStatus_RUN_STATUS_CANCELLED,
		boardv1.RunEndReason_RUN_END_REASON_WORKER_CANCELLED
	return &boardv1.CancelWorkerRunResponse{Run: run}, p.record(ctx, r)
}

func standing() *boardv1.StandingDispatch {
	return &boardv1.StandingDispatch{DispatchId: "dsp_1", WorkerPoolId: "go", MaxParallel: 4, Running: 2, Open: true}
}

func (p *planes) OpenStandingDispatch(ctx context.Context, r *boardv1.OpenStandingDispatchRequest) (
	*boardv1.OpenStandingDispatchResponse, error,
) {
	return &boardv1.OpenStandingDispatchResponse{Dispatch: standing()}, p.record(ctx, r)
}

func (p *planes) CloseStandingDispatch(ctx context.Context, r *boardv1.CloseStandingDispatchRequest) (
	*boardv1.CloseStandingDispatchResponse, error,
) {
	return &boardv1.CloseStandingDispatchResponse{Dispatch: standing()}, p.record(ctx, r)
}

func (p *planes) ListWorkers(ctx context.Context, r *boardv1.ListWorkersRequest) (*boardv1.ListWorkersResponse, error) {
	return &boardv1.ListWorkersResponse{
		Workers: []*boardv1.BoardWorker{{
			WorkerId: "worker-1", WorkerPoolIds: []string{"go", "slow"}, Capacity: 2,
			RunIds: []string{"run_1"}, ConnectedAt: at,
		}},
	}, p.record(ctx, r)
}

func (p *planes) InspectBoard(ctx context.Context, r *boardv1.InspectBoardRequest) (*boardv1.InspectBoardResponse,
	error,
) {
	return &boardv1.InspectBoardResponse{
		Board: newBoard(), Runs: []*boardv1.WorkerRun{newRun()}, Dispatches: []*boardv1.StandingDispatch{standing()},
		Timeline: []string{walLine},
		Dispatched: []*boardv1.DispatchedStep{
			{RunId: "run_1", Now: newBoard().GetSteps()[0], UpdatedAfterDispatch: true},
		},
	}, p.record(ctx, r)
}

func (p *planes) GetTemplate(ctx context.Context, r *boardv1.GetTemplateRequest) (*boardv1.GetTemplateResponse, error) {
	return &boardv1.GetTemplateResponse{Text: "# How to write a board\n"}, p.record(ctx, r)
}

func (p *planes) GetSummary(ctx context.Context, r *boardv1.GetSummaryRequest) (*boardv1.GetSummaryResponse, error) {
	return &boardv1.GetSummaryResponse{Text: "build: running, 1 ready\n"}, p.record(ctx, r)
}

const walLine = `{"wal_seq":1,"event_type":"task_created"}`

func (p *planes) ListWals(ctx context.Context, r *boardv1.ListWalsRequest) (*boardv1.ListWalsResponse, error) {
	return &boardv1.ListWalsResponse{Wals: []*boardv1.Wal{{
		WalName: "build", BoardId: "build", WalPath: newBoard().GetWalPath(), LastWalSeq: 3,
		Status: boardv1.BoardStatus_BOARD_STATUS_RUNNING,
	}}}, p.record(ctx, r)
}

// ReadWal has three lines and returns one per call.
func (p *planes) ReadWal(ctx context.Context, r *boardv1.ReadWalRequest) (*boardv1.ReadWalResponse, error) {
	if r.GetAfterWalSeq() >= 3 {
		return &boardv1.ReadWalResponse{LastWalSeq: 3}, p.record(ctx, r)
	}
	return &boardv1.ReadWalResponse{
		Lines: []byte(walLine + "\n"), LastWalSeq: r.GetAfterWalSeq() + 1, Truncated: r.GetAfterWalSeq() < 2,
	}, p.record(ctx, r)
}

func (p *planes) FollowWal(r *boardv1.FollowWalRequest,
	out grpc.ServerStreamingServer[boardv1.FollowWalResponse],
) error {
	if err := p.record(out.Context(), r); err != nil {
		return err
	}
	return out.Send(&boardv1.FollowWalResponse{Lines: []byte(walLine + "\n"), LastWalSeq: 1})
}

// fakeReplay counts the lines of a log; a "?" is damage, and so is a line after one with a "!".
func fakeReplay(in io.Reader) (boards.WAL, error) {
	raw, err := io.ReadAll(in)
	if err != nil {
		return boards.WAL{}, err
	}
	w := boards.WAL{}
	for _, b := range raw {
		w.Torn++
		if b == '\n' {
			w.Lines, w.Torn = w.Lines+1, 0
		}
		if b == '?' || b == '{' && bytes.Contains(raw, []byte("!")) {
			return w, fault.Storage.New("line 2 was changed")
		}
	}
	if w.Lines > 0 {
		w.Board = newBoard()
	}
	return w, nil
}
