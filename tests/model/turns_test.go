package model

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/tests/planes"
)

// The operations of turns: what runners do.

func (r *run) runner() context.Context { return r.as(rpc.RoleRunner) }

// acquire asks for a turn of an agent.
func (r *run) acquire(n [6]int) {
	a := r.whom(n)
	// A turn waits, two seconds of real time at most, for the planes to agree on
	// what its message is about. That is too long to do often.
	if r.m.lag() && n[1]%50 != 0 {
		return
	}
	queue, open := a.inOrder(), a.turn != nil || a.paused
	resp, err := r.w.Agents().AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
		AgentIds: []string{a.id},
		RunnerId: "r", Wait: durationpb.New(0), RequestId: r.request(),
	})
	r.fine(err)
	if open {
		r.must(resp.GetTurn() == nil && resp.GetPending(), "a second run of %s, or one while it is paused", a.id)
		return
	}
	// Ticks that are stale are dropped on the way to the message that is taken.
	for _, q := range queue {
		taken := resp.GetTurn() != nil && q.id == resp.GetMessage().GetMessageId()
		if q.tick != nil {
			stale := r.m.stale(a, q.tick)
			r.must(!taken || !stale, "a stale tick was taken: %v", q.tick)
			r.must(taken || stale, "a tick that is true was dropped: %v", q.tick)
		}
		if !taken {
			r.happened["a stale tick"]++
			r.must(q.tick != nil, "%v of %s was not taken: the turn has %v", q.kind, a.id, resp.GetMessage())
			a.lane = slices.DeleteFunc(a.lane, func(x *message) bool { return x == q })
			if q.tick.GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT {
				a.wakes = nil // there was nothing left to tell
			}
			continue
		}
		t := &turn{id: resp.GetTurn().GetTurnId(), run: resp.GetTurn().GetRunId(), shown: map[string]int64{}}
		for _, s := range resp.GetTurn().GetShownWaits() {
			t.shown[s.GetWaitId()] = s.GetTriggerCount()
		}
		r.note("  turn %s with %v %v was shown %v", t.id, q.kind, q.tick, t.shown)
		r.shows(a, t)
		r.m.take(a, q, t)
		r.must(resp.GetTurn().GetWorkItemId() == t.bound, "a turn of %s is bound to %q, the model says %q", a.id,
			resp.GetTurn().GetWorkItemId(), t.bound)
		r.happened["bound by "+resp.GetTurn().GetBinding().String()]++
		r.interjected(a, resp.GetInterjections())
		r.shownQueue(a, resp.GetContext())
		return
	}
	r.must(resp.GetTurn() == nil, "%s got a turn with %v, which the model does not know", a.id, resp.GetMessage())
}

// drain takes turns of an agent, one after another: idle ones, or with a round.
func (r *run) drain(n [6]int) {
	for k := range 1 + n[1]%5 {
		v := n
		for j := 1; j < len(v); j++ {
			v[j] = (n[j]*17 + k*4099 + j*31337) % 65536
		}
		for _, do := range []func(*run, [6]int){(*run).acquire, (*run).round, (*run).finishTurn} {
			if v[2]%4 < 3 { // most turns come to nothing
				v[1], v[2] = 0, 3
			}
			do(r, v)
			r.settle()
			r.compare()
			r.gate(true)
			r.advance(time.Millisecond)
		}
		if len(r.whom(n).lane) == 0 {
			return
		}
	}
}

// interjected takes the messages that reached the turn out of the lane.
func (r *run) interjected(a *agent, all []*agentv1.Message) {
	for _, m := range all {
		at := slices.IndexFunc(a.lane, func(q *message) bool { return q.id == m.GetMessageId() })
		r.must(at >= 0, "an interjection that is not queued: %v", m)
		r.must(a.lane[at].priority == agentv1.Priority_PRIORITY_INTERJECT, "an interjection of another band: %v", m)
		a.turn.with = append(a.turn.with, a.lane[at])
		a.lane = slices.Delete(a.lane, at, at+1)
	}
	// None may be left behind at a safe point (SPEC A9).
	for _, q := range a.lane {
		r.must(q.priority != agentv1.Priority_PRIORITY_INTERJECT, "an interjection stayed in the lane at a safe point")
	}
}

// shows checks what a turn says it was shown: no count that is not there, and
// none left out of what is ranked first.
func (r *run) shows(a *agent, t *turn) {
	known := map[string]int64{}
	for _, w := range a.waits {
		if w.item == "" {
			known[w.id] = w.count
		}
	}
	for _, i := range a.items {
		for _, w := range i.waits {
			known[w.id] = w.count
		}
	}
	for id, n := range t.shown {
		r.must(known[id] == n, "a turn was shown %d triggers of wait %s, the model knows %d", n, id, known[id])
	}
	var triggered []*item
	for _, i := range a.items {
		if i.triggered(nil) && !i.runnable() {
			triggered = append(triggered, i)
		}
	}
	if len(triggered) > 3 {
		return // ties at the cap
	}
	for _, i := range triggered {
		for _, w := range i.waits {
			r.must(w.count == w.seen || t.shown[w.id] == w.count, "a turn was not shown what triggered item %s", i.id)
		}
	}
}

// round submits an assistant's reply with up to four calls.
func (r *run) round(n [6]int) {
	a := r.whom(n)
	if a.turn == nil {
		return
	}
	r.inRound = true
	defer func() { r.inRound = false }()
	t := a.turn
	var calls []*call
	kinds := []func(*agent, [6]int) *call{
		r.completeCall, r.updateCall, r.pickCall, r.waitForCall, r.createCall,
		r.completeCall, r.updateCall, r.createWaitCall, r.cancelWaitCall, r.pickCall,
	}
	req := &agentv1.SubmitRoundRequest{AgentId: a.id, TurnId: t.id, RunId: t.run, RoundIndex: int32(t.rounds)}
	for k := range n[1] % 5 {
		v := n
		for j := range v {
			v[j] = (n[j]*31 + k*7919 + j*104729) % 65536
		}
		c := kinds[v[1]%len(kinds)](a, [6]int{v[0], v[2], v[3], v[4], v[5], 1 + v[0]%28})
		args, err := structpb.NewStruct(c.args)
		r.fine(err)
		calls = append(calls, c)
		req.ToolCalls = append(req.ToolCalls, &agentv1.ToolCall{
			CallId: fmt.Sprint("c", k), Name: c.tool,
			Arguments: args,
		})
	}
	if n[2]%3 != 0 {
		req.Text = "a report"
	}
	resp, err := r.w.Agents().SubmitRound(r.runner(), req)
	r.fine(err)
	t.rounds, t.until = t.rounds+1, r.m.now.Add(turnTerm)
	ended := r.results(a, t, calls, req, resp)
	again, err := r.w.Agents().SubmitRound(r.runner(), req)
	if err == nil {
		for i, res := range again.GetToolResults() {
			r.must(proto.Equal(res, resp.GetToolResults()[i]), "a repeated round answers %v, at first it was %v", res,
				resp.GetToolResults()[i])
		}
	}
	r.must(err == nil, "a repeated round is refused: %v", err)
	if !ended {
		r.interjected(a, resp.GetInterjections())
	}
}

// results applies the calls of a round one by one and then the promotion.
func (r *run) results(a *agent, t *turn, calls []*call, req *agentv1.SubmitRoundRequest,
	resp *agentv1.SubmitRoundResponse,
) (ended bool) {
	text := req.GetText()
	r.must(len(resp.GetToolResults()) == len(calls), "%d results of %d calls", len(resp.GetToolResults()), len(calls))
	var completed []string
	waits := false
	for i, c := range calls {
		res := resp.GetToolResults()[i]
		r.note("  %s %v -> %s %s", c.tool, c.args, res.GetStatus(), res.GetError().GetKind())
		if waits {
			r.must(res.GetError().GetKind() == "turn_ended", "a call behind WaitFor: %v", res)
			continue
		}
		t.calls++
		want, got := c.want(), lower(res)
		r.must(slices.Contains(want, got), "%s %v: %q, the model says %q: %v", c.tool, c.args, got, want, res)
		if got != "" {
			continue
		}
		if it := r.m.items[c.completes]; it != nil &&
			(!it.done || it.report == "" && !slices.Contains(completed, it.id)) {
			completed = append(completed, it.id)
		}
		if repeated(c.tool) {
			t.effects = append(t.effects, fingerprint(req.GetToolCalls()[i], res))
		} else if !readsOnly(c.tool) && !res.GetResult().GetFields()["unchanged"].GetBoolValue() {
			t.changed = true
		}
		c.apply(result(res))
		waits = c.tool == "WaitFor"
		t.progress = t.progress || !result(res).GetFields()["unchanged"].GetBoolValue()
	}
	promoted := ""
	if text != "" && len(completed) == 1 { // wherever the focus is (SPEC W7.2)
		promoted = completed[0]
		r.m.items[promoted].report = text
		r.m.wrote(r.m.items[promoted])
	}
	r.must(resp.GetPromotedWorkItemId() == promoted, "the text became the report of %q, the model says %q",
		resp.GetPromotedWorkItemId(), promoted)
	ended = waits || promoted != ""
	if promoted != "" {
		r.happened["a promotion"]++
	}
	if ended {
		r.happened["a turn that a call ended"]++
	}
	r.happened["a call in a round"] += len(calls)
	r.must(resp.GetTurnEnded() == ended, "the round ended the turn: %t (%s), the model says %t", resp.GetTurnEnded(),
		resp.GetEndReason(), ended)
	if ended {
		r.m.finish(a, true, false)
		r.closed = append(r.closed, closedTurn{a, t.id, t.run, true})
	}
	return ended
}

// result returns a tool result with its warnings where an answer has them.
func result(res *agentv1.ToolResult) *structpb.Struct {
	s := proto.CloneOf(res.GetResult())
	if s == nil {
		s = &structpb.Struct{}
	}
	if s.Fields == nil {
		s.Fields = map[string]*structpb.Value{}
	}
	if s.GetFields()["warnings"] == nil {
		var all []*structpb.Value
		for _, w := range res.GetWarnings() {
			all = append(all, structpb.NewStructValue(w))
		}
		s.Fields["warnings"] = structpb.NewListValue(&structpb.ListValue{Values: all})
	}
	return s
}

func lower(res *agentv1.ToolResult) string {
	if res.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_SUCCESS {
		return ""
	}
	return string(fault.Reason(upper(res.GetError().GetKind())))
}

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'a' && c <= 'z' {
			b[i] = c - 32
		}
	}
	return string(b)
}

type closedTurn struct {
	a       *agent
	id, run string
	fine    bool // it ended in order, so that FinishTurn is a no-op
}

func (r *run) finishTurn(n [6]int) {
	a := r.whom(n)
	if a.turn == nil {
		return
	}
	t := a.turn
	outcome := []agentv1.TurnOutcome{0, 1, 1, 2, 2, 3, 4, 1}[n[1]%8]
	_, err := r.w.Agents().FinishTurn(r.runner(), &agentv1.FinishTurnRequest{
		AgentId: a.id, TurnId: t.id, RunId: t.run,
		Outcome: outcome,
	})
	r.fine(err)
	r.m.finish(a, outcome < 2, outcome > 2)
	r.happened["a turn finished as "+outcome.String()]++
	r.closed = append(r.closed, closedTurn{a, t.id, t.run, true})
}

// late speaks for a turn that has ended (SPEC A6).
func (r *run) late(n [6]int) {
	if len(r.closed) == 0 {
		return
	}
	c := r.closed[max(0, len(r.closed)-1-n[1]%4)]
	r.touched = c.a
	before := r.w.Tails()
	_, err := r.w.Agents().SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
		AgentId: c.a.id, TurnId: c.id,
		RunId: c.run, RoundIndex: 99, Text: "late",
	})
	r.answered(before, err, "RUN_STALE", "TURN_ENDED")
	_, err = r.w.Agents().FinishTurn(r.runner(), &agentv1.FinishTurnRequest{
		AgentId: c.a.id, TurnId: c.id,
		RunId: c.run,
	})
	r.answered(before, err, "", "RUN_STALE")
	r.must(r.w.Tails() == before, "a late runner left a line")
}

// pause keeps an agent from beginning turns; resume lets it (SPEC A8).
func (r *run) pause(n [6]int) {
	a := r.whom(n)
	_, err := r.w.Agents().PauseAgent(r.as(rpc.RoleOperator), &agentv1.PauseAgentRequest{
		AgentId: a.id, RequestId: r.request(),
	})
	r.fine(err)
	a.paused = true
}

func (r *run) resume(n [6]int) {
	a := r.whom(n)
	_, err := r.w.Agents().ResumeAgent(r.as(rpc.RoleOperator), &agentv1.ResumeAgentRequest{
		AgentId: a.id, RequestId: r.request(),
	})
	r.fine(err)
	a.paused = false
}

// abort ends the running turn, sometimes guarded by a run that is not open.
func (r *run) abort(n [6]int) {
	a, before := r.whom(n), r.w.Tails()
	req := &agentv1.AbortRunRequest{AgentId: a.id, RequestId: r.request()}
	want := ""
	if len(r.closed) > 0 && n[1]%4 == 0 {
		req.RunId, want = r.closed[len(r.closed)-1].run, "RUN_STALE"
	}
	_, err := r.w.Agents().AbortRun(r.as(rpc.RoleOperator), req)
	if req.GetRunId() != "" && r.aborted[req.GetRunId()] && err == nil {
		// It is what the guard asks for, and only remembered (SPEC X2.5).
		after, at := r.w.Tails(), slices.Index(planes.Names, "agent")
		r.must(slices.Equal(r.written(before[at]), []string{journal.TypeRequestAnswered}), "a run was aborted twice")
		after[at] = before[at]
		r.must(after == before, "a run was aborted twice")
		return
	}
	if !r.answered(before, err, want) {
		return
	}
	if t := a.turn; t != nil {
		r.closed = append(r.closed, closedTurn{a, t.id, t.run, true})
		r.aborted[t.run] = true
	}
	r.m.abort(a)
}

// written returns the types of the events that are in the agent plane's journal behind a frame.
func (r *run) written(frame uint64) (types []string) {
	log, err := r.w.Journals.Log("agent", 0)
	r.fine(err)
	r.fine(log.Scan(context.Background(), frame+1, func(_ uint64, f framelog.Frame) error {
		for line := range bytes.Lines(f.Body) {
			var ev struct {
				Type string `json:"event_type"`
			}
			if err := json.Unmarshal(line, &ev); err != nil {
				return err
			}
			types = append(types, ev.Type)
		}
		return nil
	}))
	return types
}

// repeated reports whether a call of a tool is progress only if it differs from those of the
// last turns (SPEC D9).
func repeated(tool string) bool {
	switch tool {
	case "PickWorkItem", "CompleteWorkItem", "CancelWait":
		return true
	}
	return false
}

func readsOnly(tool string) bool { return tool == "GetWorkItem" || tool == "ListWorkItems" }

// fingerprint names a call and what came of it, without ids, times and revisions.
func fingerprint(c *agentv1.ToolCall, res *agentv1.ToolResult) string {
	raw, err := json.Marshal([]any{c.GetName(), c.GetArguments().AsMap(), lasting(res.GetResult().AsMap())})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func lasting(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, below := range v {
			if !strings.HasSuffix(k, "_id") && !strings.HasSuffix(k, "_at") && k != "revision" {
				out[k] = lasting(below)
			}
		}
		return out
	case []any:
		var out []any
		for _, below := range v {
			out = append(out, lasting(below))
		}
		return out
	}
	return v
}
