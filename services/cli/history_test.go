package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	workv1 "quartet/pkg/pb/quartet/work/v1"
)

func (p *planes) ListWorkItemHistory(ctx context.Context, r *workv1.ListWorkItemHistoryRequest) (
	*workv1.ListWorkItemHistoryResponse, error,
) {
	if r.GetPageToken() != "" {
		return &workv1.ListWorkItemHistoryResponse{HistoryRemoved: r.GetPageToken() == removedToken}, p.record(ctx, r)
	}
	todos, _ := structpb.NewValue([]any{map[string]any{"text": "build", "state": "pending"}})
	return &workv1.ListWorkItemHistoryResponse{NextPageToken: "abc", Mutations: []*workv1.WorkItemMutation{
		{
			Number: 9, EventType: "work_item_picked", At: at, Revision: 7, Principal: "agent/keeper", RunId: "run_1",
			TurnId: "trn_1",
			Reason: "the operator\nasked \x1b[31m", // from a model, so not to be trusted
			Changes: []*workv1.FieldChange{
				{Field: "is_current", From: structpb.NewBoolValue(true), To: structpb.NewBoolValue(false)},
			},
		},
		{
			Number: 8, EventType: "work_item_updated", At: at, Revision: 7, Principal: "operator",
			Changes: []*workv1.FieldChange{
				{Field: "blocked_by", From: structpb.NewStringValue("CI\x1b[31m")},
				{Field: "todo_list", To: todos},
			},
		},
	}}, p.record(ctx, r)
}

// removedToken is the token of a page that is older than history is kept.
const removedToken = "old"

// A list that ends where history was removed says so, and not that there was nothing (SPEC A15, W18).
func TestA15_ListsSayThatHistoryWasRemoved(t *testing.T) {
	r := newHarness(t)
	for _, args := range [][]string{
		{"work", "history", "keeper", "wi_1"},
		{"agent", "rounds", "keeper"},
		{"agent", "briefs", "keeper"},
		{"agent", "conversation", "keeper"},
	} {
		s := r.run(append(args, "--page-token", removedToken)...)
		require.Zero(t, s.code, s.err)
		require.Contains(t, s.out, "were removed: they are older than history is kept (history-days)", args)
		require.Len(t, strings.Split(strings.TrimSpace(s.out), "\n"), 1, args)
	}
}

func TestW11_History(t *testing.T) {
	r := newHarness(t)
	all := ""
	for _, args := range [][]string{{"keeper", "wi_1"}, {"keeper", "wi_1", "--page-token", "abc"}} {
		s := r.run(append([]string{"work", "history"}, args...)...)
		require.Zero(t, s.code, s.err)
		all += s.out + "\n"
	}
	require.NotContains(t, all, "\x1b")
	golden(t, "history", all)

	for oldest, args := range map[bool][]string{false: nil, true: {"--oldest-first"}} {
		s := r.run(append([]string{"work", "history", "keeper", "wi_1", "--page-size", "7"}, args...)...)
		require.Zero(t, s.code, s.err)
		asked, ok := r.planes.last.(*workv1.ListWorkItemHistoryRequest)
		require.True(t, ok)
		require.Equal(t, !oldest, asked.GetNewestFirst())
		require.EqualValues(t, 7, asked.GetPageSize())
	}
}
