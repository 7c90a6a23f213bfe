package work

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/cli/output"
)

// A plan file that is not there, or is no text, is not shown as one that can be opened.
func TestC4_APlanThatIsMissing(t *testing.T) {
	for problem, want := range map[string]string{
		"":        "draft: /homes/plan.md\n",
		"missing": "draft: /homes/plan.md (missing)\n",
	} {
		var out bytes.Buffer
		p := output.New(&out)
		writeItem(p, &workv1.WorkItem{
			WorkItemId: "wi_1", PlanStatus: workv1.PlanStatus_PLAN_STATUS_DRAFT,
			PlanArtifact: &workv1.PlanArtifact{Path: "/homes/plan.md", Problem: problem},
		})
		require.Contains(t, out.String(), want)
	}
}
