package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/bench/scrape"
	"quartet/pkg/bus"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	driver "quartet/tests/load"
	"quartet/tests/proc"
)

const (
	// yearsPrefix begins the name of each figure of a long life.
	yearsPrefix   = "years: "
	nameUpdates   = yearsPrefix + "updates of 100 items"
	nameCompleted = yearsPrefix + "completed items of 1 000 agents"
	yearCallers   = 64
	// restedAfter is the time after which an idle server has written a snapshot, archived segments and freed memory.
	restedAfter = 20 * time.Second
	starts      = 3

	nameSleeping = yearsPrefix + "completed items of sleeping agents, 20 of each"
	itemsAsleep  = 20
	// asleepAfter is the time after which the state of owners that are not used is evicted from memory.
	asleepAfter = 150 * time.Second
	woken       = 500
)

// measureYears measures what a long history costs: for each history, it measures a new server after a tenth of it and
// again after all of it, which shows what grows with it. It takes half an hour, and is done only if --years is given.
func measureYears(ctx context.Context, o options, say func(row)) error {
	if !o.years {
		return nil
	}
	binary, err := proc.Build(o.dir, "quartet/cmd/quartet", "quartet-server")
	if err != nil {
		return err
	}
	var all []rested
	for _, m := range []history{
		{
			name: nameUpdates, agents: 10, items: 10, all: 1_000_000, one: (*years).update,
			target: "≤ 300 MB on disk, RSS ≤ 250 MB, ready ≤ 1 s",
		},
		{
			name: nameCompleted, agents: 1000, all: 1_000_000, one: (*years).complete,
			target: "RSS ≤ 300 MB, ready ≤ 2 s",
		},
		{
			name: nameSleeping, agents: o.sleepers, all: o.sleepers * itemsAsleep, rest: asleepAfter,
			one: (*years).completeInTurn, then: (*years).wake, target: "with 1 000 000 agents: RSS ≤ 1 GiB, ready ≤ " +
				"3 s, woken with p99 ≤ 15 ms",
		},
	} {
		if !o.wants(m.name) {
			continue
		}
		of, err := m.live(ctx, binary, filepath.Join(o.dir, "years-"+strconv.Itoa(m.agents)), say)
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	snapshots, err := measureSnapshots(ctx, o, binary, say)
	if err != nil || o.yearDir == "" {
		return err
	}
	return writeYears(o.yearDir, all, snapshots)
}

// history is a long history that is made by calling one again and again.
type history struct {
	name          string
	agents, items int // items: that each agent has at the beginning
	one           func(y *years, ctx context.Context, n int) error
	all           int // how often one is called
	// how long the server rests; 0: restedAfter
	rest   time.Duration
	then   func(y *years, ctx context.Context, agents int) (string, error) // a further measurement; nil: none
	target string
}

// live makes the history on a new server, and describes the server after a tenth of the history and after all of it.
func (m history) live(ctx context.Context, binary, dir string, say func(row)) ([]rested, error) {
	y, err := startYears(ctx, binary, dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = y.stop() }()
	if err := y.spawn(ctx, m.agents, m.items); err != nil {
		return nil, err
	}
	var all []rested
	done := 0
	for _, until := range []int{m.all / 10, m.all} {
		began := time.Now()
		if err := y.each(ctx, done, until, func(ctx context.Context, n int) error { return m.one(y, ctx, n) }); err !=
			nil {
			return nil, err
		}
		rate := float64(until-done) / time.Since(began).Seconds()
		done = until
		r, err := y.rest(ctx, cmp.Or(m.rest, restedAfter))
		if err != nil {
			return nil, err
		}
		r.name, r.target, r.rate = strconv.Itoa(until)+" "+strings.TrimPrefix(m.name, yearsPrefix), m.target, rate
		if m.then != nil {
			if r.then, err = m.then(y, ctx, m.agents); err != nil {
				return nil, err
			}
		}
		all = append(all, r)
		say(row{name: yearsPrefix + r.name, note: r.String()})
	}
	return all, y.stop()
}

// rested has what a server with a history uses at rest.
type rested struct {
	name, target, then string
	rate               float64 // calls a second while the history was made
	disk, events       int64
	// rss is the resident memory at rest after the history, loaded that of the server when it is ready after it was
	// killed and started, and later that after it has rested again.
	rss, loaded, later int64
	ready              time.Duration // from a start after SIGKILL until the server is ready; the median of several
}

// String returns the measurements in one line.
func (r rested) String() string {
	s := fmt.Sprintf("%d MB on disk, %d of it EVENTS; RSS %d MB at rest, %d MB when started again, %d MB at rest "+
		"then; ready %s after SIGKILL (median of %d)",
		r.disk/1e6, r.events/1e6, r.rss/1e6, r.loaded/1e6, r.later/1e6, r.ready.Round(10*time.Millisecond), starts)
	if r.then != "" {
		s += "; " + r.then
	}
	return fmt.Sprintf("%s; made at %.0f/s (target for all: %s)", s, r.rate, r.target)
}

// years is a server whose history grows.
type years struct {
	srv    *proc.Quartet
	conn   interface{ Close() error }
	agents agentv1.AgentServiceClient
	work   workv1.WorkServiceClient
	items  []string // ids by number: item n belongs to agent n modulo the number of agents
}

func startYears(ctx context.Context, binary, dir string, more ...string) (*years, error) {
	srv, err := proc.NewQuartet(binary, dir, "", more...)
	if err != nil {
		return nil, err
	}
	y := &years{srv: srv}
	return y, y.start(ctx)
}

// start starts the server and connects to it.
func (y *years) start(ctx context.Context) error {
	if err := y.srv.Start(ctx); err != nil {
		return err
	}
	conn, err := driver.Dial(y.srv.GRPC)
	if err != nil {
		return err
	}
	y.conn, y.agents, y.work = conn, agentv1.NewAgentServiceClient(conn), workv1.NewWorkServiceClient(conn)
	return nil
}

// stop kills the server.
func (y *years) stop() error {
	_ = y.conn.Close()
	return y.srv.Kill()
}

// spawn creates agents, and items for each of them.
func (y *years) spawn(ctx context.Context, agents, items int) error {
	err := y.each(ctx, 0, agents, func(ctx context.Context, i int) error {
		_, err := y.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agentName(i),
			Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
		return err
	})
	if err != nil {
		return err
	}
	for n := range agents * items {
		made, err := y.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId:   agentName(n % agents),
			Objective: objective(n),
		})
		if err != nil {
			return err
		}
		y.items = append(y.items, made.GetWorkItem().GetWorkItemId())
	}
	return nil
}

// objective returns an objective as people write them, which is different for each n.
func objective(n int) string {
	return fmt.Sprintf("Look at build %d of the service, find out what fails in it, and mend that", n)
}

// update sets the objective of item n % len(y.items) to objective(n). There must be 10 agents.
func (y *years) update(ctx context.Context, n int) error {
	i := n % len(y.items)
	text := objective(n)
	_, err := y.work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
		AgentId:    agentName(i % 10),
		WorkItemId: y.items[i], Objective: &text,
	})
	return err
}

// complete creates an item of one of 1 000 agents and completes it.
func (y *years) complete(ctx context.Context, n int) error {
	return y.completeOf(ctx, agentName(n%1000), n)
}

// completeInTurn creates and completes an item of agent n/itemsAsleep, so that each agent is used only for a while.
func (y *years) completeInTurn(ctx context.Context, n int) error {
	return y.completeOf(ctx, agentName(n/itemsAsleep), n)
}

// wake sends a message to woken agents, one after the other, and measures the time until a runner has the turn.
func (y *years) wake(ctx context.Context, agents int) (string, error) {
	got := make(chan error)
	var took []time.Duration
	for i := range woken {
		agent := agentName(i * max(agents/woken, 1) % agents)
		go func() {
			turn, err := y.agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
				AgentIds:  []string{agent},
				RequestId: strconv.Itoa(i) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36),
				Wait:      durationpb.New(30 * time.Second),
			})
			if err == nil && turn.GetTurn().GetAgentId() != agent {
				err = fmt.Errorf("no turn of %s", agent)
			}
			got <- err
		}()
		<-time.After(5 * time.Millisecond)
		began := time.Now()
		if _, err := y.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
			AgentId: agent, Text: "Look at the build",
		}); err != nil {
			return "", err
		}
		if err := <-got; err != nil {
			return "", err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return fmt.Sprintf("message to turn held p50 %s, p99 %s (%d sleepers)",
		took[len(took)/2].Round(10*time.Microsecond), took[len(took)*99/100].Round(10*time.Microsecond), woken), nil
}

// completeOf creates an item of an agent and completes it.
func (y *years) completeOf(ctx context.Context, agent string, n int) error {
	made, err := y.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: agent, Objective: objective(n)})
	if err != nil {
		return err
	}
	_, err = y.work.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{
		AgentId: agent, WorkItemId: made.GetWorkItem().GetWorkItemId(),
	})
	return err
}

// each calls fn with the numbers from from to to-1, from yearCallers goroutines. It returns the first error.
func (y *years) each(ctx context.Context, from, to int, fn func(ctx context.Context, n int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	next.Store(int64(from))
	for range yearCallers {
		g.Go(func() error {
			for {
				n := int(next.Add(1)) - 1
				if n >= to {
					return nil
				}
				if err := fn(ctx, n); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// rest waits for until, kills and starts the server starts times, waits again, and returns what it uses.
func (y *years) rest(ctx context.Context, until time.Duration) (r rested, err error) {
	<-time.After(until)
	if r.rss, err = scrape.Resident(y.srv.PID()); err != nil {
		return r, err
	}
	var took []time.Duration
	for range starts {
		if err := y.stop(); err != nil {
			return r, err
		}
		began := time.Now()
		if err := y.start(ctx); err != nil {
			return r, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	r.ready = took[starts/2]
	if r.loaded, err = scrape.Resident(y.srv.PID()); err != nil {
		return r, err
	}
	<-time.After(until)
	if r.later, err = scrape.Resident(y.srv.PID()); err != nil {
		return r, err
	}
	r.disk, r.events = onDisk(y.srv.DataDir),
		onDisk(filepath.Join(y.srv.DataDir, "nats", "jetstream", "$G", "streams", bus.Stream))
	return r, nil
}

// onDisk returns the sum of the sizes of the files below a directory, in bytes.
func onDisk(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
