package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/lane"
)

func (r *rig) briefs(req *agentv1.ListBriefsRequest) []*agentv1.Brief {
	r.t.Helper()
	req.AgentId = "keeper"
	var all []*agentv1.Brief
	for {
		resp, err := r.service.ListBriefs(r.operator(), req)
		require.NoError(r.t, err)
		all = append(all, resp.GetBriefs()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return all
		}
	}
}

const (
	ack     = agentv1.BriefKind_BRIEF_KIND_ACK
	result  = agentv1.BriefKind_BRIEF_KIND_RESULT
	failure = agentv1.BriefKind_BRIEF_KIND_FAILURE
)

// promoted returns the work plane's word that an item has its report.
func promoted(briefID, itemID, text string) *journal.Event {
	return &journal.Event{Namespace: "acme", AgentID: "keeper", WorkItemID: itemID, Payload: &workv1.ReportPromoted{
		WorkItem: &workv1.WorkItemRecord{WorkItemId: itemID}, BriefId: briefID, Text: text, TurnId: "trn_1",
	}}
}

// A message is acknowledged once, however often it is taken up; a turn's last
// words are told unless a report was (SPEC C3, W7).
func TestC3_Briefs(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "build it", normal)
	a := r.take("keeper")
	r.finish(a, retryable)
	a = r.take("keeper")
	r.submit(a, 0, "I look")
	r.submit(a, 1, "It is built.")
	r.finish(a, done)
	r.finish(a, done) // a second end tells nothing again
	all := r.briefs(&agentv1.ListBriefsRequest{})
	require.Len(t, all, 2)
	require.Equal(t, result, all[0].GetKind())
	require.Equal(t, "It is built.", all[0].GetText())
	require.Equal(t, a.GetTurn().GetTurnId(), all[0].GetTurnId())
	require.Equal(t, ack, all[1].GetKind())
	require.Contains(t, all[1].GetText(), "build it")

	r.send("keeper", "poison", normal)
	for range lane.MaxAttempts {
		r.finish(r.take("keeper"), retryable)
	}
	all = r.briefs(&agentv1.ListBriefsRequest{Kind: failure})
	require.Len(t, all, 1)

	r.send("keeper", "silence", normal)
	r.finish(r.take("keeper"), done)
	require.Len(t, r.briefs(&agentv1.ListBriefsRequest{Kind: result}), 1, "nothing was said")

	r.hear(promoted("brf_report", "wi_1", "the report"))
	require.Equal(t, "the report", r.briefs(&agentv1.ListBriefsRequest{WorkItemId: "wi_1"})[0].GetText())
	r.restart()
	again := r.briefs(&agentv1.ListBriefsRequest{PageSize: 1})
	require.Len(t, again, 6)
	require.Equal(t, "brf_report", again[0].GetBriefId())
	require.Len(t, r.briefs(&agentv1.ListBriefsRequest{Kind: ack}), 3)
	for _, bad := range []*agentv1.ListBriefsRequest{{PageSize: 501}, {PageToken: "x"}} {
		bad.AgentId = "keeper"
		_, err := r.service.ListBriefs(r.operator(), bad)
		require.Error(t, err)
		require.NotErrorIs(t, err, fault.InternalError)
	}
}

// A round that was promoted is told by its report alone (SPEC W7).
func TestW7_APromotedRoundIsReportedOnce(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	hang, proceed := make(chan struct{}), make(chan struct{})
	close(proceed)
	r.completeThenHang(hang, proceed)
	r.others.set(func() { r.others.promote = nil })
	r.send("keeper", "finish it", normal)
	a := r.take("keeper")
	resp := r.submit(a, 0, "All is done.", use("CompleteWorkItem", "work_item_id", "wi_1"))
	require.Equal(t, "wi_1", resp.GetPromotedWorkItemId())
	require.True(t, resp.GetTurnEnded())
	r.hear(promoted("brf_report", "wi_1", "All is done."))
	results := r.briefs(&agentv1.ListBriefsRequest{Kind: result})
	require.Len(t, results, 1)
	require.Equal(t, "brf_report", results[0].GetBriefId())
}
