package board

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
)

// A board is not lost when a running step got a dependency that was cancelled afterwards: once
// the step is completed, the dependency can be removed and what it named be deleted (SPEC B8.1).
func TestB8_ADependencyThatWasCancelledCanBeRemoved(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"), in("done"))
	require.NoError(t, r.say("one", "done", model.StepCompleted))
	runID := r.held("one", "a")
	add := func(to string) *boardv1.Operation {
		return &boardv1.Operation{Op: model.OpAddDependency, StepId: "a", DependsOnStepId: to}
	}
	require.NoError(t, r.update("one", add("b"), add("done")))
	require.NoError(t, r.update("one", &boardv1.Operation{Op: model.OpCancelStep, StepId: "b"}))
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepCompleted))
	complete := func() error {
		_, err := r.service.CompleteBoard(r.owner(), &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "one"})
		return err
	}
	require.ErrorIs(t, complete(), fault.BoardNotCompleteable)
	remove := func(to string) *boardv1.Operation {
		return &boardv1.Operation{Op: model.OpRemoveDependency, StepId: "a", DependsOnStepId: to}
	}
	erase := &boardv1.Operation{Op: model.OpDeleteStep, StepId: "b"}
	require.ErrorIs(t, r.update("one", erase), fault.StepHasDependents)
	require.ErrorIs(t, r.update("one", remove("done")), fault.StepState, "a dependency that was satisfied is a fact")
	require.ErrorIs(t, r.update("one", add("b")), fault.StepState)
	require.NoError(t, r.update("one", remove("b"), erase))
	require.Equal(t, []string{"done"}, r.step("one", "a").GetDependsOnStepIds())
	require.Equal(t, model.StepCompleted, r.step("one", "a").GetStatus())
	r.restart()
	require.NoError(t, complete())
}

// The filters of QuerySteps hold for runs (S2-358, S2-359), with and without names of steps.
func TestS2_358_ARunsQueryHonoursItsFilters(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"), in("c", "a"), &boardv1.StepInput{StepId: "d", Title: "D", WorkerPoolId: "other"})
	runID := r.run("one", "w1")
	query := func(req *boardv1.QueryStepsRequest) ([]string, *boardv1.QueryStepsResponse) {
		req.SessionId, req.BoardId = owner, "one"
		resp := must.Value(r.service.QuerySteps(r.as("w1", runID), req))(t)
		found := []string{}
		for _, s := range resp.GetSteps() {
			found = append(found, s.GetStepId())
		}
		return found, resp
	}
	named := []string{"c", "b", "a"}
	for name, c := range map[string]struct {
		req  *boardv1.QueryStepsRequest
		want []string
	}{
		"all": {&boardv1.QueryStepsRequest{}, []string{"a", "b"}},
		"ready": {
			&boardv1.QueryStepsRequest{Statuses: []model.StepStatus{model.StepPending, model.StepReady}},
			[]string{"a", "b"},
		},
		"pending": {
			&boardv1.QueryStepsRequest{Statuses: []model.StepStatus{model.StepPending}},
			[]string{},
		},
		"its pool":     {&boardv1.QueryStepsRequest{WorkerPoolId: model.DefaultPool}, []string{"a", "b"}},
		"another pool": {&boardv1.QueryStepsRequest{WorkerPoolId: "other"}, []string{}},
		"a holder":     {&boardv1.QueryStepsRequest{ClaimedByAgentId: "w-a"}, []string{}},
		"limit":        {&boardv1.QueryStepsRequest{Limit: 1}, []string{"a"}},
		"offset":       {&boardv1.QueryStepsRequest{Offset: 1}, []string{"b"}},
		"beyond":       {&boardv1.QueryStepsRequest{Offset: 9}, []string{}},
		"named":        {&boardv1.QueryStepsRequest{StepIds: named}, named},
		"named, of statuses": {
			&boardv1.QueryStepsRequest{StepIds: named, Statuses: []model.StepStatus{model.StepReady}},
			[]string{"b", "a"},
		},
		"named, of another":      {&boardv1.QueryStepsRequest{StepIds: named, WorkerPoolId: "other"}, []string{}},
		"named, of a holder":     {&boardv1.QueryStepsRequest{StepIds: named, ClaimedByAgentId: "w1"}, []string{}},
		"named, one":             {&boardv1.QueryStepsRequest{StepIds: named, Limit: 1}, []string{"c"}},
		"named, after the first": {&boardv1.QueryStepsRequest{StepIds: named, Offset: 1}, []string{"b", "a"}},
	} {
		found, resp := query(c.req)
		require.Equal(t, c.want, found, name)
		require.False(t, resp.GetNoStepClaimed(), "%s: there are steps to claim", name)
	}
	_, resp := query(&boardv1.QueryStepsRequest{Limit: 1})
	require.True(t, resp.GetTruncated())
	require.NoError(t, r.claim("one", "w1", runID, "b"))
	found, _ := query(&boardv1.QueryStepsRequest{StepIds: named, ClaimedByAgentId: "w1"})
	require.Equal(t, []string{"b"}, found)
	require.NoError(t, r.report("one", "w1", runID, "b", model.StepCompleted))
	found, _ = query(&boardv1.QueryStepsRequest{StepIds: named})
	require.Equal(t, named, found, "steps that are named are there when they are completed")
}

// A run that ends a board changes what is not its own: PERMISSION_DENIED, as for UpdateBoard
// (S2-460). An agent whose profile has no boards, such as a private child, has none of the calls:
// TOOL_NOT_AVAILABLE, also for the boards of its parent (S2-458, S2-459).
func TestS2_458_WhoHasNoBoards(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	runID := r.run("one", "w1")
	roles := map[string]context.Context{
		"run": r.as("w1", runID), "worker": planetest.As(within(t), rpc.RoleWorker),
		"runner": planetest.As(within(t), rpc.RoleRunner), "integration": planetest.As(within(t), rpc.RoleIntegration),
	}
	for who, ctx := range roles {
		for call, err := range ends(ctx, r.service) {
			require.ErrorIs(t, err, fault.PermissionDenied, "%s by %s", call, who)
		}
	}
	require.ErrorIs(t, ends(r.operator(), r.service)["CompleteBoard"], fault.PermissionDenied)
	for call, err := range ends(planetest.AsAgent(within(t), "other"), r.service) {
		require.ErrorIs(t, err, fault.PermissionDenied, call)
	}

	journals := planetest.NewJournals()
	s := must.Value(New(Config{}, Deps{
		Deps: plane.Deps{
			Log: journals.Log, Sources: journals.Sources, Clock: clock.NewFake(epoch), IDs: &id.Sequence{},
		},
		MintRun:      func(_, _, runID string) string { return runID },
		Orchestrates: func(_ context.Context, agentID string) (bool, error) { return agentID != "child", nil },
	}))(t)
	for _, session := range []string{owner, "child"} {
		require.ErrorIs(t, s.orchestrate(planetest.AsAgent(within(t), "child"), "board_get", session),
			fault.ToolNotAvailable, session)
		require.ErrorIs(t, s.mayEnd(planetest.AsAgent(within(t), "child"), "board_fail", session, true),
			fault.ToolNotAvailable, session)
	}
	require.ErrorIs(t, s.orchestrate(planetest.AsAgent(within(t), "other"), "board_get", owner), fault.PermissionDenied)
	require.NoError(t, s.orchestrate(planetest.AsAgent(within(t), owner), "board_get", owner))
}

// ends calls what ends a board.
func ends(ctx context.Context, s *Service) map[string]error {
	_, complete := s.CompleteBoard(ctx, &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "one"})
	out := map[string]error{"CompleteBoard": complete}
	if rpc.ActorFrom(ctx).Role != rpc.RoleOperator {
		_, out["FailBoard"] = s.FailBoard(ctx, &boardv1.FailBoardRequest{SessionId: owner, BoardId: "one"})
		_, out["CancelBoard"] = s.CancelBoard(ctx, &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "one"})
	}
	return out
}
