package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/tools"
)

// A result that the journal cannot take does not hold the round up: the call has
// its one result, which says so, and the turn goes on (SPEC C4, X8).
func TestC4_ResultsThatAreTooLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r, a := turn(t)
	text := ""
	r.on("ReadFile", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.ReadFileResponse{Text: text}, nil
	})
	read := func(n int) *agentv1.SubmitRoundResponse {
		resp := r.submit(a, r.turn(a).GetRounds(), "I read", asked(n)...)
		require.Len(t, resp.GetToolResults(), n)
		return resp
	}
	statuses := func(resp *agentv1.SubmitRoundResponse) (ok, refused int) {
		for _, res := range resp.GetToolResults() {
			if res.GetStatus() == tools.StatusSuccess {
				ok++
				continue
			}
			require.Equal(t, "limit_exceeded", res.GetError().GetKind())
			require.False(t, res.GetError().GetRetryable(), "the same call would end the same way")
			refused++
		}
		return ok, refused
	}
	// One byte in memory is six in the journal: what fits is not told by its length.
	const envelope = 200
	for size, fits := range map[int]bool{tools.MaxResult/tools.Escaped - envelope: true, tools.MaxResult/tools.Escaped +
		1: false, 1 << 20: false} {
		text = strings.Repeat("\x01", size)
		ok, refused := statuses(read(1))
		require.Equal(t, fits, ok == 1, "%d", size)
		require.Equal(t, !fits, refused == 1, "%d", size)
	}
	text = strings.Repeat("a", tools.MaxResult-envelope)
	ok, _ := statuses(read(1))
	require.Equal(t, 1, ok)

	// Together they stay within what a client takes.
	text = strings.Repeat("a", 1<<20)
	resp := read(40)
	ok, refused := statuses(resp)
	require.Equal(t, 7, ok)
	require.Equal(t, 33, refused)
	require.Less(t, proto.Size(resp), tools.MaxResults+1<<20)
	again, err := r.trySubmit(a, r.turn(a).GetRounds()-1, "I read", asked(40)...)
	require.NoError(t, err)
	require.True(t, proto.Equal(resp.GetToolResults()[39], again.GetToolResults()[39]))

	// Outside of a turn it is the same for each call.
	text = strings.Repeat("a", tools.MaxResult+1)
	require.Equal(t, "limit_exceeded", r.callTool(r.operator(), "", "", "HomeRead", "path", "x").GetResult().GetError().
		GetKind())

	// What was done stays done, and says so.
	r.on("CreateWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.CreateWorkItemResponse{
			WorkItem: &workv1.WorkItem{WorkItemId: "wi_1", Objective: strings.Repeat("a", tools.MaxResult)},
		}, nil
	})
	made := r.submit(a, r.turn(a).GetRounds(), "", use("CreateWorkItem", "objective", "x")).GetToolResults()[0]
	require.Equal(t, tools.StatusSuccess, made.GetStatus())
	require.Contains(t, made.GetSummaryText(), "too large")
	require.Contains(t, made.GetResult().GetFields()["dropped"].GetStringValue(), "do not repeat it")
	r.restart()
	r.finish(a, done)
}

func asked(n int) []*agentv1.ToolCall {
	calls := make([]*agentv1.ToolCall, n)
	for i := range calls {
		calls[i] = use("HomeRead", "path", "x")
	}
	return calls
}
