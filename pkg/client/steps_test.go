package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/client"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/dev"
)

// lay makes a board of the session keeper, and lets the pool "go" work it.
func (r *rig) lay(boardID string, steps ...*boardv1.StepInput) {
	must.Value(r.Boards.CreateBoard(dev.Within(r.t), &boardv1.CreateBoardRequest{
		SessionId: "keeper", BoardId: boardID, WalName: boardID, Title: boardID, DefaultWorkerPoolId: "go",
		Steps: steps,
	}))(r.t)
	must.Value(r.Boards.OpenStandingDispatch(dev.Within(r.t), &boardv1.OpenStandingDispatchRequest{
		SessionId: "keeper", BoardId: boardID, WorkerPoolId: "go",
	}))(r.t)
}

func aStep(id string, needs ...string) *boardv1.StepInput {
	return &boardv1.StepInput{StepId: id, Title: id, DependsOnStepIds: needs}
}

func (r *rig) board(boardID string) *boardv1.Board {
	return must.Value(client.Again(dev.Within(r.t), func(ctx context.Context) (*boardv1.GetBoardResponse, error) {
		return r.Boards.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: "keeper", BoardId: boardID})
	}))(r.t).GetBoard()
}

func (r *rig) step(boardID, stepID string) *boardv1.Step {
	for _, s := range r.board(boardID).GetSteps() {
		if s.GetStepId() == stepID {
			return s
		}
	}
	require.FailNow(r.t, "no step "+stepID)
	return nil
}

// workSteps runs a worker until the test ends, or stop is called.
func (r *rig) workSteps(capacity int, handle client.StepHandler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- r.RunSteps(ctx, client.StepOptions{
			ID: "w-1", Pools: []string{"go"}, Capacity: capacity, Heartbeat: 50 * time.Millisecond,
		}, handle)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) eventually(is func() bool) {
	require.Eventually(r.t, is, time.Minute, 2*time.Millisecond)
}

// SPEC B11: steps in the order of their dependencies, with the results of what
// they need; what handlers say is what the board says.
func TestB11_RunSteps(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "")
	r.lay("build", aStep("fetch"), aStep("vet", "fetch"), aStep("ask", "fetch"), aStep("crash", "fetch"),
		aStep("fail", "fetch"))
	r.workSteps(3, func(_ context.Context, a *boardv1.StepAssignment) (client.StepResult, error) {
		switch a.GetStep().GetStepId() {
		case "vet":
			return client.StepResult{
				Summary:     "after " + a.GetDependencies()[0].GetResultSummary(),
				ArtifactIDs: []string{"report"},
			}, nil
		case "ask":
			return client.StepResult{Status: boardv1.StepStatus_STEP_STATUS_BLOCKED, Reason: "which key?"}, nil
		case "crash":
			panic("oh")
		case "fail":
			return client.StepResult{}, errors.New("no disk")
		}
		return client.StepResult{Summary: "12 MB"}, nil
	})
	r.eventually(func() bool {
		n := r.board("build").GetCounts()
		return n.GetCompleted() == 2 && n.GetBlocked() == 1 && n.GetFailed() == 2
	})
	require.Equal(t, "after 12 MB", r.step("build", "vet").GetResultSummary())
	require.Equal(t, []string{"report"}, r.step("build", "vet").GetArtifactIds())
	require.Equal(t, "which key?", r.step("build", "ask").GetReason())
	require.Contains(t, r.step("build", "crash").GetReason(), "panicked: oh")
	require.Equal(t, "no disk", r.step("build", "fail").GetReason())
}

// Whatever the server does meanwhile, every step is worked by one handler to its
// end, and its result is there (SPEC X14).
func TestX14_StepsOverRestarts(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "")
	const n = 60
	var steps []*boardv1.StepInput
	for i := range n {
		s := aStep(fmt.Sprint("s", i))
		if i > 2 {
			s.DependsOnStepIds = []string{fmt.Sprint("s", i-3)}
		}
		steps = append(steps, s)
	}
	r.lay("build", steps...)
	var mu sync.Mutex
	began := map[string]int{}
	r.workSteps(4, func(_ context.Context, a *boardv1.StepAssignment) (client.StepResult, error) {
		mu.Lock()
		defer mu.Unlock()
		began[a.GetStep().GetStepId()]++
		return client.StepResult{Summary: a.GetStep().GetStepId()}, nil
	})
	for _, done := range []int32{10, 30} {
		r.eventually(func() bool { return r.board("build").GetCounts().GetCompleted() >= done })
		r.Down()
		r.Up()
	}
	r.eventually(func() bool { return r.board("build").GetCounts().GetCompleted() == n })
	for _, s := range r.board("build").GetSteps() {
		require.Equal(t, s.GetStepId(), s.GetResultSummary())
		require.Equal(t, 1, began[s.GetStepId()], s.GetStepId())
	}
}

// A cancelled run ends its handler; a worker that ends gives its runs up, so that
// the next one can claim their steps.
func TestB10_StepsThatAreGivenUp(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "")
	r.lay("build", aStep("one"))
	why := make(chan error, 10)
	hang := func(ctx context.Context, _ *boardv1.StepAssignment) (client.StepResult, error) {
		<-ctx.Done()
		why <- context.Cause(ctx)
		return client.StepResult{}, ctx.Err()
	}
	stop := r.workSteps(1, hang)
	r.eventually(func() bool { return r.step("build", "one").GetStatus() == boardv1.StepStatus_STEP_STATUS_RUNNING })
	stop()
	require.ErrorIs(t, <-why, client.ErrStopping)
	r.eventually(func() bool { return r.step("build", "one").GetClaimedByRunId() == "" })

	r.workSteps(1, hang)
	if r.step("build", "one").GetStatus() == boardv1.StepStatus_STEP_STATUS_FAILED {
		must.Value(r.Boards.UpdateBoard(dev.Within(t), &boardv1.UpdateBoardRequest{
			SessionId: "keeper", BoardId: "build",
			Operations: []*boardv1.Operation{
				{Op: boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP, StepId: "one", Reason: "again"},
			},
		}))(t)
	}
	r.eventually(func() bool { return r.step("build", "one").GetStatus() == boardv1.StepStatus_STEP_STATUS_RUNNING })
	must.Value(r.Boards.CancelWorkerRun(dev.Within(t), &boardv1.CancelWorkerRunRequest{
		SessionId: "keeper", BoardId: "build", RunId: r.step("build", "one").GetClaimedByRunId(),
	}))(t)
	require.ErrorIs(t, <-why, client.ErrStopped)
}
