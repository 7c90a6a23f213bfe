package model

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// A run never calls as the orchestrator, which is the caller without a run (S2-365): not on a board of the same id
// beside its own either, whether its own has ended or not.
func TestCallerRun(t *testing.T) {
	board := func(id string) *Board {
		st := NewState(time.Minute)
		require.NoError(t,
			st.Apply(&journal.Event{
				Namespace: "acme", SessionID: "keeper", TaskID: id, Type: "task_created", CreatedAt: time.Unix(0, 0),
				Payload: &boardv1.TaskCreated{WalName: id, Steps: []*boardv1.StepInput{{StepId: "a"}}},
			}))
		b := st.ActiveBoard(plane.KeyOf("acme", "keeper"), id)
		require.NotNil(t, b)
		return b
	}
	own, ended, other := board("build"), board("build"), board("test")
	ended.Status = boardv1.BoardStatus_BOARD_STATUS_CANCELLED
	st := NewState(time.Minute)
	for id, b := range map[string]*Board{"run_1": own, "run_2": ended} {
		st.Runs[plane.KeyOf("acme", id)] = &Run{Board: b}
	}
	for _, c := range []struct {
		board *Board
		run   string
		want  fault.Reason
	}{
		{own, "", ""},
		{own, "run_1", ""},
		{other, "run_1", fault.PermissionDenied},
		{board("build"), "run_1", fault.PermissionDenied},
		{board("build"), "run_2", fault.TaskTerminal},
		{own, "run_3", fault.RunStale},
	} {
		r, err := st.CallerRun(c.board, c.run)
		require.Equal(t, c.want == "" && c.run != "", r != nil, "%+v", c)
		var refused *fault.Error
		require.Equal(t, c.want != "", errors.As(err, &refused), "%+v", c)
		if refused != nil {
			require.Equal(t, c.want, refused.Reason(), "%+v", c)
		}
	}
}
