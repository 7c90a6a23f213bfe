package boards

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/cli/output"
)

// A board with more edges than a picture can show lists what each step needs by name.
func TestBoardWithTooManyEdges(t *testing.T) {
	b := &boardv1.Board{SessionId: "s", BoardId: "wide"}
	var all []string
	for i := range 40 {
		id := fmt.Sprintf("step-%d", i)
		all = append(all, id)
		b.Steps = append(b.Steps, &boardv1.Step{
			StepId: id, Required: true, Status: boardv1.StepStatus_STEP_STATUS_READY,
		})
	}
	for i := range 2 {
		b.Steps = append(b.Steps, &boardv1.Step{
			StepId: fmt.Sprintf("last-%d", i), Required: true,
			DependsOnStepIds: all, Status: boardv1.StepStatus_STEP_STATUS_PENDING,
		})
	}
	var out strings.Builder
	drawBoard(output.New(&out), b, time.Now())
	require.Contains(t, out.String(), "○ last-0   pending    needs step-0, step-1,")
	require.NotContains(t, out.String(), "─")
}
