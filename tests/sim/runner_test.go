package sim

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// runner takes turns, submits rounds with random tool calls, and sometimes vanishes in the middle.
type runner struct {
	*client
	turns int
	// modest says that it only completes the items that its turns are about, so that the world comes to rest, and
	// leaves no turn open.
	modest   bool
	commands bool // its tools execute commands
	extra    bool // it leaves when the world is to come to rest
	results  map[string]int
	again    agentv1.AgentServiceClient // on another connection
}

// twice sends a request for a turn a second time, at the same time as the first one. Its answer is lost, as that of a
// connection that was given up.
func (r *runner) twice(ctx context.Context, req *agentv1.AcquireTurnRequest) {
	one, cancel := context.WithTimeout(ctx, 40*time.Second)
	go func() {
		defer cancel()
		_, _ = r.again.AcquireTurn(one, req)
	}()
}

// run takes turns until ctx ends.
func (r *runner) run(ctx context.Context) {
	ctx = planetest.As(ctx, rpc.RoleRunner)
	for ctx.Err() == nil && r.k.check() == nil && (!r.extra || !r.w.q.Calmed()) {
		request := r.request()
		var resp *agentv1.AcquireTurnResponse
		for ctx.Err() == nil {
			req := &agentv1.AcquireTurnRequest{
				RunnerId: r.name, RequestId: request, Wait: durationpb.New(20 * time.Second),
			}
			if !r.modest && r.rnd.IntN(6) == 0 {
				r.twice(ctx, req)
			}
			one, cancel := context.WithTimeout(ctx, r.patience())
			var err error
			resp, err = r.agents.AcquireTurn(one, req)
			cancel()
			if err == nil {
				break
			}
			resp = nil
			<-time.After(100 * time.Millisecond)
		}
		if resp.GetTurn() != nil {
			r.turns++
			r.turn(ctx, resp)
		}
	}
}

// patience is after what time a request for a turn is given up and repeated, which may be while a turn is begun for it.
func (r *runner) patience() time.Duration {
	if r.modest || r.rnd.IntN(4) != 0 {
		return 40 * time.Second
	}
	return time.Duration(1+r.rnd.IntN(3000)) * time.Millisecond
}

// turn executes one turn.
func (r *runner) turn(ctx context.Context, resp *agentv1.AcquireTurnResponse) {
	t := resp.GetTurn()
	rounds := r.rnd.IntN(4)
	if r.modest {
		rounds = 1
	}
	for n := range rounds {
		if !r.modest && r.rnd.IntN(12) == 0 {
			return
		}
		req := &agentv1.SubmitRoundRequest{
			AgentId: t.GetAgentId(), TurnId: t.GetTurnId(), RunId: t.GetRunId(), RoundIndex: int32(n), Text: "text",
		}
		for k := range 1 + r.rnd.IntN(2) {
			name, args := r.tool(t)
			if r.modest {
				name, args = "CompleteWorkItem", map[string]any{"work_item_id": t.GetWorkItemId()}
			}
			if r.modest && (k > 0 || t.GetWorkItemId() == "") {
				break
			}
			s, err := structpb.NewStruct(args)
			if err != nil {
				panic(err)
			}
			req.ToolCalls = append(req.ToolCalls, &agentv1.ToolCall{
				CallId: fmt.Sprint("c", k), Name: name, Arguments: s,
			})
		}
		var got *agentv1.SubmitRoundResponse
		err := r.until(ctx, "SubmitRound", func(ctx context.Context) (err error) {
			got, err = r.agents.SubmitRound(ctx, req)
			return err
		})
		if err != nil {
			return
		}
		if len(got.GetToolResults()) != len(req.GetToolCalls()) {
			r.k.violation("a round of %d calls has %d results", len(req.GetToolCalls()), len(got.GetToolResults()))
		}
		for i, res := range got.GetToolResults() {
			r.results[req.GetToolCalls()[i].GetName()+" "+res.GetError().GetKind()]++
		}
		if got.GetTurnEnded() {
			return
		}
	}
	if !r.modest && r.rnd.IntN(12) == 0 {
		return
	}
	outcome := agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED
	if r.rnd.IntN(8) == 0 {
		outcome = agentv1.TurnOutcome(2 + r.rnd.IntN(3))
	}
	_ = r.until(ctx, "FinishTurn", func(ctx context.Context) error {
		_, err := r.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
			AgentId: t.GetAgentId(), TurnId: t.GetTurnId(), RunId: t.GetRunId(), Outcome: outcome,
		})
		return err
	})
}

// tool returns a random tool call.
func (r *runner) tool(t *agentv1.Turn) (name string, args map[string]any) {
	item := t.GetWorkItemId()
	if item == "" || r.rnd.IntN(4) == 0 {
		r.k.mu.Lock()
		item = r.item(t.GetAgentId())
		r.k.mu.Unlock()
	}
	if r.commands && r.rnd.IntN(5) == 0 {
		return r.command(t.GetAgentId(), item)
	}
	n := r.rnd.IntN(12)
	if item == "" && n > 1 {
		n = 0
	}
	switch n {
	case 0:
		return "CreateWorkItem", map[string]any{"objective": "made in " + t.GetTurnId(), "plan_status": "ready"}
	case 1:
		return "WaitFor", map[string]any{
			"wake": "timer", "reason": "a while",
			"after": fmt.Sprintf("%ds", 1+r.rnd.IntN(30)),
		}
	case 2:
		return "WaitFor", map[string]any{"wake": "operator_input", "reason": "a question", "work_item_id": item}
	case 3, 4, 5, 6:
		return "CompleteWorkItem", map[string]any{"work_item_id": item}
	case 7:
		return "PickWorkItem", map[string]any{"work_item_id": item, "reason": "next"}
	case 8:
		return "UpdateWorkItem", map[string]any{"work_item_id": item, "blocked_by": nil}
	default:
		return "UpdateWorkItem", map[string]any{"work_item_id": item, "plan_status": "ready"}
	}
}

// command returns a call that executes a command, or that waits for one.
func (r *runner) command(agent, item string) (name string, args map[string]any) {
	r.k.mu.Lock()
	task := r.pick(r.k.tasks[agent])
	r.k.mu.Unlock()
	if task == "" || r.rnd.IntN(2) == 0 {
		return "ExecCommand", map[string]any{
			"cmd": "true", "workdir": "/",
			"yield_time": fmt.Sprintf("%ds", r.rnd.IntN(8)),
		}
	}
	args = map[string]any{"wake": "task_result", "reason": "the command", "resource": task}
	if item != "" {
		args["work_item_id"] = item
	}
	return "WaitFor", args
}
