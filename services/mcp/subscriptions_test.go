package mcp_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/mcp"
	"quartet/tests/dev"
)

// uriOf returns the URI of an item's plan, or that of the briefs.
func uriOf(agentID, item string) string {
	if item == "" {
		return "quartet://agents/" + agentID + "/briefs"
	}
	return "quartet://agents/" + agentID + "/work-items/" + item + "/plan.md"
}

func (r *rig) newItem(agentID, objective string) *workv1.WorkItem {
	return must.Value(r.Work.CreateWorkItem(dev.Within(r.t), &workv1.CreateWorkItemRequest{
		AgentId: agentID, Objective: objective, Plan: "1. begin\n",
	}))(r.t).GetWorkItem()
}

func (r *rig) spawn(agentID string) {
	must.Value(r.Agents.SpawnAgent(dev.Within(r.t), &agentv1.SpawnAgentRequest{
		AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(r.t)
}

// SPEC C5.5: over stdio a client that subscribed to a plan or to the briefs is notified when they
// change: through the API, by another program, by a report.
func TestC5_Subscriptions(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	item := r.newItem("keeper", "Ship it")
	other := r.newItem("keeper", "Another")
	plan, briefs := uriOf("keeper", item.GetWorkItemId()), uriOf("keeper", "")
	for name, poll := range map[string]time.Duration{"by events": time.Hour, "by comparing": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			h := r.hand(t, mcp.Config{Version: "test", Poll: poll}, mcp.Options{AgentID: "keeper"}, r.conn)
			require.Contains(t, h.greeting, `"subscribe":true`)
			require.NotContains(t, h.request("resources/subscribe", `{"uri":"`+plan+`"}`), "error")
			require.NotContains(t, h.request("resources/subscribe", `{"uri":"`+briefs+`"}`), "error")
			write := func(id, text string) {
				must.Value(r.Home.WriteFile(dev.Within(t), &workv1.WriteFileRequest{
					AgentId: "keeper", Path: "work-items/" + id + "/plan.md", Text: text,
				}))(t)
			}
			write(other.GetWorkItemId(), "not subscribed "+name)
			write(item.GetWorkItemId(), "2. go on "+name)
			require.Contains(t, h.notified("notifications/resources/updated"), plan)

			if poll < time.Hour { // an editor reports no event
				path := item.GetPlanArtifact().GetPath()
				require.NoError(t, os.WriteFile(path+".new", []byte("3. edited"), 0o600))
				require.NoError(t, os.Rename(path+".new", path))
				require.Contains(t, h.notified("notifications/resources/updated"), plan)
			}

			reported := r.newItem("keeper", "To be reported "+name)
			require.Contains(t, h.request("tools/call", `{"name":"PickWorkItem","arguments":{"work_item_id":"`+
				reported.GetWorkItemId()+`"}}`), "success")
			require.Contains(t, h.request("tools/call", `{"name":"CompleteWorkItem","arguments":{"work_item_id":"`+
				reported.GetWorkItemId()+`","report":"Done."}}`), "success")
			require.Contains(t, h.notified("notifications/resources/updated"), briefs)

			require.NotContains(t, h.request("resources/unsubscribe", `{"uri":"`+plan+`"}`), "error")
			write(item.GetWorkItemId(), "4. no longer subscribed "+name)
			again := r.newItem("keeper", "To be reported again "+name)
			require.Contains(t, h.request("tools/call", `{"name":"PickWorkItem","arguments":{"work_item_id":"`+
				again.GetWorkItemId()+`"}}`), "success")
			require.Contains(t, h.request("tools/call", `{"name":"CompleteWorkItem","arguments":{"work_item_id":"`+
				again.GetWorkItemId()+`","report":"Done."}}`), "success")
			require.Contains(t, h.notified("notifications/resources/updated"), briefs, "and not the plan")
		})
	}
}

// SPEC C5.5: the protocol of 2026 subscribes with subscriptions/listen.
func TestC5_SubscriptionsOfAListeningClient(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	item := r.newItem("keeper", "Ship it")
	h := &heard{}
	s := r.serve(dev.Within(t), mcp.Config{Version: "test", Poll: 10 * time.Millisecond},
		mcp.Options{AgentID: "keeper"}, r.conn, h)
	require.NoError(t, s.Subscribe(dev.Within(t), &sdk.SubscribeParams{URI: uriOf("keeper", item.GetWorkItemId())}))
	edits := 0
	require.Eventually(t, func() bool { // the client's Subscribe may return before the server has acknowledged it
		edits++
		if os.WriteFile(item.GetPlanArtifact().GetPath(), fmt.Appendf(nil, "edit %d", edits), 0o600) != nil {
			return false
		}
		select {
		case uri := <-h.updated:
			return uri == uriOf("keeper", item.GetWorkItemId())
		default:
			return false
		}
	}, time.Minute, 50*time.Millisecond)
}

// SPEC C5.5: a session is subscribed to at most 100 resources, each of which exists.
func TestC5_SubscriptionsAtBelowAndAboveTheLimit(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	h := r.hand(t, mcp.Config{Version: "test"}, mcp.Options{AgentID: "keeper"}, r.conn)
	for _, uri := range []string{
		"file:///etc/passwd", uriOf("other", ""),
		uriOf("keeper", "wi_01m7xc9djrj3khnachkj8gd2n0"), uriOf("keeper", "nothing"), "",
	} {
		require.Contains(t, h.request("resources/subscribe", `{"uri":"`+uri+`"}`), `"error"`, uri)
	}
	uris := []string{uriOf("keeper", "")}
	for i := range mcp.MaxSubscriptions {
		uris = append(uris, uriOf("keeper", r.newItem("keeper", fmt.Sprint(i)).GetWorkItemId()))
	}
	last := uris[mcp.MaxSubscriptions]
	for _, uri := range uris[:mcp.MaxSubscriptions] {
		require.NotContains(t, h.request("resources/subscribe", `{"uri":"`+uri+`"}`), `"error"`)
	}
	refused := h.request("resources/subscribe", `{"uri":"`+last+`"}`)
	require.Contains(t, refused, "LIMIT_EXCEEDED")
	require.Contains(t, refused, "unsubscribe")
	require.NotContains(t, h.request("resources/subscribe", `{"uri":"`+uris[5]+`"}`), `"error"`,
		"again is no further one")
	require.NotContains(t, h.request("resources/unsubscribe", `{"uri":"`+uris[5]+`"}`), `"error"`)
	require.NotContains(t, h.request("resources/subscribe", `{"uri":"`+last+`"}`), `"error"`)
}

// SPEC C5.5: HTTP keeps no sessions, says that it has no subscriptions, and refuses them.
func TestC5_NoSubscriptionsOverHTTP(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	p := r.handOnHTTP(t, "keeper")
	answer := p.ask(hello)
	require.Contains(t, answer, `"resources":{"listChanged":true}`)
	require.NotContains(t, answer, `"subscribe"`)
	require.Contains(t, p.ask(`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"`+
		uriOf("keeper", "")+`"}}`), `"error"`)
}

// SPEC C5.6: an empty plan is a text that is empty, not contents without a text.
func TestC5_AnEmptyPlan(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	made := must.Value(r.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: "keeper", Objective: "Without a plan",
	}))(t)
	read := `{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"` +
		uriOf("keeper", made.GetWorkItem().GetWorkItemId()) + `"}}`
	for _, answer := range []string{r.handOnStdio(t, "keeper").ask(read), r.handOnHTTP(t, "keeper").ask(read)} {
		require.Contains(t, answer, `"text":""`)
		require.Contains(t, answer, `"mimeType":"text/markdown"`)
		require.Equal(t, 1, strings.Count(answer, `"uri"`))
	}
	s := must.Value(r.overHTTP(context.WithoutCancel(dev.Within(t)), "/mcp/keeper", &heard{}))(t)
	defer s.Close()
	got := must.Value(s.ReadResource(dev.Within(t), &sdk.ReadResourceParams{
		URI: uriOf("keeper", made.GetWorkItem().GetWorkItemId()),
	}))(t)
	require.Len(t, got.Contents, 1)
	require.Empty(t, got.Contents[0].Text)
}
