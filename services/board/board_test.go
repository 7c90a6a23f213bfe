package board

import (
	"testing"

	"github.com/stretchr/testify/require"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/board/model"
)

func TestS2_ABoardFromItsBeginningToItsEnd(t *testing.T) {
	r := newRig(t)
	b := r.create("one", in("a"), in("b", "a"))
	require.Equal(t, model.BoardRunning, b.GetStatus())
	require.Equal(t, []string{"a"}, b.GetRootStepIds())
	runA := r.run("one", "w1")
	require.NoError(t, r.claim("one", "w1", runA, "a"))
	require.Equal(t, model.StepClaimed, r.step("one", "a").GetStatus())
	require.NoError(t, r.report("one", "w1", runA, "a", model.StepRunning))
	require.NoError(t, r.report("one", "w1", runA, "a", model.StepCompleted))
	require.Equal(t, model.StepReady, r.step("one", "b").GetStatus())
	runB := r.run("one", "w2")
	require.NoError(t, r.claim("one", "w2", runB, ""))
	require.NoError(t, r.report("one", "w2", runB, "b", model.StepCompleted))
	require.True(t, r.get("one").GetDiagnostics().GetCompleteable())
	_, err := r.service.CompleteBoard(r.owner(), &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "one"})
	require.NoError(t, err)
	require.Equal(t, []string{
		"task_created", "task_step_ready", "task_running", "worker_dispatched", "task_step_claimed",
		"task_step_started",
		"task_step_completed", "task_step_ready", "worker_dispatched", "task_step_claimed", "task_step_completed",
		"task_completed",
	}, planetest.Types(r.events()))
	require.Equal(t, model.BoardCompleted, r.get("one").GetStatus())
	require.Len(t, r.get("one").GetSteps(), 2)
}
