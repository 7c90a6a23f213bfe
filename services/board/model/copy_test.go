package model

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
)

// The copies of records that are written by hand have every field.
func TestACopyHasEveryField(t *testing.T) {
	step := planetest.Filled(&boardv1.Step{})
	requireEqual(t, step, CopyStep(step, step.GetUpdatedAt().AsTime()))
	run := planetest.Filled(&boardv1.WorkerRun{})
	requireEqual(t, run, CopyRun(run))

	// A dispatch that is shown is open; how many runs it has is not in its record.
	dispatch := planetest.Filled(&boardv1.StandingDispatch{})
	requireEqual(t, dispatch, (&Dispatch{Record: dispatch, Running: int(dispatch.GetRunning())}).shown())
}

func requireEqual(t *testing.T, want, got proto.Message) {
	t.Helper()
	require.True(t, proto.Equal(want, got), "want %s\ngot %s", want, got)
}
