package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

const agentID = "release-keeper"

const (
	approvalObjective = "Get the release approved by the release board"
	mirrorsObjective  = "Let the mirrors settle before the announcement"
	checkObjective    = "Check package "
)

// keeper is the agent. Between two turns it remembers nothing.
type keeper struct {
	api  *api
	tell *teller
	pkgs []string
	asks chan<- string // URLs that the outside world is asked to call
}

// run takes turns until ctx ends.
func (k *keeper) run(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		req := &agentv1.AcquireTurnRequest{
			AgentIds: []string{agentID}, RunnerId: "release-keeper-program",
			RequestId: fmt.Sprintf("%d-%d", os.Getpid(), n), Wait: durationpb.New(20 * time.Second),
		}
		got, err := again(ctx, func(ctx context.Context) (*agentv1.AcquireTurnResponse, error) {
			return k.api.agents.AcquireTurn(ctx, req)
		})
		if err != nil {
			return unlessOver(ctx, fmt.Errorf("acquire a turn: %w", err))
		}
		if got.GetPending() {
			continue
		}
		t := &turn{k: k, got: got}
		if err := t.think(ctx); err != nil {
			return unlessOver(ctx, fmt.Errorf("turn %s: %w", got.GetTurn().GetTurnId(), err))
		}
	}
	return nil
}

// unlessOver drops an error that is nothing but the end of the play.
func unlessOver(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// turn is one conversation about one message.
type turn struct {
	k     *keeper
	got   *agentv1.AcquireTurnResponse
	index int32
	ended bool
}

// think is the agent's mind: it looks at what woke it, and at the work as the
// control plane shows it.
func (t *turn) think(ctx context.Context) error {
	m := t.got.GetMessage()
	item := m.GetWorkItemId()
	switch m.GetKind() {
	case agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT:
		t.k.tell.say("agent", "reads the operator's message: %q", m.GetText())
		if err := t.begin(ctx); err != nil {
			return err
		}
	case agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT:
		first, _, _ := strings.Cut(m.GetText(), "\n")
		t.k.tell.say("agent", "is told: %s", first)
	default:
		t.k.tell.say("scheduler", "wakes the agent: %s", m.GetText())
	}
	if item == "" || m.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED {
		item = t.firstQueued(item)
	}
	if item != "" && !t.ended {
		if err := t.advance(ctx, item); err != nil {
			return err
		}
	}
	if t.ended {
		return nil
	}
	_, err := again(ctx, func(ctx context.Context) (*agentv1.FinishTurnResponse, error) {
		return t.k.api.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
			AgentId: agentID, TurnId: t.got.GetTurn().GetTurnId(), RunId: t.got.GetTurn().GetRunId(),
		})
	})
	return err
}

// firstQueued is the first runnable item of the context, else what was named.
func (t *turn) firstQueued(named string) string {
	queued := t.got.GetContext().GetQueue().GetFields()["queued_runnable"].GetListValue().GetValues()
	for _, v := range queued {
		return v.GetStructValue().GetFields()["work_item_id"].GetStringValue()
	}
	return named
}

// round submits what the agent says and does, and gives the results.
func (t *turn) round(ctx context.Context, text string, calls ...*agentv1.ToolCall) ([]*agentv1.ToolResult, error) {
	for i, c := range calls {
		c.CallId = fmt.Sprintf("call_%d_%d", t.index, i)
	}
	req := &agentv1.SubmitRoundRequest{
		AgentId: agentID, TurnId: t.got.GetTurn().GetTurnId(), RunId: t.got.GetTurn().GetRunId(),
		RoundIndex: t.index, Text: text, ToolCalls: calls,
	}
	resp, err := again(ctx, func(ctx context.Context) (*agentv1.SubmitRoundResponse, error) {
		return t.k.api.agents.SubmitRound(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	t.index++
	t.ended = resp.GetTurnEnded()
	for i, r := range resp.GetToolResults() {
		if r.GetStatus() != "success" {
			return nil, fmt.Errorf("%s(%v): %s", calls[i].GetName(), calls[i].GetArguments(), r.GetError().GetMessage())
		}
	}
	return resp.GetToolResults(), nil
}

func call(name string, args map[string]any) (*agentv1.ToolCall, error) {
	s, err := structpb.NewStruct(args)
	if err != nil {
		return nil, err
	}
	return &agentv1.ToolCall{Name: name, Arguments: s}, nil
}

// act is a round of one call, and its result.
func (t *turn) act(ctx context.Context, text, name string, args map[string]any) (map[string]any, error) {
	c, err := call(name, args)
	if err != nil {
		return nil, err
	}
	rs, err := t.round(ctx, text, c)
	if err != nil {
		return nil, err
	}
	return rs[0].GetResult().AsMap(), nil
}

// callsPerRound is how many calls one reply may hold.
const callsPerRound = 60

// begin turns the operator's wish into work items, each with a plan and todos.
func (t *turn) begin(ctx context.Context) error {
	var calls []*agentv1.ToolCall
	add := func(objective, plan string, todos ...string) error {
		var list []any
		for _, text := range todos {
			list = append(list, map[string]any{"text": text, "state": "pending"})
		}
		c, err := call("CreateWorkItem", map[string]any{"objective": objective, "plan_status": "ready", "plan": plan, "todo_list": list})
		calls = append(calls, c)
		return err
	}
	for _, p := range t.k.pkgs {
		plan := "Package " + p + "\n\nScope: static checks and tests of this package alone.\nMethod: go vet, then go test. A failure is reported, not mended.\n"
		if err := add(checkObjective+p, plan, "go vet "+p, "go test -short "+p); err != nil {
			return err
		}
	}
	if err := add(approvalObjective, "Ask the release board through a trigger URL and wait for its answer.\n", "ask the board", "look at its answer"); err != nil {
		return err
	}
	if err := add(mirrorsObjective, "Wait a few seconds before telling the world.\n", "wait"); err != nil {
		return err
	}
	for len(calls) > 0 {
		n := min(len(calls), callsPerRound)
		rs, err := t.round(ctx, "", calls[:n]...)
		if err != nil {
			return err
		}
		calls = calls[n:]
		for _, r := range rs {
			item := r.GetResult().GetFields()["work_item"].GetStructValue().GetFields()
			// The plan is a file of the agent's, edited like any file.
			path := item["plan_artifact"].GetStructValue().GetFields()["path"].GetStringValue()
			if err := appendTo(path, "\nAccepted by the agent at "+time.Now().UTC().Format(time.RFC3339)+".\n"); err != nil {
				return err
			}
		}
	}
	t.k.tell.say("agent", "made %d work items, each with a plan.md that it edits on disk", len(t.k.pkgs)+2)
	first, err := t.act(ctx, "", "ListWorkItems", map[string]any{"filter": "queued", "page_size": 1})
	if err != nil {
		return err
	}
	if items, _ := first["work_items"].([]any); len(items) > 0 {
		return t.advance(ctx, str(items[0], "work_item_id"))
	}
	return nil
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// advance brings one item as far as it goes now: to a wait, or to its end.
func (t *turn) advance(ctx context.Context, itemID string) error {
	picked, err := t.act(ctx, "", "PickWorkItem", map[string]any{"work_item_id": itemID, "reason": "its turn has come"})
	if err != nil {
		if strings.Contains(err.Error(), "is completed") {
			return nil // the wake-up outlived its reason
		}
		return err
	}
	it, _ := picked["work_item"].(map[string]any)
	switch objective := str(it, "objective"); {
	case objective == approvalObjective:
		return t.approval(ctx, it)
	case objective == mirrorsObjective:
		return t.mirrors(ctx, it)
	case strings.HasPrefix(objective, checkObjective):
		return t.check(ctx, it)
	}
	return nil
}

// str reads a string out of a result by its path.
func str(v any, path ...string) string {
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return ""
		}
		v = m[p]
	}
	s, _ := v.(string)
	return s
}
