package agent

import (
	"fmt"
	"maps"
	"quartet/services/agent/ref"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// board is the state of one partition and the shares over it: all that decides
// whose turn is next, without a service, a clock or a goroutine.
type board struct {
	t      rapid.TB
	state  *State
	shares *shares
	now    time.Time
	n      int
}

func newBoard(t rapid.TB, weights map[string]int) *board {
	return &board{t: t, state: NewState(), shares: newShares(weights), now: epoch}
}

func (b *board) apply(k key, events ...*journal.Event) {
	for _, ev := range events {
		b.now = b.now.Add(time.Millisecond)
		ev.Namespace, ev.AgentID, ev.CreatedAt = k.Namespace, k.ID, b.now
		require.NoError(b.t, b.state.Apply(ev))
	}
}

func (b *board) spawn(k key) {
	b.apply(k, &journal.Event{Payload: &agentv1.AgentSpawned{Agent: &agentv1.Agent{
		AgentId: k.ID, Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, Control: agentv1.Control_CONTROL_RUNNING,
	}}})
}

// ready queues a message for an agent.
func (b *board) ready(k key) {
	b.n++
	m := &agentv1.Message{MessageId: fmt.Sprint("msg_", b.n), AgentId: k.ID, State: agentv1.MessageState_MESSAGE_STATE_QUEUED}
	b.apply(k, &journal.Event{Payload: &agentv1.MessageQueued{Message: m}})
	b.shares.touch(k.Namespace)
}

// acquire takes the next turn as a shared runner does, and ends it at once.
func (b *board) acquire() (key, bool) {
	for {
		namespace, mark, ok := b.shares.next()
		if !ok {
			return ref.Agent{}, false
		}
		o := b.state.firstReady(namespace, nil, func(key) bool { return true })
		if o == nil {
			b.shares.leave(namespace, mark)
			continue
		}
		b.shares.charge(namespace)
		t := &agentv1.Turn{TurnId: "trn_" + o.message.GetMessageId(), RunId: "run", AgentId: o.key.ID, MessageId: o.message.GetMessageId()}
		b.apply(o.key,
			&journal.Event{Payload: &agentv1.MessageDequeued{Message: o.message}}, &journal.Event{Payload: &agentv1.TurnStarted{Turn: t}},
			&journal.Event{Payload: &agentv1.MessageProcessed{Message: o.message}}, &journal.Event{Payload: &agentv1.TurnCompleted{Turn: t}})
		b.shares.touch(namespace)
		return o.key, true
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
				b.spawn(ref.Agent{Namespace: ns, ID: fmt.Sprint("agent-", i)})
				b.ready(ref.Agent{Namespace: ns, ID: fmt.Sprint("agent-", i)})
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
func TestD7_NobodyWaitsBeyondTheBound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(rt, "namespaces")]
		weights := map[string]int{}
		for _, ns := range names {
			weights[ns] = rapid.IntRange(1, 5).Draw(rt, "weight")
		}
		b := newBoard(rt, weights)
		between := map[string]int{} // turns of others between two of a namespace
		var all []key
		for _, ns := range names {
			for _, other := range names {
				if other != ns {
					between[ns] += (weights[other]+weights[ns]-1)/weights[ns] + 1
				}
			}
			for i := range 4 {
				all = append(all, ref.Agent{Namespace: ns, ID: fmt.Sprint("agent-", i)})
				b.spawn(all[len(all)-1])
			}
		}
		left := map[key]int{} // by ready agent: turns it may still have to watch
		queue := map[string][]ref.Agent{}
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
				require.GreaterOrEqual(rt, left[other], 0, "%v waits too long; %v was taken; weights %v", other, k, weights)
			}
		}
	})
}

// A namespace that rests neither saves up nor owes, and leaves nothing behind.
func TestD7_RestIsNoCredit(t *testing.T) {
	s := newShares(map[string]int{"a": 2})
	s.touch("a")
	for range 100 {
		s.charge("a")
	}
	s.touch("b")
	took := map[string]int{}
	for range 30 {
		ns, _, ok := s.next()
		require.True(t, ok)
		s.charge(ns)
		took[ns]++
	}
	require.InDelta(t, 20, took["a"], 2)
	require.InDelta(t, 10, took["b"], 2)

	// One that leaves ahead of the present comes back there.
	ns, mark, _ := s.next()
	s.touch(ns)
	s.leave(ns, mark)
	again, mark, _ := s.next()
	require.Equal(t, ns, again, "touched since it was looked at")
	s.leave(ns, mark)
	other, _, ok := s.next()
	require.True(t, ok)
	require.NotEqual(t, ns, other)

	// A charge that is taken back costs nothing.
	before := maps.Clone(s.start)
	s.charge(other)
	s.refund(other)
	require.Equal(t, before, s.start)

	// What has left and is passed by is forgotten.
	for i := range 5000 {
		name := fmt.Sprint("n", i)
		s.touch(name)
		_, mark, _ := s.next()
		s.charge(name)
		s.leave(name, mark+s.touches) // not its mark: it stays
		s.leave(name, s.touched[name])
	}
	require.LessOrEqual(t, len(s.ahead), 5003)
	s.now = 1 << 62
	s.purgeAbove = 0
	s.purge()
	require.Empty(t, s.ahead)
}

func TestD7_WeightsAreBounded(t *testing.T) {
	for _, w := range []int{-1, 0, MaxWeight + 1} {
		_, err := New(Config{Weights: map[string]int{"acme": w}}, Deps{})
		require.Error(t, err)
	}
	r := newRig(t)
	for _, w := range []int{1, MaxWeight} {
		_, err := New(Config{Weights: map[string]int{"acme": w}}, r.service.deps)
		require.NoError(t, err)
	}
	_, err := New(Config{Weights: map[string]int{"acme": 0}}, r.service.deps)
	require.ErrorContains(t, err, `the weight of namespace "acme" is 0; it must be 1 to 1000`)
}

// A shared runner serves every namespace; the turn is its agent's all the same.
func TestD7_ASharedRunnerServesAll(t *testing.T) {
	r := newRig(t)
	for _, ns := range []string{"acme", "umbrella"} {
		ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: ns, Principal: "olga", Role: rpc.RoleOperator})
		for _, agentID := range []string{"keeper", "other"} {
			_, err := r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED})
			require.NoError(t, err)
			_, err = r.service.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: agentID, Text: "x"})
			require.NoError(t, err)
		}
	}
	shared := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "default", Principal: "pool", Role: rpc.RoleAdmin})
	var got []string
	for i := range 4 {
		req := &agentv1.AcquireTurnRequest{AllNamespaces: true, Wait: durationpb.New(0), RequestId: fmt.Sprint("r", i)}
		resp, err := r.service.AcquireTurn(shared, req)
		require.NoError(t, err)
		got = append(got, resp.GetNamespace()+"/"+resp.GetTurn().GetAgentId())
		require.Equal(t, "token/"+resp.GetNamespace()+"/"+resp.GetTurn().GetAgentId()+"/"+resp.GetTurn().GetRunId(), resp.GetRunToken())
		require.Equal(t, "default", resp.GetTurn().GetAcquiredFrom())
		// Asking again answers the same turn (SPEC X2).
		again, err := r.service.AcquireTurn(shared, req)
		require.NoError(t, err)
		require.Equal(t, resp.GetTurn().GetTurnId(), again.GetTurn().GetTurnId())
		require.Equal(t, resp.GetNamespace(), again.GetNamespace())
		req.AllNamespaces = false
		_, err = r.service.AcquireTurn(shared, req)
		require.ErrorIs(t, err, fault.RequestIDReused)
	}
	require.Equal(t, []string{"acme/keeper", "umbrella/keeper", "acme/other", "umbrella/other"}, got)
	resp, err := r.service.AcquireTurn(shared, &agentv1.AcquireTurnRequest{AllNamespaces: true, Wait: durationpb.New(0)})
	require.NoError(t, err)
	require.True(t, resp.GetPending())

	for _, role := range []string{rpc.RoleRunner, rpc.RoleAgent} {
		_, err := r.service.AcquireTurn(planetest.As(t.Context(), role), &agentv1.AcquireTurnRequest{AllNamespaces: true})
		require.Error(t, err, role)
	}
	_, err = r.service.AcquireTurn(shared, &agentv1.AcquireTurnRequest{AllNamespaces: true, AgentIds: []string{"keeper"}})
	require.ErrorIs(t, err, fault.InvalidArgument)
}

// A shared runner that waits is woken by any namespace, before or after private
// ones according to who has waited longest.
func TestD7_ASharedRunnerIsWoken(t *testing.T) {
	var ws waiters
	own, shared, named := ws.add("acme", nil, false, choice{}), ws.add("", nil, true, choice{}), ws.add("acme", []string{"a", "b"}, false, choice{})
	require.Equal(t, 3, ws.count(ref.Agent{Namespace: "acme", ID: "a"}, nil))
	require.Equal(t, 1, ws.count(ref.Agent{Namespace: "umbrella", ID: "a"}, nil))
	for _, w := range []*waiter{own, shared, named} {
		ws.wake(ref.Agent{Namespace: "acme", ID: "a"})
		require.Len(t, w.woken, 1)
	}
	ws.wake(ref.Agent{Namespace: "acme", ID: "a"})
	require.Zero(t, ws.count(ref.Agent{Namespace: "acme", ID: "a"}, nil))
	next := ws.add("umbrella", nil, false, choice{})
	ws.remove(shared)
	require.Empty(t, next.woken, "a wake is handed on within its namespace")
}

// 100 000 ready agents in 1 000 namespaces: a turn costs a few looks, not a scan.
func TestD7_AcquiringDoesNotScan(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	b := newBoard(t, map[string]int{"n1": 4})
	const agents, namespaces = 100_000, 1_000
	for i := range agents {
		k := ref.Agent{Namespace: fmt.Sprint("n", i%namespaces), ID: fmt.Sprint("agent-", i)}
		b.spawn(k)
		b.ready(k)
	}
	looks := 0
	for range 2000 {
		namespace, _, ok := b.shares.next()
		require.True(t, ok)
		o := b.state.firstReady(namespace, nil, func(key) bool { looks++; return true })
		require.NotNil(t, o)
		b.shares.charge(namespace)
	}
	require.Equal(t, 2000, looks, "one look a turn")
}
