package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// readers is how many agents are read at a time.
	readers = 4
	// pace is the least time between two rounds in which the agents that events named are read, so that an agent that
	// changes all the time is read once in it. There are rounds only while calls arrive.
	pace = time.Second
)

// followed are the planes whose events change what agents do.
var followed = []string{"agent", "work", "waiting", "board"}

// quiet are the events of the agent plane after which an agent need not be read again, because they change nothing
// that an entry has.
var quiet = map[string]bool{
	"local_calls_started": true, "tool_result_recorded": true, "round_settled": true, "decision_recorded": true,
	"round_submitted": true,
}

// entry is what the index keeps of an agent.
type entry struct {
	id         string
	posture    agentv1.Posture
	attentions uint8 // why it needs a person: bit n for the reason with number n
	private    bool
}

// needs reports whether the agent needs a person for the reason a.
func (e *entry) needs(a fleetv1.Attention) bool { return e.attentions&(1<<a) != 0 }

// kind has the properties of an agent by which agents are counted.
type kind struct {
	posture    agentv1.Posture
	attentions uint8
	private    bool
}

// kind returns the kind of the agent.
func (e *entry) kind() kind { return kind{e.posture, e.attentions, e.private} }

// space has the agents of a namespace.
type space struct {
	agents *btree.BTreeG[*entry] // by id; an entry is replaced and never changed
	kinds  map[kind]int32        // how many agents each kind has, so that a call need not visit all agents
	rates  rates
}

// count adds n to the number of agents of the kind of e.
func (s *space) count(e *entry, n int32) {
	k := e.kind()
	if s.kinds[k] += n; s.kinds[k] == 0 {
		delete(s.kinds, k)
	}
}

// index has the agents that are not deleted, and follows the journals to keep them current.
type index struct {
	deps    Deps
	expired func(*index) bool // reports whether the index is not used any more, and must end
	stop    context.CancelFunc
	running sync.WaitGroup
	wanted  chan struct{} // has an element while a round is wanted

	mu     sync.Mutex
	spaces map[string]*space
	dirty  map[plane.Key]bool // agents to read; true: with their boards
	listed bool               // every agent that existed at the start was put into dirty
	whole  bool               // every agent that existed at the start was read
	done   chan struct{}      // closed when whole is set
	began  time.Time          // when the last round began
	next   chan struct{}      // closed when the next round that begins has ended
}

// begin returns an index that reads in the background: it follows events from now on, and reads every agent that
// exists. ctx bounds only begin itself.
func begin(ctx context.Context, deps Deps, expired func(*index) bool) (*index, error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	x := &index{
		deps: deps, expired: expired, stop: stop, wanted: make(chan struct{}, 1), done: make(chan struct{}),
		next: make(chan struct{}), spaces: map[string]*space{}, dirty: map[plane.Key]bool{},
	}
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

// follow puts the agents that events of a journal name into dirty, and counts turns and tokens, until ctx ends.
func (x *index) follow(ctx context.Context, src journal.Source, after framelog.End) {
	own := src.Plane() == "agent"
	follower.Run(ctx, src, after, x.deps.Logger, func(_ framelog.End, lines []journal.Line) error {
		for _, line := range lines {
			eventType, agentID := line.Type()
			if journal.Internal(eventType) || agentID == "" || own && quiet[eventType] &&
				eventType != "round_submitted" {
				continue
			}
			ev, err := line.Envelope()
			if err != nil {
				continue // the plane's own follower reports damage
			}
			if own {
				x.count(ev.Namespace, eventType, line)
			}
			if !own && changesNothing(ev) || own && quiet[eventType] {
				continue
			}
			x.mark(src.Plane() == "board", plane.KeyOf(ev.Namespace, agentID))
		}
		return nil
	})
}

// changesNothing reports whether an event updates a work item without changing its state, its readiness or its
// waits, so that what its agent does stays the same too. It returns false for an event whose payload was not
// decoded.
func changesNothing(ev *journal.Event) bool {
	p, ok := ev.Payload.(*workv1.WorkItemUpdated)
	return ok && ev.ReadinessFrom == ev.ReadinessTo && p.GetEndedWaitId() == "" &&
		!slices.ContainsFunc(p.GetChangedFields(), func(name string) bool {
			return name == "blocked_by" || name == "plan_status"
		})
}

// mark puts agents into dirty; boards says that their boards must be read too.
func (x *index) mark(boards bool, agents ...plane.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, k := range agents {
		x.dirty[k] = x.dirty[k] || boards
	}
}

// want makes read begin a round soon. It does not block.
func (x *index) want() {
	select {
	case x.wanted <- struct{}{}:
	default:
	}
}

// list marks all agents of all namespaces, page by page, to be read with their boards. It repeats a page after an
// error, until ctx ends. It sets listed after the last page.
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
		x.mark(true, keys...)
		x.want()
		if token = page.GetNextPageToken(); token == "" {
			x.mu.Lock()
			x.listed = true
			x.mu.Unlock()
			x.want()
			return
		}
	}
}

// pause waits for d and returns true, or returns false as soon as ctx ends.
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

// read runs a round each time that one is wanted, until ctx ends or the index is not used any more.
func (x *index) read(ctx context.Context) {
	for ctx.Err() == nil {
		t := x.deps.Clock.TimerAt(x.deps.Clock.Now().Add(keptFor))
		select {
		case <-ctx.Done():
		case <-t.C():
		case <-x.wanted:
		}
		t.Stop()
		if ctx.Err() != nil || x.expired(x) {
			return
		}
		x.round(ctx)
	}
}

// round reads the agents that are in dirty when it begins. It puts those that cannot be read into dirty again, and
// then waits for pace and calls want, unless ctx ends.
func (x *index) round(ctx context.Context) {
	x.mu.Lock()
	todo, listed, ended := x.dirty, x.listed, x.next
	x.dirty, x.next, x.began = map[plane.Key]bool{}, make(chan struct{}), x.deps.Clock.Now()
	x.mu.Unlock()
	keys := slices.Collect(maps.Keys(todo))
	// The readers take agents by a counter and not from a channel, where each would wait for another goroutine
	// to run.
	var taken atomic.Int64
	var failed atomic.Bool
	var group sync.WaitGroup
	for range min(readers, len(keys)) {
		group.Go(func() {
			for i := int(taken.Add(1)) - 1; i < len(keys); i = int(taken.Add(1)) - 1 {
				if k := keys[i]; x.look(ctx, k, todo[k]) != nil {
					x.mark(todo[k], k)
					failed.Store(true)
				}
			}
		})
	}
	group.Wait()
	again := failed.Load()
	x.mu.Lock()
	if !again && listed && !x.whole {
		x.whole = true
		close(x.done)
	}
	x.mu.Unlock()
	if again && x.pause(ctx, pace) {
		x.want()
	}
	close(ended)
}

// patience is how long a call waits at most until the index is current.
const patience = time.Second

// await waits until the index is current: until all agents were read, and those that events have named so far were
// read again, unless a round began less than pace ago. It waits for at most patience, and at most half of the time
// before the deadline of ctx, so that the caller can respond in any case. It reports whether the index is current.
func (x *index) await(ctx context.Context) bool {
	now := x.deps.Clock.Now()
	x.mu.Lock()
	done := x.done
	if x.whole {
		if len(x.dirty) == 0 || now.Sub(x.began) < pace {
			x.mu.Unlock()
			return true
		}
		done = x.next
	}
	x.mu.Unlock()
	x.want()
	term := patience
	if end, ok := ctx.Deadline(); ok {
		term = min(term, end.Sub(now)/2)
	}
	t := x.deps.Clock.TimerAt(now.Add(term))
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-t.C():
	}
	return false
}

// look reads an agent, with its boards if boards is set or the index does not have the agent, and puts it into the
// index. It removes an agent that is deleted or does not exist from the index.
func (x *index) look(ctx context.Context, k plane.Key, boards bool) error {
	ctx, cancel := context.WithTimeout(rpc.WithActor(ctx, plane.ActorOf(*plane.System(k.Namespace))), 10*time.Second)
	defer cancel()
	got, err := x.deps.Agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: k.ID})
	if errors.Is(err, fault.NotFound) || err == nil &&
		got.GetAgent().GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED {
		x.remove(k)
		return nil
	}
	if err != nil {
		return err
	}
	e := entryOf(got)
	if before := x.get(k); before != nil && !boards {
		e.attentions |= before.attentions & (1 << fleetv1.Attention_ATTENTION_STALLED_BOARD)
	} else {
		list, err := x.deps.Boards.ListBoards(ctx, &boardv1.ListBoardsRequest{SessionId: k.ID, Limit: 100})
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		e.stalls(list.GetBoards())
	}
	x.put(k, e)
	return nil
}

// entryOf returns the entry of an agent, without the reasons that its boards give; see stalls.
func entryOf(got *agentv1.GetAgentResponse) *entry {
	a := got.GetAgent()
	e := &entry{id: a.GetAgentId(), posture: a.GetPosture(), private: a.GetVisibility() ==
		agentv1.Visibility_VISIBILITY_PRIVATE}
	need := func(reason fleetv1.Attention) { e.attentions |= 1 << reason }
	if a.GetLane().GetQuarantined() > 0 {
		need(fleetv1.Attention_ATTENTION_QUARANTINED)
	}
	if e.posture == agentv1.Posture_POSTURE_BLOCKED {
		need(fleetv1.Attention_ATTENTION_BLOCKED)
	}
	for _, w := range got.GetWaits() {
		if reason := attentionOf(w, e.private); reason != 0 {
			need(reason)
		}
	}
	if e.posture == agentv1.Posture_POSTURE_WAITING_OPERATOR && !e.private { // also a plan that needs input
		need(fleetv1.Attention_ATTENTION_QUESTION)
	}
	return e
}

// attentionOf returns the reason for which an agent needs a person because of a wait, or 0 if there is none. private
// says that the agent is.
func attentionOf(w *waitingv1.Wait, private bool) fleetv1.Attention {
	switch {
	case w.GetMode() != waitingv1.WaitMode_WAIT_MODE_WAIT:
	case w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && !private: // a child asks its supervisor
		return fleetv1.Attention_ATTENTION_QUESTION
	case w.GetWeakReason() == waitingv1.WeakReason_WEAK_REASON_NO_LIVE_TRIGGER,
		w.GetWeakReason() == waitingv1.WeakReason_WEAK_REASON_TRIGGER_DEAD:
		return fleetv1.Attention_ATTENTION_WEAK_WAIT
	}
	return 0
}

// stalls adds the reason that one of the agent's boards is stalled or blocked, if one is.
func (e *entry) stalls(boards []*boardv1.Board) {
	for _, b := range boards {
		if b.GetDiagnostics().GetStalled() || b.GetStatus() == boardv1.BoardStatus_BOARD_STATUS_BLOCKED {
			e.attentions |= 1 << fleetv1.Attention_ATTENTION_STALLED_BOARD
		}
	}
}

// of returns the space of a namespace, which it creates if there is none. The caller holds mu.
func (x *index) of(namespace string) *space {
	s := x.spaces[namespace]
	if s == nil {
		s = &space{agents: btree.NewG(32, func(a, b *entry) bool { return a.id < b.id }), kinds: map[kind]int32{}}
		x.spaces[namespace] = s
	}
	return s
}

// get returns an agent, or nil.
func (x *index) get(k plane.Key) *entry {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, _ := x.of(k.Namespace).agents.Get(&entry{id: k.ID})
	return e
}

// put stores an agent.
func (x *index) put(k plane.Key, e *entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.of(k.Namespace)
	if before, found := s.agents.ReplaceOrInsert(e); found {
		s.count(before, -1)
	}
	s.count(e, 1)
}

// remove removes an agent.
func (x *index) remove(k plane.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.of(k.Namespace)
	if before, found := s.agents.Delete(&entry{id: k.ID}); found {
		s.count(before, -1)
	}
}
