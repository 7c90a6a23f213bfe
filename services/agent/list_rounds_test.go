package agent

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/pkg/packed"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
	"quartet/services/agent/transcript"
)

// The whole transcript can be read back, by turn and by item, however long ago
// it was, the same after a restart; memory keeps the last turns only (SPEC C2).
func TestC2_TheTranscriptIsReadBack(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.spawn("other") // its rounds stand between keeper's in the journal
	r.on("PickWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		return &workv1.PickWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: req.(*workv1.PickWorkItemRequest).
			GetWorkItemId()}}, nil
	})
	const turns = state.KeptTurns + packed.GroupSize + 6
	var ids, runs []string
	for i := range turns {
		r.send("keeper", "go", normal)
		r.send("other", "go", normal)
		a := r.take("keeper")
		b := r.take("other")
		ids, runs = append(ids, a.GetTurn().GetTurnId()), append(runs, a.GetTurn().GetRunId())
		r.submit(a, 0, fmt.Sprint("first of ", i), use("PickWorkItem", "work_item_id", fmt.Sprintf("wi_%d", i%3)),
			use("Nonsense"))
		r.submit(b, 0, "not keeper's")
		r.submit(a, 1, fmt.Sprint("second of ", i))
		r.finish(a, done)
		r.finish(b, done)
	}
	list := func(req *agentv1.ListRoundsRequest) (all []*agentv1.Round) {
		req.AgentId = "keeper"
		for {
			resp := must.Value(r.service.ListRounds(r.operator(), req))(t)
			all = append(all, resp.GetRounds()...)
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return all
			}
		}
	}
	var first []*agentv1.Round
	for _, when := range []string{"live", "after a restart"} {
		all := list(&agentv1.ListRoundsRequest{PageSize: 7})
		require.Len(t, all, 2*turns, when)
		require.Equal(t, fmt.Sprint("second of ", turns-1), all[0].GetText())
		require.Equal(t, "first of 0", all[len(all)-1].GetText())
		require.Equal(t, []agentv1.ToolStatus{tools.StatusSuccess, tools.StatusError}, []agentv1.ToolStatus{
			all[1].GetToolResults()[0].GetStatus(), all[1].GetToolResults()[1].GetStatus(),
		})
		require.True(t, all[len(all)-1].GetSettled())
		require.Len(t, list(&agentv1.ListRoundsRequest{}), 2*turns)
		ofTurn := list(&agentv1.ListRoundsRequest{TurnId: ids[3]})
		require.Len(t, ofTurn, 2)
		require.Equal(t, "second of 3", ofTurn[0].GetText())
		ofItem := list(&agentv1.ListRoundsRequest{WorkItemId: "wi_1", PageSize: 3})
		for _, round := range ofItem {
			require.Equal(t, "wi_1", round.GetWorkItemId())
		}
		require.NotEmpty(t, ofItem)
		require.Empty(t, list(&agentv1.ListRoundsRequest{TurnId: "trn_none"}))
		require.Empty(t, list(&agentv1.ListRoundsRequest{WorkItemId: "wi_none"}))
		for _, at := range []int{0, turns / 2, turns - 1} {
			g, err := r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: ids[at]})
			require.NoError(t, err)
			require.Equal(t, ids[at], g.GetTurn().GetTurnId())
			require.Equal(t, agentv1.TurnState_TURN_STATE_COMPLETED, g.GetTurn().GetState())
			require.Len(t, g.GetRounds(), 2)
			require.Equal(t, fmt.Sprint("first of ", at), g.GetRounds()[0].GetText())
		}
		// A round of long ago is answered as it was then, and only as it was sent.
		again := func(text string) (*agentv1.SubmitRoundResponse, error) {
			return r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
				AgentId: "keeper", TurnId: ids[2], RunId: runs[2], RoundIndex: 0, Text: text,
				ToolCalls: []*agentv1.ToolCall{use("PickWorkItem", "work_item_id", "wi_2"), use("Nonsense")},
			})
		}
		was := must.Value(again("first of 2"))(t)
		require.Equal(t, []string{"success", "error/tool_not_available"}, statuses(was))
		require.False(t, was.GetTurnEnded(), "the turn went on after it")
		must.Refuse(again("something else"))(t, fault.RequestIDReused)
		if first != nil {
			require.Len(t, all, len(first))
			for i := range all {
				require.True(t, proto.Equal(first[i], all[i]), "round %d", i)
			}
		}
		first = all
		r.restart()
	}
	_, err := r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: "trn_none"})
	require.ErrorIs(t, err, fault.NotFound)
	_, err = r.service.ListRounds(r.operator(), &agentv1.ListRoundsRequest{AgentId: "keeper", PageToken: "x"})
	require.ErrorIs(t, err, fault.CursorInvalid)
	_, err = r.service.ListRounds(r.operator(), &agentv1.ListRoundsRequest{AgentId: "keeper", PageSize: 501})
	require.ErrorIs(t, err, fault.LimitExceeded)
}

// The coordinates of every round are what was put in, whatever their distances.
func TestC2_TranscriptCoordinates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr transcript.Index
		var want [][]uint64
		seq := uint64(0)
		step := rapid.Uint64Range(1, 1<<20)
		for range rapid.IntRange(0, 300).Draw(t, "rounds") {
			seq += step.Draw(t, "step")
			tr.BeginRound(seq, "")
			coordinates := []uint64{seq}
			for range rapid.IntRange(0, 3).Draw(t, "results") {
				seq += step.Draw(t, "step")
				tr.ExtendRound(seq)
				coordinates = append(coordinates, seq)
			}
			want = append(want, coordinates)
		}
		for n := range want {
			require.Equal(t, want[n], tr.Round(n))
		}
	})
}
