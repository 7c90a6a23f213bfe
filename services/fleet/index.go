package fleet

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/btree"
	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// readers is how many agents are read at a time.
	readers = 4
	// pace is the least time between two rounds of reading what events named: an agent that changes all the time is
	// read once in it.
	pace = time.Second
)

// followed are the planes whose events change what agents do.
var followed = []string{"agent", "work", "waiting", "board"}

// quiet are the events of the agent plane that change nothing that the index keeps.
var quiet = map[string]bool{
	"local_calls_started": true, "tool_result_recorded": true, "round_settled": true, "decision_recorded": true, "round_submitted": true,
}

// entry is what the index keeps of an agent.
type entry struct {
	id         string
	posture    agentv1.Posture
	attentions uint8 // a bit for each
	private    bool
}

// needs reports whether the agent needs a person for a reason.
func (e *entry) needs(a fleetv1.Attention) bool { return e.attentions&(1<<a) != 0 }

// space has the agents of a namespace.
type space struct {
	agents *btree.BTreeG[*entry] // by id
	rates  rates
}

// index follows the journals. Its agents are those that are not deleted.
type index struct {
	deps    Deps
	expired func(*index) bool // ends an index that is not used any more
	stop    context.CancelFunc
	running sync.WaitGroup
	marked  chan struct{} // has an element while dirty may have some

	mu     sync.Mutex
	spaces map[string]*space
	dirty  map[plane.Key]struct{} // agents to read
	listed bool                   // every agent that existed at the start was marked
	whole  bool                   // and was read
	done   chan struct{}          // closed with whole
}

// begin returns an index that reads in the background. Events are followed from now on, and what was before is
// read.
func begin(ctx context.Context, deps Deps, expired func(*index) bool) (*index, error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	x := &index{deps: deps, expired: expired, stop: stop, marked: make(chan struct{}, 1), done: make(chan struct{}), spaces: map[string]*space{}, dirty: map[plane.Key]struct{}{}}
	for _, name := range followed {
		sources, err := deps.Sources(name)
		if err != nil {
			x.end()
			return nil, err
		}
		for _, src := range sources {
			end, err := src.End(ctx)
			if err != nil {
				x.end()
				return nil, err
			}
			x.running.Go(func() { x.follow(run, src, end) })
		}
	}
	x.running.Go(func() { x.list(run) })
	x.running.Go(func() { x.read(run) })
	return x, nil
}

// end stops the index and waits until nothing of it runs.
func (x *index) end() {
	x.stop()
	x.running.Wait()
}

// follow marks the agents that events name.
func (x *index) follow(ctx context.Context, src journal.Source, after framelog.End) {
	own := src.Plane() == "agent"
	follower.Run(ctx, src, after, x.deps.Logger, func(_ framelog.End, lines []journal.Line) error {
		for _, line := range lines {
			eventType, agentID := line.Type()
			if journal.Internal(eventType) || agentID == "" || own && quiet[eventType] && eventType != "round_submitted" {
				continue
			}
			ev, err := line.Envelope()
			if err != nil {
				continue // the plane's own follower reports damage
			}
			if own {
				x.count(ev.Namespace, eventType, line)
			}
			if !own || !quiet[eventType] {
				x.mark(plane.KeyOf(ev.Namespace, agentID))
			}
		}
		return nil
	})
}

// mark puts agents among those to read.
func (x *index) mark(agents ...plane.Key) {
	x.mu.Lock()
	for _, k := range agents {
		x.dirty[k] = struct{}{}
	}
	x.mu.Unlock()
	x.signal()
}

// signal wakes read.
func (x *index) signal() {
	select {
	case x.marked <- struct{}{}:
	default:
	}
}

// list marks all agents, page by page, and tries again after errors.
func (x *index) list(ctx context.Context) {
	ctx = rpc.WithActor(ctx, plane.ActorOf(*plane.System(rpc.DefaultNamespace)))
	for token := ""; ; {
		page, err := x.deps.Agents.GetFacts(ctx, &agentv1.GetFactsRequest{PageToken: token})
		if err != nil {
			x.deps.Logger.Debug("fleet: agents cannot be listed; trying again", zap.Error(err))
			if !x.pause(ctx, pace) {
				return
			}
			continue
		}
		keys := make([]plane.Key, 0, len(page.GetFacts()))
		for _, f := range page.GetFacts() {
			keys = append(keys, plane.KeyOf(f.GetNamespace(), f.GetAgent().GetAgentId()))
		}
		x.mark(keys...)
		if token = page.GetNextPageToken(); token == "" {
			x.mu.Lock()
			x.listed = true
			x.mu.Unlock()
			x.signal()
			return
		}
	}
}

// pause waits, and returns false if ctx ended.
func (x *index) pause(ctx context.Context, d time.Duration) bool {
	t := x.deps.Clock.TimerAt(x.deps.Clock.Now().Add(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C():
		return true
	}
}

// read reads the marked agents, in rounds, until ctx ends or nobody uses the index any more.
func (x *index) read(ctx context.Context) {
	for ctx.Err() == nil {
		t := x.deps.Clock.TimerAt(x.deps.Clock.Now().Add(keptFor))
		select {
		case <-ctx.Done():
		case <-t.C():
		case <-x.marked:
		}
		t.Stop()
		if ctx.Err() != nil || x.expired(x) {
			return
		}
		x.round(ctx)
		x.mu.Lock()
		whole := x.whole
		x.mu.Unlock()
		if whole && !x.pause(ctx, pace) {
			return
		}
	}
}

// round reads the agents that are marked now.
func (x *index) round(ctx context.Context) {
	x.mu.Lock()
	todo, listed := x.dirty, x.listed
	x.dirty = map[plane.Key]struct{}{}
	x.mu.Unlock()
	keys := make(chan plane.Key)
	var group sync.WaitGroup
	var failed sync.Map
	for range readers {
		group.Go(func() {
			for k := range keys {
				if err := x.look(ctx, k); err != nil {
					failed.Store(k, true)
				}
			}
		})
	}
	for k := range todo {
		keys <- k
	}
	close(keys)
	group.Wait()
	again := false
	failed.Range(func(k, _ any) bool {
		if key, ok := k.(plane.Key); ok {
			x.mu.Lock()
			x.dirty[key] = struct{}{}
			x.mu.Unlock()
		}
		again = true
		return true
	})
	switch {
	case again:
		if x.pause(ctx, pace) {
			x.signal()
		}
	case listed:
		x.mu.Lock()
		if !x.whole {
			x.whole = true
			close(x.done)
		}
		x.mu.Unlock()
	}
}

// patience is how long a call waits for the index to have looked at all agents.
const patience = time.Second

// await waits until all agents were looked at: for patience at most, and for half of the time that the caller has left, so that it
// is answered either way.
func (x *index) await(ctx context.Context) {
	select {
	case <-x.done:
		return
	default:
	}
	now := x.deps.Clock.Now()
	term := patience
	if end, ok := ctx.Deadline(); ok {
		term = min(term, end.Sub(now)/2)
	}
	t := x.deps.Clock.TimerAt(now.Add(term))
	defer t.Stop()
	select {
	case <-x.done:
	case <-ctx.Done():
	case <-t.C():
	}
}

// look reads an agent and stores what it does. An agent that is deleted or does not exist is removed.
func (x *index) look(ctx context.Context, k plane.Key) error {
	ctx, cancel := context.WithTimeout(rpc.WithActor(ctx, plane.ActorOf(*plane.System(k.Namespace))), 10*time.Second)
	defer cancel()
	got, err := x.deps.Agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: k.ID})
	if errors.Is(err, fault.NotFound) || err == nil && got.GetAgent().GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED {
		x.remove(k)
		return nil
	}
	if err != nil {
		return err
	}
	boards, err := x.deps.Boards.ListBoards(ctx, &boardv1.ListBoardsRequest{SessionId: k.ID, Limit: 100})
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	x.put(k, entryOf(got, boards.GetBoards()))
	return nil
}

// entryOf returns what the index keeps of an agent.
func entryOf(got *agentv1.GetAgentResponse, boards []*boardv1.Board) *entry {
	a := got.GetAgent()
	e := &entry{id: a.GetAgentId(), posture: a.GetPosture(), private: a.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE}
	need := func(reason fleetv1.Attention) { e.attentions |= 1 << reason }
	if a.GetLane().GetQuarantined() > 0 {
		need(fleetv1.Attention_ATTENTION_QUARANTINED)
	}
	if e.posture == agentv1.Posture_POSTURE_BLOCKED {
		need(fleetv1.Attention_ATTENTION_BLOCKED)
	}
	for _, w := range got.GetWaits() {
		switch {
		case w.GetMode() != waitingv1.WaitMode_WAIT_MODE_WAIT:
		case w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && !e.private: // a child asks its supervisor
			need(fleetv1.Attention_ATTENTION_QUESTION)
		case w.GetWeakReason() == waitingv1.WeakReason_WEAK_REASON_NO_LIVE_TRIGGER, w.GetWeakReason() == waitingv1.WeakReason_WEAK_REASON_TRIGGER_DEAD:
			need(fleetv1.Attention_ATTENTION_WEAK_WAIT)
		}
	}
	if e.posture == agentv1.Posture_POSTURE_WAITING_OPERATOR && !e.private { // also a plan that needs input
		need(fleetv1.Attention_ATTENTION_QUESTION)
	}
	for _, b := range boards {
		if b.GetDiagnostics().GetStalled() || b.GetStatus() == boardv1.BoardStatus_BOARD_STATUS_BLOCKED {
			need(fleetv1.Attention_ATTENTION_STALLED_BOARD)
		}
	}
	return e
}

// of returns the agents of a namespace, which it creates if there are none. The caller holds mu.
func (x *index) of(namespace string) *space {
	s := x.spaces[namespace]
	if s == nil {
		s = &space{agents: btree.NewG(32, func(a, b *entry) bool { return a.id < b.id })}
		x.spaces[namespace] = s
	}
	return s
}

// put stores an agent.
func (x *index) put(k plane.Key, e *entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of(k.Namespace).agents.ReplaceOrInsert(e)
}

// remove removes an agent.
func (x *index) remove(k plane.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of(k.Namespace).agents.Delete(&entry{id: k.ID})
}
