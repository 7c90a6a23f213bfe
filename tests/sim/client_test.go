package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// agents are the agents of a run.
var agents = []string{"agent-0", "agent-1"}

// known is what the clients of a run were told.
type known struct {
	mu       sync.Mutex
	items    map[string][]string // by agent
	triggers []address
	waits    map[string][]string
	timers   map[string][]string
	ops      []registerOp
	calls    int
	refusals map[string]int
	owners   map[string]string   // agents of tasks
	tasks    map[string][]string // by agent
	gone     bool                // goneAgent was deleted
	wrong    error
}

// address is a trigger and what is delivered to it.
type address struct {
	id, token        string
	acked, attempted int64
}

func newKnown() *known {
	return &known{
		items: map[string][]string{}, waits: map[string][]string{}, timers: map[string][]string{},
		owners: map[string]string{}, tasks: map[string][]string{}, refusals: map[string]int{},
	}
}

func (k *known) violation(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wrong == nil {
		k.wrong = fmt.Errorf(format, args...)
	}
}

func (k *known) check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wrong
}

// client makes random calls, one after the other, and asks again until it gets an answer.
type client struct {
	w    *world
	k    *known
	name string
	rnd  *rand.Rand
	n    int

	agents  agentv1.AgentServiceClient
	work    workv1.WorkServiceClient
	waiting waitingv1.WaitingServiceClient

	answered []answered
}

// answered is a request that was answered: the same request must get the same answer.
type answered struct {
	at    time.Time
	what  string
	id    string // of the record in the answer
	again func() (string, error)
}

func newClient(w *world, k *known, name string, seed uint64) *client {
	return &client{
		w: w, k: k, name: name, rnd: rand.New(rand.NewPCG(seed, 0xc1)),
		agents:  agentv1.NewAgentServiceClient(w.conn(nil, name, "agent")),
		work:    workv1.NewWorkServiceClient(w.conn(nil, name, "work")),
		waiting: waitingv1.NewWaitingServiceClient(w.conn(nil, name, "waiting")),
	}
}

func (c *client) agent() string { return agents[c.rnd.IntN(len(agents))] }

func (c *client) as(agent string) context.Context {
	if agent == "" || c.rnd.IntN(3) == 0 {
		return planetest.As(c.w.ctx, rpc.RoleOperator)
	}
	return planetest.AsAgent(c.w.ctx, agent)
}

func (c *client) request() string {
	c.n++
	return fmt.Sprintf("%s-%d", c.name, c.n)
}

// item returns one of the agent's items, "" if it has none.
func (c *client) item(agent string) string { return c.pick(c.k.items[agent]) }

// pick returns one of the newest of a list that k.mu guards.
func (c *client) pick(all []string) string {
	n := c.rnd.IntN(4)
	if len(all) == 0 {
		return ""
	}
	return all[max(0, len(all)-1-n)]
}

// retried reports whether the outcome of a call is not known, or may be another one at the next try.
func retried(err error) bool {
	switch fault.From(err).Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// mostTries is after how many tries a call that is refused without a fault is given up.
const mostTries = 600

// until makes a call until it has an outcome.
func (c *client) until(ctx context.Context, what string, call func(ctx context.Context) error) error {
	for n := 0; ; n++ {
		one, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := call(one)
		cancel()
		if err == nil || !retried(err) || ctx.Err() != nil {
			c.k.mu.Lock()
			c.k.calls++
			if err != nil {
				c.k.refusals[what+" "+string(fault.From(err).Reason())]++
			}
			c.k.mu.Unlock()
			if err != nil && fault.From(err).Code() == codes.Internal && c.w.ctx.Err() == nil {
				c.k.violation("%s: %s is answered INTERNAL: %v %w", c.name, what, err, fault.From(err).Unwrap())
			}
			return err
		}
		if n > mostTries && c.w.q.Calmed() {
			c.k.violation("%s: %s gets no answer although nothing fails any more: %w", c.name, what, err)
			return err
		}
		<-time.After(50 * time.Millisecond)
	}
}

// mutate makes a mutation. id returns the record that an answer names; what is stored in a journal under the request
// must be there when the answer is.
//
//nolint:revive // the client is the receiver
func mutate[R proto.Message](c *client, ctx context.Context, plane, what string, id func(R) string,
	call func(ctx context.Context, requestID string) (R, error),
) (R, error) {
	request := c.request()
	var resp R
	ask := func() error {
		return c.until(ctx, what, func(ctx context.Context) (err error) {
			resp, err = call(ctx, request)
			return err
		})
	}
	err := ask()
	if err != nil {
		return resp, err
	}
	if !c.w.books.has(plane, request) {
		c.k.violation("%s: %s %s was answered and is not in the journal", c.name, what, request)
	}
	first := id(resp)
	c.answered = append(c.answered, answered{at: time.Now(), what: what, id: first, again: func() (string, error) {
		err := ask()
		if err != nil {
			return "", err
		}
		return id(resp), nil
	}})
	return resp, nil
}

// spawn creates the agents.
func (c *client) spawn() {
	for _, a := range agents {
		_, _ = mutate(c, planetest.As(c.w.ctx, rpc.RoleOperator), "agent", "SpawnAgent",
			func(r *agentv1.SpawnAgentResponse) string { return r.GetAgent().GetAgentId() },
			func(ctx context.Context, id string) (*agentv1.SpawnAgentResponse, error) {
				return c.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
					AgentId: a, RequestId: id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
				})
			})
	}
}

// run makes n calls.
func (c *client) run(n int) {
	for range n {
		if c.w.ctx.Err() != nil || c.k.check() != nil {
			return
		}
		if c.rnd.IntN(3) == 0 {
			<-time.After(time.Duration(c.rnd.IntN(400)) * time.Millisecond)
		}
		c.one()
	}
}

// one makes one call.
func (c *client) one() {
	a := c.agent()
	ctx := c.as(a)
	c.k.mu.Lock()
	item, wait, timer := c.item(a), c.pick(c.k.waits[a]), c.pick(c.k.timers[a])
	c.k.mu.Unlock()
	switch k := c.rnd.IntN(100); {
	case k < 16 || item == "":
		c.create(ctx, a)
	case k < 30:
		c.write(ctx, a, item)
	case k < 38:
		c.read(ctx, a, item)
	case k < 44:
		_, _ = mutate(c, ctx, "work", "PickWorkItem", func(r *workv1.PickWorkItemResponse) string {
			return r.GetWorkItem().GetWorkItemId()
		}, func(ctx context.Context, id string) (*workv1.PickWorkItemResponse, error) {
			return c.work.PickWorkItem(ctx, &workv1.PickWorkItemRequest{
				AgentId: a, RequestId: id, WorkItemId: item, Reason: "because",
			})
		})
	case k < 48:
		id := c.request()
		_ = c.until(ctx, "CompleteWorkItem", func(ctx context.Context) error {
			return must.Err(c.work.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{
				AgentId: a, RequestId: id, WorkItemId: item,
			}))
		})
	case k < 60:
		c.waitFor(ctx, a, item)
	case k < 64 && wait != "":
		id := c.request()
		_ = c.until(ctx, "CancelWait", func(ctx context.Context) error {
			_, err := c.waiting.CancelWait(ctx, &waitingv1.CancelWaitRequest{AgentId: a, RequestId: id, WaitId: wait})
			return err
		})
	case k < 68:
		c.timer(ctx, a, item)
	case k < 70 && timer != "":
		id := c.request()
		_ = c.until(ctx, "CancelTimer", func(ctx context.Context) error {
			return must.Err(c.waiting.CancelTimer(ctx, &waitingv1.CancelTimerRequest{
				AgentId: a, RequestId: id, TimerId: timer,
			}))
		})
	case k < 75:
		c.trigger(ctx, a, item)
	case k < 84:
		c.deliver()
	case k < 92:
		c.say(a, item)
	case k < 95:
		c.halt(a)
	default:
		c.repeat()
	}
}

// repeat makes an earlier request again (SPEC X2).
func (c *client) repeat() {
	n := c.rnd.IntN(1 << 16)
	if len(c.answered) == 0 {
		return
	}
	was := c.answered[n%len(c.answered)]
	// The product keeps history for longer than it remembers requests: 2 days at least, and 24 hours. What a world
	// removes earlier has no first answer.
	if h := c.w.history(); time.Since(was.at) > 20*time.Hour || h > 0 && time.Since(was.at) > h/2 {
		return
	}
	id, err := was.again()
	switch {
	case c.w.ctx.Err() != nil:
	case err != nil:
		c.k.violation("%s: %s was answered, and is refused when it is repeated: %w", c.name, was.what, err)
	case id != was.id:
		c.k.violation("%s: %s was answered with %s, and with %s when it is repeated", c.name, was.what, was.id, id)
	}
}

func (c *client) create(ctx context.Context, a string) {
	status := workv1.PlanStatus_PLAN_STATUS_READY
	if c.rnd.IntN(5) == 0 {
		status = workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT
	}
	value := c.request()
	begin := c.w.q.Steps()
	resp, err := mutate(c, ctx, "work", "CreateWorkItem", func(r *workv1.CreateWorkItemResponse) string {
		return r.GetWorkItem().GetWorkItemId()
	}, func(ctx context.Context, id string) (*workv1.CreateWorkItemResponse, error) {
		return c.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: a, RequestId: id, Objective: value, PlanStatus: status,
		})
	})
	if err != nil {
		return
	}
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	id := resp.GetWorkItem().GetWorkItemId()
	c.k.items[a] = append(c.k.items[a], id)
	c.k.ops = append(c.k.ops, registerOp{item: id, write: true, value: value, call: begin, back: c.w.q.Steps()})
}

// write sets the objective of an item, and sometimes another field.
func (c *client) write(ctx context.Context, a, item string) {
	value := c.request()
	req := &workv1.UpdateWorkItemRequest{AgentId: a, WorkItemId: item, Objective: &value}
	switch c.rnd.IntN(6) {
	case 0:
		blocker := "something"
		req.BlockedBy = &blocker
	case 1, 2:
		req.ClearBlockedBy = true
	case 3:
		req.RecheckAt = timestamppb.New(c.w.shift.Now().Add(time.Duration(1+c.rnd.IntN(60)) * time.Second))
	case 4:
		req.PlanStatus = workv1.PlanStatus(1 + c.rnd.IntN(3))
	}
	begin := c.w.q.Steps()
	_, err := mutate(c, ctx, "work", "UpdateWorkItem", func(r *workv1.UpdateWorkItemResponse) string {
		return fmt.Sprint(r.GetWorkItem().GetWorkItemId(), " ", r.GetWorkItem().GetRevision())
	}, func(ctx context.Context, id string) (*workv1.UpdateWorkItemResponse, error) {
		req := proto.CloneOf(req)
		req.RequestId = id
		return c.work.UpdateWorkItem(ctx, req)
	})
	if err == nil {
		c.k.note(registerOp{item: item, write: true, value: value, call: begin, back: c.w.q.Steps()})
	}
}

// read reads an item. What it shows must be stored (SPEC X1).
func (c *client) read(ctx context.Context, a, item string) {
	var it *workv1.WorkItem
	begin := 0
	err := c.until(ctx, "GetWorkItem", func(ctx context.Context) error {
		begin = c.w.q.Steps()
		r, err := c.work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: a, WorkItemId: item})
		it = r.GetWorkItem()
		return err
	})
	if err != nil {
		if c.w.ctx.Err() == nil {
			c.k.violation("%s: item %s was created, and reading it is refused: %w", c.name, item, err)
		}
		return
	}
	if it.GetRevision() > c.w.books.count("revision of item", item) {
		c.k.violation("%s: revision %d of item %s was shown and is not stored", c.name, it.GetRevision(), item)
	}
	c.k.note(registerOp{item: item, value: it.GetObjective(), call: begin, back: c.w.q.Steps()})
}

func (b *books) count(kind, id string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts[kind+" "+id]
}

func (k *known) note(op registerOp) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ops = append(k.ops, op)
}

func (c *client) waitFor(ctx context.Context, a, item string) {
	req := &waitingv1.WaitForRequest{AgentId: a, WorkItemId: item, Reason: "for " + c.request()}
	if c.rnd.IntN(4) == 0 {
		req.WorkItemId, req.Own = "", true
	}
	switch c.rnd.IntN(4) {
	case 0:
		req.Wake = waitingv1.Wake_WAKE_OPERATOR_INPUT
	case 1:
		req.Wake = waitingv1.Wake_WAKE_EXTERNAL
	default:
		req.Wake, req.After = waitingv1.Wake_WAKE_TIMER, durationpb.New(time.Duration(1+c.rnd.IntN(40))*time.Second)
	}
	if c.rnd.IntN(4) == 0 {
		req.RecheckAfter = durationpb.New(time.Duration(1+c.rnd.IntN(40)) * time.Second)
	}
	resp, err := mutate(c, ctx, "waiting", "WaitFor", func(r *waitingv1.WaitForResponse) string {
		return r.GetWait().GetWaitId()
	}, func(ctx context.Context, id string) (*waitingv1.WaitForResponse, error) {
		req := proto.CloneOf(req)
		req.RequestId = id
		return c.waiting.WaitFor(ctx, req)
	})
	if err == nil {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		c.k.waits[a] = append(c.k.waits[a], resp.GetWait().GetWaitId())
	}
}

func (c *client) timer(ctx context.Context, a, item string) {
	req := &waitingv1.CreateTimerRequest{
		AgentId: a, Description: "tick", After: durationpb.New(time.Duration(1+c.rnd.IntN(30)) * time.Second),
	}
	if c.rnd.IntN(2) == 0 {
		req.WorkItemId = item
	}
	if c.rnd.IntN(3) == 0 {
		req.Every, req.Count = durationpb.New(time.Duration(5+c.rnd.IntN(20))*time.Second), int64(1+c.rnd.IntN(3))
	}
	resp, err := mutate(c, ctx, "waiting", "CreateTimer", func(r *waitingv1.CreateTimerResponse) string {
		return r.GetTimer().GetTimerId()
	}, func(ctx context.Context, id string) (*waitingv1.CreateTimerResponse, error) {
		req := proto.CloneOf(req)
		req.RequestId = id
		return c.waiting.CreateTimer(ctx, req)
	})
	if err == nil {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		c.k.timers[a] = append(c.k.timers[a], resp.GetTimer().GetTimerId())
	}
}

func (c *client) trigger(ctx context.Context, a, item string) {
	req := &waitingv1.CreateExternalTriggerRequest{AgentId: a}
	if c.rnd.IntN(3) != 0 {
		req.WorkItemId = item
	}
	if c.rnd.IntN(3) == 0 {
		req.DeliveryMode = waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
	}
	if c.rnd.IntN(4) == 0 {
		req.ExpiresAt = timestamppb.New(c.w.shift.Now().Add(time.Duration(20+c.rnd.IntN(60)) * time.Second))
	}
	resp, err := mutate(c, ctx, "waiting", "CreateExternalTrigger",
		func(r *waitingv1.CreateExternalTriggerResponse) string { return r.GetTrigger().GetTriggerId() },
		func(ctx context.Context, id string) (*waitingv1.CreateExternalTriggerResponse, error) {
			req := proto.CloneOf(req)
			req.RequestId = id
			return c.waiting.CreateExternalTrigger(ctx, req)
		})
	if err == nil && resp.GetToken() != "" {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		c.k.triggers = append(c.k.triggers, address{id: resp.GetTrigger().GetTriggerId(), token: resp.GetToken()})
	}
}

// deliver calls a trigger, with an idempotency key.
func (c *client) deliver() {
	n := c.rnd.IntN(3)
	c.k.mu.Lock()
	at := max(0, len(c.k.triggers)-1-n)
	if len(c.k.triggers) == 0 {
		c.k.mu.Unlock()
		return
	}
	token := c.k.triggers[at].token
	c.k.triggers[at].attempted++
	c.k.mu.Unlock()
	request := c.request()
	err := c.until(planetest.As(c.w.ctx, rpc.RoleService), "DeliverTrigger", func(ctx context.Context) error {
		return must.Err(c.waiting.DeliverTrigger(ctx, &waitingv1.DeliverTriggerRequest{
			Token: token, RequestId: request, Body: []byte("news " + request), ContentType: "text/plain",
		}))
	})
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	if err == nil { // a call that was refused may be executed again, and counted
		c.k.triggers[at].acked++
	}
}

func (c *client) say(a, item string) {
	req := &agentv1.EnqueueMessageRequest{AgentId: a, Text: "hello", Priority: agentv1.Priority(c.rnd.IntN(5))}
	if c.rnd.IntN(2) == 0 {
		req.WorkItemId = item
	}
	_, _ = mutate(c, planetest.As(c.w.ctx, rpc.RoleOperator), "agent", "EnqueueMessage",
		func(r *agentv1.EnqueueMessageResponse) string { return r.GetMessageId() },
		func(ctx context.Context, id string) (*agentv1.EnqueueMessageResponse, error) {
			req := proto.CloneOf(req)
			req.RequestId = id
			return c.agents.EnqueueMessage(ctx, req)
		})
}

// halt pauses an agent, or aborts its turn, which pauses it too, and resumes it.
func (c *client) halt(a string) {
	ctx, pause, resume := planetest.As(c.w.ctx, rpc.RoleOperator), c.request(), c.request()
	abort := c.rnd.IntN(2) == 0
	_ = c.until(ctx, "PauseAgent", func(ctx context.Context) (err error) {
		if abort {
			_, err = c.agents.AbortRun(ctx, &agentv1.AbortRunRequest{AgentId: a, RequestId: pause})
		} else {
			_, err = c.agents.PauseAgent(ctx, &agentv1.PauseAgentRequest{AgentId: a, RequestId: pause})
		}
		return err
	})
	<-time.After(time.Duration(c.rnd.IntN(3000)) * time.Millisecond)
	_ = c.until(ctx, "ResumeAgent", func(ctx context.Context) error {
		return must.Err(c.agents.ResumeAgent(ctx, &agentv1.ResumeAgentRequest{AgentId: a, RequestId: resume}))
	})
}
