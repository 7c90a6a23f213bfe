package runners

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// board is the state of one partition and the shares over it: all that decides
// whose turn is next, without a service, a clock or a goroutine.
type board struct {
	t      rapid.TB
	state  *state.State
	shares *Shares
	now    time.Time
	n      int
}

func newBoard(t rapid.TB, weights map[string]int) *board {
	return &board{t: t, state: state.NewState(), shares: NewShares(weights), now: epoch}
}

func (b *board) apply(k plane.Key, events ...*journal.Event) {
	for _, ev := range events {
		b.now = b.now.Add(time.Millisecond)
		ev.Namespace, ev.AgentID, ev.CreatedAt = k.Namespace, k.ID, b.now
		require.NoError(b.t, b.state.Apply(ev))
	}
}

func (b *board) spawn(k plane.Key) {
	b.apply(k, &journal.Event{Payload: &agentv1.AgentSpawned{Agent: &agentv1.Agent{
		AgentId: k.ID, Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, Control: agentv1.Control_CONTROL_RUNNING,
	}}})
}

// ready queues a message for an agent.
func (b *board) ready(k plane.Key) {
	b.n++
	m := &agentv1.Message{
		MessageId: fmt.Sprint("msg_", b.n), AgentId: k.ID, State: agentv1.MessageState_MESSAGE_STATE_QUEUED,
	}
	b.apply(k, &journal.Event{Payload: &agentv1.MessageQueued{Message: m}})
	b.shares.MarkReady(k.Namespace)
}

// acquire takes the next turn as a shared runner does, and ends it at once.
func (b *board) acquire() (plane.Key, bool) {
	for {
		namespace, mark, ok := b.shares.Next()
		if !ok {
			return plane.Key{}, false
		}
		o := b.state.FirstReady(namespace, nil, func(plane.Key) bool { return true })
		if o == nil {
			b.shares.MarkEmpty(namespace, mark)
			continue
		}
		b.shares.Charge(namespace)
		t := &agentv1.Turn{
			TurnId: "trn_" + o.Message.GetMessageId(), RunId: "run", AgentId: o.Agent.ID,
			MessageId: o.Message.GetMessageId(),
		}
		b.apply(o.Agent,
			&journal.Event{Payload: &agentv1.MessageDequeued{Message: o.Message}},
			&journal.Event{Payload: &agentv1.TurnStarted{Turn: t}},
			&journal.Event{Payload: &agentv1.MessageProcessed{Message: o.Message}},
			&journal.Event{Payload: &agentv1.TurnCompleted{Turn: t}})
		b.shares.MarkReady(namespace)
		return o.Agent, true
	}
}

// Weights hold over 10 000 turns, whatever the weights are.
func TestD7_WeightsHold(t *testing.T) {
	for _, weights := range []map[string]int{
		{"a": 1, "b": 1, "c": 1}, {"a": 3, "b": 1}, {"a": 7, "b": 5, "c": 3, "d": 1}, {"a": MaxWeight, "b": 1}, {},
	} {
		b := newBoard(t, weights)
		names := []string{"a", "b", "c", "d"}[:max(len(weights), 2)]
		sum := 0
		for _, ns := range names {
			sum += max(weights[ns], 1)
			for i := range 5 {
				b.spawn(plane.Key{Namespace: ns, ID: fmt.Sprint("agent-", i)})
				b.ready(plane.Key{Namespace: ns, ID: fmt.Sprint("agent-", i)})
			}
		}
		got := map[string]int{}
		const turns = 10_000
		for range turns {
			k, ok := b.acquire()
			require.True(t, ok)
			got[k.Namespace]++
			b.ready(k) // there is always more
		}
		for _, ns := range names {
			want := turns * max(weights[ns], 1) / sum
			require.InDelta(t, want, got[ns], float64(len(names)), "%s of %v: %v", ns, weights, got)
		}
	}
}

// No agent waits beyond its bound, in any history: those ready before it in its
// own namespace go first, and between two turns of its namespace another one of
// weight w times its own gets at most ⌈w⌉+1.
func TestD7_NoAgentWaitsBeyondTheBound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(rt, "namespaces")]
		weights := map[string]int{}
		for _, ns := range names {
			weights[ns] = rapid.IntRange(1, 5).Draw(rt, "weight")
		}
		b := newBoard(rt, weights)
		between := map[string]int{} // turns of others between two of a namespace
		var all []plane.Key
		for _, ns := range names {
			for _, other := range names {
				if other != ns {
					between[ns] += (weights[other]+weights[ns]-1)/weights[ns] + 1
				}
			}
			for i := range 4 {
				all = append(all, plane.Key{Namespace: ns, ID: fmt.Sprint("agent-", i)})
				b.spawn(all[len(all)-1])
			}
		}
		left := map[plane.Key]int{} // by ready agent: turns it may still have to watch
		queue := map[string][]plane.Key{}
		for range rapid.IntRange(10, 120).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "ready") {
				k := rapid.SampledFrom(all).Draw(rt, "agent")
				if _, waits := left[k]; !waits {
					queue[k.Namespace] = append(queue[k.Namespace], k)
					left[k] = len(queue[k.Namespace])*(between[k.Namespace]+1) - 1
					b.ready(k)
				}
				continue
			}
			k, ok := b.acquire()
			require.Equal(rt, len(left) > 0, ok, "a ready agent is found")
			if !ok {
				continue
			}
			require.Equal(rt, queue[k.Namespace][0], k, "oldest first within a namespace")
			queue[k.Namespace] = queue[k.Namespace][1:]
			delete(left, k)
			for other := range left {
				left[other]--
				require.GreaterOrEqual(rt, left[other], 0, "%v waits too long; %v was taken; weights %v", other, k,
					weights)
			}
		}
	})
}

// A namespace that rests neither saves up nor owes, and leaves nothing behind.
func TestD7_RestIsNoCredit(t *testing.T) {
	s := NewShares(map[string]int{"a": 2})
	s.MarkReady("a")
	for range 100 {
		s.Charge("a")
	}
	s.MarkReady("b")
	took := map[string]int{}
	for range 30 {
		ns, _, ok := s.Next()
		require.True(t, ok)
		s.Charge(ns)
		took[ns]++
	}
	require.InDelta(t, 20, took["a"], 2)
	require.InDelta(t, 10, took["b"], 2)

	// One that leaves ahead of the present comes back there.
	ns, mark, _ := s.Next()
	s.MarkReady(ns)
	s.MarkEmpty(ns, mark)
	again, mark, _ := s.Next()
	require.Equal(t, ns, again, "touched since it was looked at")
	s.MarkEmpty(ns, mark)
	other, _, ok := s.Next()
	require.True(t, ok)
	require.NotEqual(t, ns, other)

	// A charge that is taken back costs nothing.
	before := maps.Clone(s.starts)
	s.Charge(other)
	s.Refund(other)
	require.Equal(t, before, s.starts)

	// What has left and is passed by is forgotten.
	for i := range 5000 {
		name := fmt.Sprint("n", i)
		s.MarkReady(name)
		_, mark, _ := s.Next()
		s.Charge(name)
		s.MarkEmpty(name, mark+s.Marks) // not its mark: it stays
		s.MarkEmpty(name, s.markedAt[name])
	}
	require.LessOrEqual(t, len(s.ahead), 5003)
	s.virtualNow = 1 << 62
	s.purgeAbove = 0
	s.purge()
	require.Empty(t, s.ahead)
}

// A shared runner that waits is woken by any namespace, before or after private
// ones according to who has waited longest.
func TestD7_ASharedRunnerIsWoken(t *testing.T) {
	var ws Waiters
	own, shared, named := ws.Add("acme", nil, false, Selection{}), ws.Add("", nil, true, Selection{}),
		ws.Add("acme", []string{"a", "b"}, false, Selection{})
	require.Equal(t, 3, ws.Count(plane.Key{Namespace: "acme", ID: "a"}, nil))
	require.Equal(t, 1, ws.Count(plane.Key{Namespace: "umbrella", ID: "a"}, nil))
	for _, w := range []*Waiter{own, shared, named} {
		ws.Wake(plane.Key{Namespace: "acme", ID: "a"})
		require.Len(t, w.Woken, 1)
	}
	ws.Wake(plane.Key{Namespace: "acme", ID: "a"})
	require.Zero(t, ws.Count(plane.Key{Namespace: "acme", ID: "a"}, nil))
	next := ws.Add("umbrella", nil, false, Selection{})
	ws.Remove(shared)
	require.Empty(t, next.Woken, "a wake is handed on within its namespace")
}

// 100 000 ready agents in 1 000 namespaces: a turn costs a few looks, not a scan.
func TestD7_AcquiringDoesNotScan(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	b := newBoard(t, map[string]int{"n1": 4})
	const agents, namespaces = 100_000, 1_000
	for i := range agents {
		k := plane.Key{Namespace: fmt.Sprint("n", i%namespaces), ID: fmt.Sprint("agent-", i)}
		b.spawn(k)
		b.ready(k)
	}
	looks := 0
	for range 2000 {
		namespace, _, ok := b.shares.Next()
		require.True(t, ok)
		o := b.state.FirstReady(namespace, nil, func(plane.Key) bool { looks++; return true })
		require.NotNil(t, o)
		b.shares.Charge(namespace)
	}
	require.Equal(t, 2000, looks, "one look a turn")
}
