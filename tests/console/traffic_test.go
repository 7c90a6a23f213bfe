package console

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const (
	// busy is the agent that has much more to do than others, and that people look at.
	busy = "agent-000000"
	// callers is how many calls the traffic has in flight at most.
	callers = 32
	// A message is queued, and a runner takes it in a turn of one round: so many events.
	eventsOfAMessage = 5
)

// population is the agents of a server, and what happens to them.
type population struct {
	*rig
	api    *client.Client
	agents int
	asking int      // the first ones after busy wait for an operator
	items  []string // agent/item; the items wait for a timer, so that nothing but the traffic changes them

	behind atomic.Int64 // calls that were due and not made, because earlier ones took too long
	failed atomic.Pointer[error]
}

// agentName returns the id of an agent.
func agentName(i int) string { return fmt.Sprintf("agent-%06d", i) }

// newPopulation creates agents. One in fifty, at least 60, waits for an operator, and as many keep a
// work item that waits for a time.
func (r *rig) newPopulation(agents int) *population {
	r.Helper()
	api, err := client.Dial(r.srv.GRPC)
	require.NoError(r, err)
	r.Cleanup(func() { _ = api.Close() })
	few := max(agents/50, 60)
	require.Less(r, 1+2*few, agents)
	c := &population{rig: r, api: api, agents: agents, asking: few, items: make([]string, few)}
	require.NoError(r, c.each(agents, func(ctx context.Context, i int) error {
		return must.Err(api.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agentName(i),
			Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))
	}))
	require.NoError(r, c.each(few, func(ctx context.Context, i int) error {
		asks, keeps := agentName(1+i), agentName(1+few+i)
		_, err := api.Waiting.WaitFor(ctx, &waitingv1.WaitForRequest{
			AgentId: asks, Own: true,
			Reason: "Which of the two versions is it? " + strings.Repeat("It matters. ", 20),
			Wake:   waitingv1.Wake_WAKE_OPERATOR_INPUT,
		})
		if err != nil {
			return err
		}
		made, err := api.Work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: keeps, Objective: "Keep the register of this quarter",
			PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY,
		})
		if err != nil {
			return err
		}
		id := made.GetWorkItem().GetWorkItemId()
		c.items[i] = keeps + "/" + id
		return must.Err(api.Waiting.WaitFor(ctx, &waitingv1.WaitForRequest{
			AgentId: keeps, WorkItemId: id,
			Reason: "The quarter ends", Wake: waitingv1.Wake_WAKE_TIMER, After: durationpb.New(24 * time.Hour),
		}))
	}))
	return c
}

// each calls fn for 0 to n-1 from many goroutines.
func (c *population) each(n int, fn func(ctx context.Context, i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, 256)
	for k := range errs {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[k] == nil; i = int(next.Add(1)) - 1 {
				errs[k] = fn(c.Context(), i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// traffic makes as many events a second, by calls as any program makes them, until the returned function is called: a
// third are updates of work items, the others messages and the turns that take them. A tenth of the messages is for
// busy.
func (c *population) traffic(events int) (stop func()) {
	ctx, cancel := context.WithCancel(c.Context())
	var all sync.WaitGroup
	all.Go(func() {
		c.problem(ctx, c.api.RunTurns(ctx, client.RunnerOptions{Name: "population", Concurrency: callers},
			func(ctx context.Context, t *client.Turn) error {
				return must.Err(t.Round(ctx,
					client.Reply{Text: "I looked at it: " + strings.Repeat("all of it is as it was. ",
						10), Usage: &agentv1.TokenUsage{InputTokens: 1000, OutputTokens: 60}}))
			}))
	})
	due := make(chan func(context.Context) error, callers)
	for range callers {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case call := <-due:
					c.problem(ctx, call(ctx))
				}
			}
		})
	}
	all.Go(func() {
		// Of six events, five are those of a message and one is an update, three times of which there are.
		updates, messages := events/3, events*2/3/eventsOfAMessage
		every := time.NewTicker(time.Second / 50)
		defer every.Stop()
		began, made, said := time.Now(), 0, 0
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			passed := time.Since(began).Seconds()
			for ; made < int(passed*float64(updates)); made++ {
				c.enqueue(due, c.update(made))
			}
			for ; said < int(passed*float64(messages)); said++ {
				c.enqueue(due, c.say(said))
			}
		}
	})
	return func() {
		cancel()
		all.Wait()
		if err := c.failed.Load(); err != nil {
			require.NoError(c, *err)
		}
	}
}

// enqueue gives a call to the callers, unless they all have enough to do.
func (c *population) enqueue(due chan<- func(context.Context) error, call func(context.Context) error) {
	select {
	case due <- call:
	default:
		c.behind.Add(1)
	}
}

// problem keeps an error, but for those of the end.
func (c *population) problem(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		c.failed.CompareAndSwap(nil, &err)
	}
}

// update returns the n-th update of a work item.
func (c *population) update(n int) func(context.Context) error {
	agent, item, _ := strings.Cut(c.items[n%len(c.items)], "/")
	return func(ctx context.Context) error {
		objective := fmt.Sprintf("Keep the register of this quarter, as of change %d", n)
		return must.Err(c.api.Work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
			AgentId: agent, WorkItemId: item, Objective: &objective,
		}))
	}
}

// say returns the n-th message, to an agent that waits for nothing.
func (c *population) say(n int) func(context.Context) error {
	to := busy
	if free := 1 + 2*c.asking; n%10 > 0 {
		to = agentName(free + rand.IntN(c.agents-free))
	}
	return func(ctx context.Context) error {
		return must.Err(c.api.Agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
			AgentId: to, Text: fmt.Sprintf("Message %d: say how far you are, and go on. %s", n,
				strings.Repeat("Be brief. ", 20)),
		}))
	}
}
