package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

// The work that not every turn of an agent does: each constant says that one of so many turns does it.
const (
	triggerEach = 4
	boardEach   = 8
	commandEach = 16
	childEach   = 32

	lostAfter = 5 * time.Minute

	interjections = 3
	bodies        = 5 // rounds of a turn with a result of a tool, of up to bodyBytes
	bodyBytes     = 20_000
)

// busy is an agent of the year.
type busy struct {
	id      string
	mu      sync.Mutex   // held while the agent has a turn
	turns   atomic.Int64 // how many turns were begun
	trigger string       // id of the agent's trigger
	url     string       // of that trigger
}

// workload counts the turns of the present day. Its zero value is ready to use.
type workload struct {
	mu      sync.Mutex
	open    int // turns that a runner holds
	changed time.Time
	done    map[string]chan struct{} // by agent, closed when its turn has ended
	all     int                      // turns that have ended
	err     error                    // of the first turn that failed
}

func (w *workload) await(agent string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done = map[string]chan struct{}{}
	}
	w.done[agent] = make(chan struct{})
	return w.done[agent]
}

func (w *workload) began() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open, w.changed = w.open+1, time.Now()
}

func (w *workload) ended(t *client.Turn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open, w.changed = w.open-1, time.Now()
	w.all++
	switch {
	case errors.Is(err, client.ErrLost): // another turn will have its message
	case err != nil && w.err == nil:
		w.err = fmt.Errorf("turn %s of %s: %w", t.Record.GetTurnId(), t.Record.GetAgentId(), err)
	}
	if c := w.done[t.Record.GetAgentId()]; c != nil && isMain(t) && err == nil {
		close(c)
		delete(w.done, t.Record.GetAgentId())
	}
}

func (w *workload) quiet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open == 0 && time.Since(w.changed) >= quietFor
}

func (w *workload) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// isMain reports whether a delivery of the benchmark began the turn. Others are of children or about results.
func isMain(t *client.Turn) bool {
	k := t.Message.GetKind()
	return k == agentv1.MessageKind_MESSAGE_KIND_WEBHOOK_EVENT || k == agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT
}

// spawn makes the agents, each with three items that wait for somebody.
func (l *life) spawn(ctx context.Context) error {
	for i := range l.size {
		l.agents = append(l.agents, &busy{id: agentName(i)})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(yearRunners)
	for i, b := range l.agents {
		g.Go(func() error {
			if _, err := l.client.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
				AgentId: b.id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
			}); err != nil {
				return err
			}
			for n := range 3 {
				made, err := l.client.Work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
					AgentId: b.id, Objective: objective(3*i + n),
					PlanStatus: workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT,
				})
				if err != nil {
					return err
				}
				if i == 0 {
					l.probe = made.GetWorkItem().GetWorkItemId()
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// turns returns how many turns have ended since the last call of turns.
func (l *life) turns() int {
	l.work.mu.Lock()
	defer l.work.mu.Unlock()
	n := l.work.all
	l.work.all = 0
	return n
}

// month simulates the days of a month. Runners execute the agents' turns until the last day is over.
func (l *life) month(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- l.client.RunTurns(running, client.RunnerOptions{
			Name: "bench", Concurrency: yearRunners,
			Poll: 5 * time.Second, Finished: l.work.ended,
		}, l.turn)
	}()
	for day := range daysPerMonth {
		from, to := l.size*turnsPerMonth*day/daysPerMonth, l.size*turnsPerMonth*(day+1)/daysPerMonth
		g, today := errgroup.WithContext(ctx)
		g.SetLimit(yearRunners + 4)
		for i := from; i < to; i++ {
			b := l.agents[i%l.size]
			g.Go(func() error { return l.wakeUp(today, b) })
		}
		if err := errors.Join(g.Wait(), l.work.failed()); err != nil {
			return fmt.Errorf("day %d: %w", day+1, err)
		}
		for !l.work.quiet() {
			<-time.After(quietFor / 10)
		}
		if err := l.pass(24 * time.Hour); err != nil {
			return err
		}
		if err := l.seen(ctx); err != nil {
			return err
		}
	}
	stop()
	return <-ended
}

// seen waits until the server's clock shows the time that has passed.
func (l *life) seen(ctx context.Context) error {
	until := time.Now().Add(l.passed)
	for n := 0; ; n++ {
		text := objective(n)
		got, err := l.client.Work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
			AgentId:    agentName(0),
			WorkItemId: l.probe, Objective: &text,
		})
		if err != nil {
			return err
		}
		if !got.GetWorkItem().GetUpdatedAt().AsTime().Before(until) {
			return nil
		}
		<-time.After(20 * time.Millisecond)
	}
}

// wakeUp delivers an event to an agent and waits until its turn has ended.
func (l *life) wakeUp(ctx context.Context, b *busy) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.turns.Load()
	if n%triggerEach == 0 {
		if err := l.renew(ctx, b); err != nil {
			return err
		}
	}
	done := l.work.await(b.id)
	b.turns.Add(1)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url,
		strings.NewReader(prose(rng, 200+rng.IntN(1200))))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "text/plain")
	resp, err := proc.HTTP.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("the trigger answered %s", resp.Status)
	}
	select {
	case <-done:
		return nil
	case <-time.After(lostAfter):
		return fmt.Errorf("no turn of %s has ended %s after its trigger", b.id, lostAfter)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// renew cancels the agent's trigger, if it has one, and gives it a new one.
func (l *life) renew(ctx context.Context, b *busy) error {
	if b.trigger != "" {
		if _, err := l.client.Waiting.CancelExternalTrigger(ctx, &waitingv1.CancelExternalTriggerRequest{
			AgentId: b.id, TriggerId: b.trigger,
		}); err != nil {
			return err
		}
	}
	made, err := l.client.Waiting.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{
		AgentId: b.id, Description: "builds of the service",
		DeliveryMode: waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL,
	})
	if err != nil {
		return err
	}
	b.trigger, b.url = made.GetTrigger().GetTriggerId(), "http://"+l.srv.HTTP+"/v1/triggers/"+made.GetToken()
	return nil
}

// turn is the handler of a turn: it runs a script, or, for a turn that is not main, one round.
func (l *life) turn(ctx context.Context, t *client.Turn) error {
	l.work.began()
	if !isMain(t) {
		_, err := t.Round(ctx, client.Reply{Text: "I have looked at it, and there is nothing else to do about it."})
		return err
	}
	agent := t.Record.GetAgentId()
	i, _ := strconv.Atoi(strings.TrimPrefix(agent, "agent-"))
	n := int(l.agents[i].turns.Load())
	s := &script{life: l, t: t, agent: agent, n: n, rng: rand.New(rand.NewPCG(uint64(i), uint64(n)))}
	if err := s.run(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// script is what an agent does in one turn.
type script struct {
	life  *life
	t     *client.Turn
	agent string
	n     int // the number of the turn among the agent's turns
	rng   *rand.Rand
}

func (s *script) run(ctx context.Context) error {
	for range interjections {
		_, err := s.life.client.Agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
			AgentId: s.agent, Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
			Priority: agentv1.Priority_PRIORITY_INTERJECT, Text: prose(s.rng, 100+s.rng.IntN(500)),
		})
		if err != nil {
			return err
		}
	}
	todos := []any{
		map[string]any{"text": "read the log of the build"},
		map[string]any{"text": "find the commit that broke it"},
		map[string]any{"text": "mend it and run the tests"},
	}
	made, err := s.round(ctx, "", call{"CreateWorkItem", map[string]any{
		"objective": objective(s.rng.IntN(1e6)),
		"todo_list": todos,
	}})
	if err != nil {
		return err
	}
	item := made[0].GetFields()["work_item"].GetStructValue().GetFields()["work_item_id"].GetStringValue()
	if _, err := s.round(ctx, "", call{"PickWorkItem", map[string]any{"work_item_id": item}}); err != nil {
		return err
	}
	began, err := s.round(ctx, "",
		call{"CreateTimer", map[string]any{"description": "look at the build again", "after": "7200s"}},
		call{"CreateWait", map[string]any{"source": "github", "condition": "the build of the branch is green"}})
	if err != nil {
		return err
	}
	id := func(i int, record, field string) string {
		return began[i].GetFields()[record].GetStructValue().GetFields()[field].GetStringValue()
	}
	todos[0].(map[string]any)["state"] = "completed" //nolint:forcetypeassert // as it was made above
	_, err = s.round(ctx, "",
		call{"CancelTimer", map[string]any{"timer_id": id(0, "timer", "timer_id")}},
		call{"CancelWait", map[string]any{"wait_id": id(1, "wait", "wait_id")}},
		call{"UpdateWorkItem", map[string]any{"work_item_id": item, "todo_list": todos}})
	if err != nil {
		return err
	}
	var more []call
	if s.n%commandEach == 1 {
		more = append(more, call{"ExecCommand", map[string]any{"command": map[string]any{"cmd": "for i in 1 2 3 4 5 " +
			"6 7 8; do echo ok  quartet/pkg/$i; done"}, "yield_time": "30s"}})
	}
	if s.n%childEach == 2 {
		more = append(more, call{"SpawnAgent", map[string]any{"initial_message": "Find out since when the test " +
			"fails, and say so."}})
	}
	if _, err := s.round(ctx, "", more...); err != nil {
		return err
	}
	if s.n%boardEach == 3 {
		if err := s.board(ctx); err != nil {
			return err
		}
	}
	_, err = s.round(ctx, prose(s.rng, 800), call{"CompleteWorkItem", map[string]any{"work_item_id": item}})
	return err
}

// call is a call of a tool.
type call struct {
	name string
	args map[string]any
}

// round submits a round with calls and returns their results. Without a report it adds a local call and its result.
func (s *script) round(ctx context.Context, report string, calls ...call) (results []*structpb.Struct, err error) {
	reply := client.Reply{Text: report, Usage: &agentv1.TokenUsage{InputTokens: 12_000, OutputTokens: 700}}
	if report == "" {
		reply.Text = prose(s.rng, 100+s.rng.IntN(900))
		body, err := structpb.NewStruct(map[string]any{"content": prose(s.rng, s.body())})
		if err != nil {
			return nil, err
		}
		local, err := client.Call("local", "ReadFile",
			map[string]any{"path": fmt.Sprintf("services/build/%d.go", s.rng.IntN(1000))})
		if err != nil {
			return nil, err
		}
		reply.LocalCalls = []*agentv1.ToolCall{local}
		reply.Local = []*agentv1.ToolResult{
			{CallId: "local", ToolName: "ReadFile", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS, Result: body},
		}
	}
	for i, c := range calls {
		made, err := client.Call(strconv.Itoa(i), c.name, c.args)
		if err != nil {
			return nil, err
		}
		reply.Calls = append(reply.Calls, made)
	}
	resp, err := s.t.Round(ctx, reply)
	if err != nil {
		return nil, err
	}
	for _, r := range resp.GetToolResults() {
		if r.GetStatus() != agentv1.ToolStatus_TOOL_STATUS_SUCCESS {
			return nil, fmt.Errorf("%s: %s", r.GetToolName(), r.GetError().GetMessage())
		}
		results = append(results, r.GetResult())
	}
	return results, nil
}

// body returns the length of a tool's result: at most bodyBytes, and more often short than long.
func (s *script) body() int {
	x := s.rng.Float64()
	return 500 + int(x*x*x*x*(bodyBytes-500))
}

// board creates a board of four steps, and completes the steps and the board.
func (s *script) board(ctx context.Context) error {
	id, boards := "board-"+s.t.Record.GetTurnId(), s.life.client.Boards
	req := &boardv1.CreateBoardRequest{SessionId: s.agent, BoardId: id, WalName: id, Title: objective(s.n)}
	for i := range 4 {
		req.Steps = append(req.Steps, &boardv1.StepInput{StepId: fmt.Sprint("step-", i), Title: objective(i)})
	}
	if _, err := boards.CreateBoard(ctx, req); err != nil {
		return err
	}
	result := prose(s.rng, 500)
	for _, step := range req.GetSteps() {
		_, err := boards.UpdateStep(ctx, &boardv1.UpdateStepRequest{
			SessionId: s.agent, BoardId: id,
			StepId: step.GetStepId(), Status: boardv1.StepStatus_STEP_STATUS_COMPLETED, ResultSummary: &result,
		})
		if err != nil {
			return err
		}
	}
	_, err := boards.CompleteBoard(ctx, &boardv1.CompleteBoardRequest{SessionId: s.agent, BoardId: id})
	return err
}

// words are the words of which prose consists.
var words = strings.Fields("the build of service gateway fails since commit because test returns error when context " +
	"is cancelled before stream was read and retry sends request again with same id which server refuses as " +
	"duplicate so look at handler in file line expected got panic timeout deadline exceeded while waiting for " +
	"condition ok FAIL func return nil err != if := range struct interface package import const var type")

// prose returns a text of n bytes that can be compressed about as well as logs and sources.
func prose(rng *rand.Rand, n int) string {
	var b strings.Builder
	b.Grow(n + 24)
	for b.Len() < n {
		switch rng.IntN(12) {
		case 0:
			b.WriteByte('\n')
		case 1:
			b.WriteString(strconv.FormatUint(rng.Uint64N(1<<40), 36))
		default:
			b.WriteString(words[rng.IntN(len(words))])
		}
		b.WriteByte(' ')
	}
	return b.String()[:n]
}
