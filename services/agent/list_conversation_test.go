package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func (r *rig) conversation(req *agentv1.ListConversationRequest) *agentv1.ListConversationResponse {
	r.t.Helper()
	req.AgentId = "keeper"
	return must.Value(r.service.ListConversation(r.operator(), req))(r.t)
}

// What was said is read back whole, newest first, also what left the index of contexts long
// ago, and after a restart.
func TestC7_TheConversationIsReadBack(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	const said = 300 // more than the index has
	long := strings.Repeat("long ", 1000)
	began := r.clk.Now()
	for i := range said {
		r.clk.Advance(time.Second)
		r.send("keeper", fmt.Sprintf("Question %d about TEAL %s", i, long[:i%7*100]), normal)
		a := r.take("keeper")
		r.submit(a, 0, fmt.Sprintf("Answer %d", i))
		r.finish(a, done)
	}
	for range 2 {
		var all []*agentv1.Utterance
		token := ""
		for {
			page := r.conversation(&agentv1.ListConversationRequest{PageSize: 70, PageToken: token})
			all = append(all, page.GetUtterances()...)
			require.LessOrEqual(t, len(page.GetUtterances()), 70)
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		require.Len(t, all, 2*said)
		for i := range said {
			answer, question := all[2*i], all[2*i+1]
			n := said - 1 - i
			require.Equal(t, agentv1.Speaker_SPEAKER_AGENT, answer.GetSpeaker())
			require.Equal(t, fmt.Sprintf("Answer %d", n), answer.GetText())
			require.NotEmpty(t, answer.GetTurnId())
			require.Equal(t, agentv1.Speaker_SPEAKER_OPERATOR, question.GetSpeaker())
			require.Equal(t, fmt.Sprintf("Question %d about TEAL %s", n, long[:n%7*100]), question.GetText())
			require.NotEmpty(t, question.GetMessageId())
		}

		found := r.conversation(&agentv1.ListConversationRequest{Contains: "teal question 17"}).GetUtterances()
		require.Len(t, found, 13, "17, 117, 217 and 170 to 179")
		found = r.conversation(&agentv1.ListConversationRequest{
			Contains: "teal", Since: timestamppb.New(began.Add(3 * time.Second)),
			Until: timestamppb.New(began.Add(5 * time.Second)),
		}).GetUtterances()
		require.Len(t, found, 2)
		require.Contains(t, found[0].GetText(), "Question 3 ")
		require.Empty(t, r.conversation(&agentv1.ListConversationRequest{WorkItemId: "wi_none"}).GetUtterances())
		r.restart()
	}
}

// A search reads a bounded part of a long history with each call, and goes on where it stopped.
func TestC7_ASearchIsBounded(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "needle", normal)
	a := r.take("keeper")
	for i := range 1005 {
		r.submit(a, int32(i), "hay")
	}
	r.finish(a, done)
	page := r.conversation(&agentv1.ListConversationRequest{Contains: "needle"})
	require.Empty(t, page.GetUtterances())
	require.NotEmpty(t, page.GetNextPageToken())
	page = r.conversation(&agentv1.ListConversationRequest{Contains: "needle", PageToken: page.GetNextPageToken()})
	require.Len(t, page.GetUtterances(), 1)
	require.Empty(t, page.GetNextPageToken())
	require.Len(t, r.conversation(&agentv1.ListConversationRequest{Contains: "hay", PageSize: 3}).GetUtterances(), 3)
}

func TestC7_SearchesThatAreNotTaken(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for name, req := range map[string]*agentv1.ListConversationRequest{
		"words": {Contains: strings.Repeat("a", 257)},
		"time":  {Since: &timestamppb.Timestamp{Nanos: -1}},
		"until": {Until: &timestamppb.Timestamp{Seconds: 1 << 60}},
		"size":  {PageSize: 501},
		"token": {PageToken: "x"},
	} {
		req.AgentId = "keeper"
		_, err := r.service.ListConversation(r.operator(), req)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, fault.InternalError, name)
	}
	must.Value(r.service.ListConversation(r.operator(), &agentv1.ListConversationRequest{
		AgentId: "keeper", Contains: strings.Repeat("a", 256),
	}))(t)
	_, err := r.service.ListConversation(r.operator(), &agentv1.ListConversationRequest{AgentId: "nobody"})
	require.ErrorIs(t, err, fault.NotFound)
}
