package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const agentID = "release-keeper"

const (
	approvalObjective = "Get the release approved by the release board"
	mirrorsObjective  = "Let the mirrors settle before the announcement"
	checkObjective    = "Check package "
)

// keeper is the program of the agent. It keeps no state between turns.
type keeper struct {
	api  *client.Client
	tell *teller
	pkgs []string
	asks chan<- string // the trigger URL that the outside system should call
}

// run takes turns until ctx ends, and then returns nil. If a turn fails, it stops and returns the error.
func (k *keeper) run(ctx context.Context) error {
	turns, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	err := k.api.RunTurns(turns, client.RunnerOptions{
		Name: "release-keeper-program", AgentIDs: []string{agentID}, Poll: 20 * time.Second,
		Finished: func(t *client.Turn, err error) {
			if err != nil {
				failed(fmt.Errorf("turn %s: %w", t.Record.GetTurnId(), err))
			}
		},
	}, func(ctx context.Context, got *client.Turn) error {
		return (&turn{k: k, got: got}).think(ctx)
	})
	if err == nil {
		err = context.Cause(turns)
	}
	return unlessOver(ctx, err)
}

// unlessOver returns err, or nil if ctx has ended.
func unlessOver(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// turn executes one turn.
type turn struct {
	k   *keeper
	got *client.Turn
}

// think does the work of a turn. For the operator's message it first creates the work items.
// Then it advances the items that the context shows as triggered, and the item that the
// message is about. For a message about no item, and for a tick with reason pick_queued, it
// advances the first runnable item instead.
func (t *turn) think(ctx context.Context) error {
	m := t.got.Message
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
	// The scheduler does not wake the agent again for items that a context has shown as triggered.
	for _, id := range t.triggered() {
		if id == item || t.got.Ended() {
			continue
		}
		if err := t.advance(ctx, id); err != nil {
			return err
		}
	}
	if item != "" && !t.got.Ended() {
		return t.advance(ctx, item)
	}
	return nil
}

// triggered returns the items of the context whose external trigger was delivered.
func (t *turn) triggered() []string {
	var ids []string
	for _, v := range t.got.Context.GetQueue().GetFields()["triggered_blocked"].GetListValue().GetValues() {
		ids = append(ids, v.GetStructValue().GetFields()["work_item_id"].GetStringValue())
	}
	return ids
}

// firstQueued returns the id of the first runnable item in the context, or named if there is none.
func (t *turn) firstQueued(named string) string {
	queued := t.got.Context.GetQueue().GetFields()["queued_runnable"].GetListValue().GetValues()
	for _, v := range queued {
		return v.GetStructValue().GetFields()["work_item_id"].GetStringValue()
	}
	return named
}

// round submits a round with a text and calls, and returns the results of the calls. It returns an error if one of
// them failed.
func (t *turn) round(ctx context.Context, text string, calls ...*agentv1.ToolCall) ([]*agentv1.ToolResult, error) {
	for i, c := range calls {
		c.CallId = fmt.Sprintf("call_%d_%d", t.got.Rounds(), i)
	}
	resp, err := t.got.Round(ctx, client.Reply{Text: text, Calls: calls})
	if err != nil {
		return nil, err
	}
	for i, r := range resp.GetToolResults() {
		if r.GetStatus() != agentv1.ToolStatus_TOOL_STATUS_SUCCESS {
			return nil, fmt.Errorf("%s(%v): %s", calls[i].GetName(), calls[i].GetArguments(), r.GetError().GetMessage())
		}
	}
	return resp.GetToolResults(), nil
}

func call(name string, args map[string]any) (*agentv1.ToolCall, error) {
	return client.Call("", name, args) // round sets the call id
}

// act submits a round of one call and returns its result.
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

// callsPerRound is the maximum number of calls of a round.
const callsPerRound = 60

// begin creates the work items of the operator's request, each with a plan and todos.
func (t *turn) begin(ctx context.Context) error {
	var calls []*agentv1.ToolCall
	add := func(objective, plan string, todos ...string) error {
		var list []any
		for _, text := range todos {
			list = append(list, map[string]any{"text": text, "state": "pending"})
		}
		c, err := call("CreateWorkItem", map[string]any{
			"objective": objective, "plan_status": "ready", "plan": plan,
			"todo_list": list,
		})
		calls = append(calls, c)
		return err
	}
	for _, p := range t.k.pkgs {
		plan := "Package " + p + "\n\nScope: static checks and tests of this package alone.\nMethod: go vet, then go " +
			"test without vetting again. A failure is reported, not fixed.\n"
		if err := add(checkObjective+p, plan, "go vet "+p, "go test -short -vet=off "+p); err != nil {
			return err
		}
	}
	if err := add(approvalObjective, "Ask the release board through a trigger URL and wait for its answer.\n",
		"ask the board", "look at its answer"); err != nil {
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
			// The plan is a file in the agent's home and is edited like any file.
			path := item["plan_artifact"].GetStructValue().GetFields()["path"].GetStringValue()
			accepted := "\nAccepted by the agent at " + time.Now().UTC().Format(time.RFC3339) + ".\n"
			err := appendTo(path, accepted)
			if errors.Is(err, fs.ErrNotExist) { // the server is another machine
				err = t.k.appendRemote(ctx, path, accepted)
			}
			if err != nil {
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

// appendRemote is appendTo through the API, for a server on another machine.
func (k *keeper) appendRemote(ctx context.Context, path, text string) error {
	parts := strings.Split(path, "/")
	name := strings.Join(parts[max(0, len(parts)-3):], "/") // work-items/ID/plan.md, in the home
	read, err := client.Again(ctx, func(ctx context.Context) (*workv1.ReadFileResponse, error) {
		return k.api.Home.ReadFile(ctx, &workv1.ReadFileRequest{AgentId: agentID, Path: name})
	})
	if err != nil {
		return err
	}
	text = read.GetText() + text
	_, err = client.Again(ctx, func(ctx context.Context) (*workv1.WriteFileResponse, error) {
		return k.api.Home.WriteFile(ctx, &workv1.WriteFileRequest{AgentId: agentID, Path: name, Text: text})
	})
	return err
}

// advance works on one item until the item is completed or must wait for something.
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

// str returns the string at a path of keys in a result; "" if there is none.
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
