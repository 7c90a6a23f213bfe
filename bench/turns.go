package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

const (
	turnRunners = 50
	// cycles is how many turns of an agent are measured on average, after one that warms up.
	cycles = 3
	// maxUnfairness is the target: no agent waits longer than this multiple of the mean.
	maxUnfairness = 3
)

// The numbers of agents that are measured. The small one is quick; both together show whether the
// number matters.
var turnsOf = map[int]string{1_000: "1 000 agents taking turns", 10_000: "10 000 agents taking turns"}

// measureTurns measures many agents that share few runners. Each agent always has a message, and
// gets the next one when a runner has finished, so that the runners are always busy and the
// longest wait shows whether turns are distributed fairly (SPEC D7).
func measureTurns(ctx context.Context, o options, say func(row)) error {
	for _, agents := range []int{1_000, 10_000} {
		if !o.wants(turnsOf[agents]) {
			continue
		}
		r, err := turnsFigure(ctx, o, agents)
		if err != nil {
			return fmt.Errorf("%s: %w", turnsOf[agents], err)
		}
		say(r)
	}
	return nil
}

func turnsFigure(ctx context.Context, o options, agents int) (row, error) {
	q, err := start(ctx, filepath.Join(o.dir, "turns"+strconv.Itoa(agents)))
	if err != nil {
		return row{}, err
	}
	defer q.stop(ctx)
	if err := q.spawn(ctx, agents); err != nil {
		return row{}, err
	}
	c := newPopulation(q, agents)
	if err := each(ctx, agents, c.enqueue); err != nil {
		return row{}, err
	}
	rest(ctx)
	stop, err := o.profile()
	if err != nil {
		return row{}, err
	}
	if err := errors.Join(c.run(ctx), stop()); err != nil {
		return row{}, err
	}
	return c.row(turnsOf[agents])
}

// population is a set of agents with a message each, and the measured waits for their turns.
type population struct {
	q      *quartet
	agents int

	mu     sync.Mutex
	since  map[string]time.Time // by agent, when its message was enqueued, until its turn begins
	of     map[string]int       // by agent, how many of its turns were measured
	held   int                  // how many turns began
	waited []time.Duration      // the waits for the measured turns
	began  time.Time            // when the measurement began
	ended  time.Time            // when it ended
	cpu    time.Duration        // processor time of the measurement
	done   context.CancelFunc   // ends the runners
}

func newPopulation(q *quartet, agents int) *population {
	return &population{
		q: q, agents: agents, since: make(map[string]time.Time, agents),
		of: make(map[string]int, agents),
	}
}

// enqueue enqueues a message for agent i. Its wait is counted from before the call, because the
// turn may start before the response arrives.
func (c *population) enqueue(ctx context.Context, i int) error { return c.say(ctx, agentName(i)) }

func (c *population) say(ctx context.Context, agentID string) error {
	c.mu.Lock()
	c.since[agentID] = time.Now()
	c.mu.Unlock()
	_, err := c.q.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
		AgentId: agentID, Text: "Say how far you are, and go on",
	})
	return err
}

// run runs the runners until enough turns were measured. Each has its own connection, like a
// separate process.
func (c *population) run(ctx context.Context) error {
	ctx, c.done = context.WithCancel(ctx)
	defer c.done()
	errs := make([]error, turnRunners)
	var all sync.WaitGroup
	for i := range turnRunners {
		all.Go(func() {
			if errs[i] = c.runner(ctx, i); errs[i] != nil {
				c.done()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *population) runner(ctx context.Context, i int) error {
	api, err := client.Dial(c.q.app.GRPCAddr())
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	var failed error
	err = api.RunTurns(ctx, client.RunnerOptions{
		Name: "bench-" + strconv.Itoa(i),
		Finished: func(t *client.Turn, err error) {
			if err == nil {
				err = c.say(context.WithoutCancel(ctx), t.Record.GetAgentId())
			}
			if err != nil && ctx.Err() == nil {
				failed = err
				c.done()
			}
		},
	}, func(ctx context.Context, t *client.Turn) error {
		c.holds(t.Record.GetAgentId(), time.Now())
		_, err := t.Round(ctx, client.Reply{Text: "Halfway through; the rest follows with the next message."})
		return err
	})
	return errors.Join(err, failed)
}

// holds counts a turn that began. The first c.agents turns, on average one of each agent, are the warm-up.
func (c *population) holds(agentID string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held++
	if c.began.IsZero() && c.held > c.agents {
		c.began, c.cpu = now, cpuTime()
	}
	if !c.began.IsZero() && c.ended.IsZero() {
		c.waited = append(c.waited, now.Sub(c.since[agentID]))
		c.of[agentID]++
		if len(c.waited) == cycles*c.agents {
			c.ended, c.cpu = now, cpuTime()-c.cpu
			c.done()
		}
	}
	delete(c.since, agentID)
}

// row returns the row of the figure. The longest wait includes the waits so far of agents that still wait,
// so that an agent that never gets a turn is noticed.
func (c *population) row(name string) (row, error) {
	s, err := summarise([]turn{{took: c.waited, done: len(c.waited), span: c.ended.Sub(c.began), cpu: c.cpu}})
	if err != nil {
		return row{}, err
	}
	var sum, longest time.Duration
	for _, w := range c.waited {
		sum, longest = sum+w, max(longest, w)
	}
	for _, at := range c.since {
		longest = max(longest, c.ended.Sub(at))
	}
	fewest, most := len(c.waited), 0
	for i := range c.agents {
		n := c.of[agentName(i)]
		fewest, most = min(fewest, n), max(most, n)
	}
	mean := sum / time.Duration(len(c.waited))
	return row{name: name, callers: turnRunners, stats: s, note: fmt.Sprintf(
		"from message to turn held, always a message waiting for each: the longest %s is %.2f of the mean %s (target "+
			"≤ %d); %d to %d turns each",
		longest.Round(time.Millisecond), float64(longest)/float64(mean), mean.Round(time.Millisecond), maxUnfairness,
		fewest, most)}, nil
}
