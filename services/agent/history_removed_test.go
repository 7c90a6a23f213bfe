package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/agent/state"
)

// What contexts may show of an agent is kept, however old it is. The rest of its history is removed, and lists end
// where it was (SPEC A15).
func TestA15_WhatIsLeftOfAnAgent(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.spawn("gone")
	r.on("PickWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		return &workv1.PickWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: req.(*workv1.PickWorkItemRequest).
			GetWorkItemId()}}, nil
	})
	_, err := r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: "gone"})
	require.NoError(t, err)
	const turns, perItem, indexed, needed = 150, 12, 256, 16
	items := []string{"wi_reported", "wi_open"}
	var ids []string
	for i := range turns {
		r.clk.Advance(time.Second)
		r.send("keeper", fmt.Sprint("question ", i), normal)
		a := r.take("keeper")
		ids = append(ids, a.GetTurn().GetTurnId())
		at := int32(0)
		if i < len(items)*perItem { // the second round is about an item
			r.submit(a, 0, "", use("PickWorkItem", "work_item_id", items[i/perItem]))
			at = 1
		}
		r.submit(a, at, fmt.Sprint("answer ", i), use("Nonsense"))
		r.finish(a, done)
	}
	r.hear(promoted("brf_1", "wi_reported", "done"))
	queued := r.send("keeper", "later", normal)
	whole := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
	require.Contains(t, whole.GetContext().GetText(), "[earlier parts are left out; ReadConversation has all of it]")
	r.restart() // nothing is cached

	removed := planetest.Forget(t, r.journals, Plane, registry, state.NewState(), r.clk.Now().Add(time.Hour))
	require.NotContains(t, planetest.Types(removed), "agent_spawned")
	require.NotContains(t, planetest.Types(removed), "agent_deleted")
	require.Contains(t, planetest.Types(removed), "turn_completed")

	rounds := func(req *agentv1.ListRoundsRequest) (texts []string) {
		t.Helper()
		req.AgentId, req.PageSize = "keeper", 7
		for {
			resp := must.Value(r.service.ListRounds(r.operator(), req))(t)
			for _, round := range resp.GetRounds() {
				texts = append(texts, round.GetText())
				require.True(t, round.GetSettled())
			}
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				require.True(t, resp.GetHistoryRemoved())
				return texts
			}
		}
	}
	answers := func(from, to int) (texts []string) {
		for i := from; i > to; i-- {
			texts = append(texts, fmt.Sprint("answer ", i))
		}
		return texts
	}
	require.Equal(t, answers(turns-1, turns-1-needed), rounds(&agentv1.ListRoundsRequest{}))
	require.Equal(t, answers(2*perItem-1, 2*perItem-1-state.ShownRounds),
		rounds(&agentv1.ListRoundsRequest{WorkItemId: "wi_open"}))
	require.Empty(t, rounds(&agentv1.ListRoundsRequest{WorkItemId: "wi_reported"}))

	for _, i := range []int{0, turns - 1 - needed} { // of the second one the record is in memory
		_, err = r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: ids[i]})
		require.ErrorIs(t, err, fault.HistoryRemoved)
		require.Equal(t, map[string]string{"agent_id": "keeper", "turn_id": ids[i]}, fault.From(err).Metadata())
	}
	got, err := r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: ids[turns-needed]})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint("answer ", turns-needed), got.GetRounds()[0].GetText())
	must.Refuse(r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: ids[0], RunId: "run_00000000000000000000000abc", RoundIndex: 0, Text: "again",
	}))(t, fault.HistoryRemoved)

	said := 0
	var oldest *agentv1.Utterance
	for token, more := "", true; more; more = token != "" {
		page := r.conversation(&agentv1.ListConversationRequest{PageSize: 70, PageToken: token})
		said += len(page.GetUtterances())
		oldest = page.GetUtterances()[len(page.GetUtterances())-1]
		token = page.GetNextPageToken()
		require.Equal(t, token == "", page.GetHistoryRemoved())
	}
	require.Equal(t, indexed+1, said, "the round before is shown of its item")
	briefs, err := r.service.ListBriefs(r.operator(), &agentv1.ListBriefsRequest{AgentId: "keeper", PageSize: 100})
	require.NoError(t, err)
	require.Len(t, briefs.GetBriefs(), needed)
	require.True(t, briefs.GetHistoryRemoved())

	shown := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
	require.Contains(t, shown.GetContext().GetText(), fmt.Sprint("answer ", turns-1))
	r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
		return &workv1.GetWorkQueueResponse{AgentId: "keeper", Current: &workv1.WorkItem{
			WorkItemId: "wi_open",
			Objective:  "go on",
		}}, nil
	}
	for range 2 { // the second time of what is remembered
		shown = must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
		require.Contains(t, shown.GetContext().GetText(), "[earlier parts are left out; ReadConversation has what "+
			"was said since "+oldest.GetCreatedAt().AsTime().Format(time.RFC3339)+
			"; what was said before was removed because of its age]\n")
		left := must.Value(r.service.ListRounds(r.operator(), &agentv1.ListRoundsRequest{
			AgentId: "keeper", WorkItemId: "wi_open", PageSize: 100,
		}))(t).GetRounds()[state.ShownRounds-1]
		require.Contains(t, shown.GetContext().GetText(), "\n## Notes on it, from what was done since "+
			left.GetCreatedAt().AsTime().Format(time.RFC3339)+
			"; your older rounds for it were removed because of their age\n- none\n")
	}
	r.others.queue = nil
	a := r.take("keeper") // its message was queued before
	require.Equal(t, queued, a.GetMessage().GetMessageId())
	require.Contains(t, a.GetContext().GetText(), fmt.Sprint("answer ", turns-1))
	r.submit(a, 0, "now")
	r.finish(a, done)
}

// An event that is needed no more is not needed later, whatever happens (SPEC A15).
func TestA15_NotNeededIsForGood(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for i := range 60 {
		r.send("keeper", fmt.Sprint("question ", i), normal)
		a := r.take("keeper")
		r.submit(a, 0, fmt.Sprint("answer ", i))
		r.finish(a, []agentv1.TurnOutcome{done, done, agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE}[i%3])
	}
	st := state.NewState()
	events := r.events()
	dropped := map[uint64]bool{}
	for i, ev := range events {
		require.NoError(t, st.Apply(ev))
		for _, old := range events[:i+1] {
			needs := st.Needs(old, ev.CreatedAt.Add(time.Hour))
			require.False(t, needs && dropped[old.WalSeq], "%s at %d", old.Type, old.WalSeq)
			dropped[old.WalSeq] = !needs
		}
	}
	require.NotEmpty(t, dropped)
}

// unreachable is a log whose single frames cannot be read, as from an archive in a bucket that does not answer.
type unreachable struct{ framelog.Log }

func (l unreachable) Get(ctx context.Context, _ uint64) (framelog.Frame, error) {
	<-ctx.Done()
	return framelog.Frame{}, ctx.Err()
}

// A context does not wait for an archive that cannot be reached only to say what was removed (SPEC A15.2).
func TestA15_AContextWithoutTheArchive(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for i := range 300 {
		r.send("keeper", fmt.Sprint("question ", i), normal)
		r.finish(r.take("keeper"), done)
	}
	r.journals.Wrap = func(_ string, inner framelog.Log) framelog.Log { return unreachable{inner} }
	r.restart() // nothing is cached
	for range 2 {
		got := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
		require.Contains(t, got.GetContext().GetText(), "question 299")
		require.Contains(t, got.GetContext().GetText(), "ReadConversation has all of it")
	}
}
