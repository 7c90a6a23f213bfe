package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	spawn  = "/quartet.agent.v1.AgentService/SpawnAgent"
	create = "/quartet.work.v1.WorkService/CreateWorkItem"
	finish = "/quartet.work.v1.WorkService/CompleteWorkItem"
)

// planesUnderTest are the journals of agent and work, and a Gate that counts them.
type planesUnderTest struct {
	agent, work *planetest.Writer
	metrics     *prometheus.Registry
	gate        *Gate
}

// open starts a Gate over empty journals with the limits of acme.
func open(t *testing.T, limits map[string]string) *planesUnderTest {
	t.Helper()
	journals := planetest.NewJournals()
	p := &planesUnderTest{
		agent:   journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto),
		work:    journals.NewWriter(t, "work", workv1.File_quartet_work_v1_work_event_proto),
		metrics: prometheus.NewRegistry(),
	}
	l := must.Value(Parse(nil, limits))(t)
	p.gate = NewGate(Config{
		Limits: l, Sources: journals.Sources, Metrics: p.metrics,
		Serves: func(plane string) bool { return plane == "agent" || plane == "work" },
	})
	require.ErrorContains(t, p.gate.Ready(), "not counted yet")
	require.NoError(t, p.gate.Start(t.Context()))
	require.NoError(t, p.gate.Ready())
	t.Cleanup(func() {
		require.NoError(t, p.gate.Stop(context.Background()))
		require.NoError(t, p.gate.Stop(context.Background()))
	})
	return p
}

func as(namespace string) context.Context {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{})
	return rpc.WithActor(ctx, rpc.Actor{Namespace: namespace, Principal: "test", Role: rpc.RoleOperator})
}

func of(v *planetest.Writer, namespace string, events ...*journal.Event) {
	v.WriteAs(journal.Actor{Namespace: namespace, Principal: "test", Role: rpc.RoleOperator}, events...)
}

func spawned() *journal.Event { return &journal.Event{Payload: &agentv1.AgentSpawned{}} }
func deleted() *journal.Event { return &journal.Event{Payload: &agentv1.AgentDeleted{}} }

// created returns the creation of another item, and completed the completion of one.
func created() *journal.Event {
	return &journal.Event{WorkItemID: fmt.Sprint("wi_", items.Add(1)), Payload: &workv1.WorkItemCreated{}}
}

func completed(item *journal.Event) *journal.Event {
	return &journal.Event{WorkItemID: item.WorkItemID, AgentID: item.AgentID, Payload: &workv1.WorkItemCompleted{}}
}

var items atomic.Int64

// spawnAgent calls SpawnAgent, whose handler writes an event.
func (p *planesUnderTest) spawnAgent(namespace string) error {
	_, err := p.gate.Unary(as(namespace), spawn, &agentv1.SpawnAgentRequest{}, func(context.Context, any) (any, error) {
		of(p.agent, namespace, spawned())
		return "spawned", nil
	})
	return err
}

func TestANamespaceHasNoMoreThanItsLimit(t *testing.T) {
	p := open(t, map[string]string{"acme.agents": "3"})
	for range 3 {
		require.NoError(t, p.spawnAgent("acme"))
	}
	err := p.spawnAgent("acme")
	require.ErrorIs(t, err, fault.QuotaExceeded)
	require.ErrorContains(t, err,
		"namespace acme has 3 of its 3 agents; delete an agent, or have an admin raise the quota")
	require.Equal(t, retryFull, fault.From(err).RetryAfter())
	families, gatherErr := p.metrics.Gather()
	require.NoError(t, gatherErr)
	require.Equal(t, "quartet_quota_refusals_total", families[0].GetName())
	require.InDelta(t, 1, families[0].GetMetric()[0].GetCounter().GetValue(), 0)
	require.NoError(t, p.spawnAgent("other"), "without a limit")

	of(p.agent, "acme", deleted())
	require.NoError(t, p.spawnAgent("acme"), "a deletion makes room at once")
	require.ErrorIs(t, p.spawnAgent("acme"), fault.QuotaExceeded)
}

// What was there before the process started counts.
func TestJournalsAreCountedAtTheStart(t *testing.T) {
	journals := planetest.NewJournals()
	agent := journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	of(agent, "acme", spawned(), spawned())
	of(agent, "acme", deleted())
	l := must.Value(Parse(map[string]int{Agents: 2}, nil))(t)
	g := NewGate(Config{Limits: l, Sources: journals.Sources, Serves: func(string) bool { return true }})
	require.NoError(t, g.Start(t.Context()))
	defer func() { require.NoError(t, g.Stop(context.Background())) }()
	admit := func() error {
		_, err := g.Unary(as("acme"), spawn, &agentv1.SpawnAgentRequest{}, func(context.Context, any) (any, error) {
			of(agent, "acme", spawned())
			return "spawned", nil
		})
		return err
	}
	require.NoError(t, admit())
	require.ErrorIs(t, admit(), fault.QuotaExceeded)
}

// Requests that are refused by their handler, or repeat an earlier one, take no room.
func TestRefusedRequestsTakeNoRoom(t *testing.T) {
	p := open(t, map[string]string{"acme.open-items": "2"})
	for range 10 {
		must.Refuse(p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{},
			func(context.Context, any) (any, error) {
				return nil, fault.InvalidArgument.New("no objective")
			}))(t, fault.InvalidArgument)
	}
	item := created()
	for range 2 {
		must.Value(p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{},
			func(context.Context, any) (any, error) {
				item = created()
				of(p.work, "acme", item)
				return "created", nil
			}))(t)
	}
	must.Refuse(p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{}, nil))(t, fault.QuotaExceeded)
	of(p.work, "acme", completed(item))
	must.Value(p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{},
		func(context.Context, any) (any, error) { return "created", nil }))(t)
}

// Of many concurrent requests as many are admitted as there is room, also while none of them
// has written yet.
func TestConcurrentRequestsShareTheRoom(t *testing.T) {
	p := open(t, map[string]string{"acme.agents": "5"})
	var all sync.WaitGroup
	results := make([]error, 40)
	release := make(chan struct{})
	decided := make(chan struct{}, len(results))
	for i := range results {
		all.Go(func() {
			_, results[i] = p.gate.Unary(as("acme"), spawn, &agentv1.SpawnAgentRequest{},
				func(context.Context, any) (any, error) {
					decided <- struct{}{}
					<-release
					of(p.agent, "acme", spawned())
					return "spawned", nil
				})
			if results[i] != nil {
				decided <- struct{}{}
			}
		})
	}
	for range results {
		<-decided
	}
	close(release)
	all.Wait()
	admitted := 0
	for _, err := range results {
		if err == nil {
			admitted++
			continue
		}
		require.ErrorIs(t, err, fault.QuotaExceeded)
	}
	require.Equal(t, 5, admitted)
	require.NoError(t, p.gate.counts.catchUp(t.Context(), Agents))
	require.EqualValues(t, 5, p.gate.counts.get("acme", Agents))
}

// A repeated request gets its first response also beyond the limit; an unknown one does not.
func TestX2_ARepetitionIsAnsweredBeyondTheLimit(t *testing.T) {
	p := open(t, map[string]string{"acme.open-items": "1"})
	handle := func(ctx context.Context, req any) (any, error) {
		id := req.(*workv1.CreateWorkItemRequest).GetRequestId()
		switch {
		case rpc.Recalling(ctx) && id == "first":
			return "first response", nil
		case rpc.Recalling(ctx):
			return nil, fault.NotFound.New("no such request")
		}
		of(p.work, "acme", created())
		return "first response", nil
	}
	call := func(requestID string) (any, error) {
		return p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{RequestId: requestID}, handle)
	}
	resp, err := call("first")
	require.NoError(t, err)
	require.Equal(t, "first response", resp)
	resp = must.Value(call("first"))(t)
	require.Equal(t, "first response", resp)
	for _, other := range []string{"second", ""} {
		_, err = call(other)
		require.ErrorIs(t, err, fault.QuotaExceeded, other)
	}
	require.NoError(t, p.gate.counts.catchUp(t.Context(), OpenItems))
	require.EqualValues(t, 1, p.gate.counts.get("acme", OpenItems))
}

func TestANamespaceThatHasWrittenItsLimitMayOnlyEndThings(t *testing.T) {
	p := open(t, map[string]string{"acme.mib": "1"})
	ok := func(context.Context, any) (any, error) { return "ok", nil }
	write := func(bytes int) {
		of(p.work, "acme",
			&journal.Event{
				Payload: &workv1.WorkItemCreated{
					WorkItem: &workv1.WorkItemRecord{Objective: fmt.Sprintf("%*d", bytes, 1)},
				},
			})
		require.NoError(t, p.gate.counts.catchUp(t.Context(), MiB))
	}
	write(900 << 10)
	_, err := p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{}, ok)
	require.NoError(t, err, "below the limit")
	write(200 << 10)
	for method := range writes {
		_, err = p.gate.Unary(as("acme"), method, nil, ok)
		require.ErrorIs(t, err, fault.QuotaExceeded, method)
	}
	require.ErrorContains(t, err, "namespace acme has 1 of its 1 mib; journals keep everything that history-days and "+
		"erase-after do not remove, so an admin has to raise the quota")
	for _, method := range []string{
		finish, "/quartet.agent.v1.AgentService/DeleteAgent",
		"/quartet.agent.v1.AgentService/FinishTurn", "/quartet.agent.v1.AgentService/ListAgents",
	} {
		must.Value(p.gate.Unary(as("acme"), method, nil, ok))(t, method)
	}
	must.Value(p.gate.Unary(as("other"), create, nil, ok))(t)
}

// A journal that cannot be read to its end refuses what would need it, for a moment, and
// nothing else.
func TestAJournalThatCannotBeRead(t *testing.T) {
	l := must.Value(Parse(nil, map[string]string{"acme.agents": "1"}))(t)
	g := NewGate(Config{Limits: l, Serves: func(string) bool { return true }, Sources: func(string) ([]journal.Source,
		error,
	) {
		return nil, errors.New("no broker")
	}})
	require.ErrorContains(t, g.Start(t.Context()), "no broker")
	require.Error(t, g.Ready())
	must.Refuse(g.Unary(as("acme"), spawn, &agentv1.SpawnAgentRequest{}, nil))(t, fault.NotReady)
	must.Value(g.Unary(as("acme"), finish, nil, func(context.Context, any) (any, error) { return "ok", nil }))(t)
}

func TestTheRateOfRequestsRecovers(t *testing.T) {
	g := NewGate(Config{Limits: must.Value(Parse(map[string]int{Requests: 50}, nil))(t)})
	for g.Request("acme") == nil {
	}
	err := g.Request("acme")
	require.ErrorIs(t, err, fault.RateLimited)
	again := fault.From(err).RetryAfter()
	require.Greater(t, again, time.Duration(0))
	require.LessOrEqual(t, again, time.Second)
	require.Eventually(t, func() bool { return g.Request("acme") == nil }, time.Minute, again,
		"after the time that the refusal names")
}

// TestI13_ItemsOfDeletedAgentsDoNotCount: an agent that is deleted leaves its open items behind, which are
// counted no longer, in whatever order its deletion and its items are read.
func TestI13_ItemsOfDeletedAgentsDoNotCount(t *testing.T) {
	p := open(t, map[string]string{"acme.open-items": "2"})
	item := func(agent string, ev *journal.Event) *journal.Event { ev.AgentID = agent; return ev }
	add := func() error {
		return must.Err(p.gate.Unary(as("acme"), create, &workv1.CreateWorkItemRequest{},
			func(context.Context, any) (any, error) { return "made", nil }))
	}
	one, two := item("one", created()), item("two", created())
	of(p.work, "acme", one, two)
	require.ErrorIs(t, add(), fault.QuotaExceeded)
	of(p.agent, "acme", item("one", deleted()))
	require.NoError(t, add())
	of(p.work, "acme", completed(one)) // it was on its way
	of(p.work, "acme", item("two", created()))
	require.ErrorIs(t, add(), fault.QuotaExceeded)
	of(p.agent, "acme", item("late", deleted()))
	of(p.work, "acme", item("late", created()), item("late", created()))
	of(p.work, "acme", completed(two))
	require.NoError(t, add(), "items of an agent whose deletion was read first")
}

// An item counts for nothing if the journal has its completion and not its creation, which was removed (SPEC W18).
func TestW18_CompletionsWithoutCreations(t *testing.T) {
	p := open(t, map[string]string{"acme.open-items": "5"})
	item := created()
	of(p.work, "acme", completed(created()), item, completed(created()))
	require.NoError(t, p.gate.counts.catchUp(t.Context(), OpenItems))
	require.EqualValues(t, 1, p.gate.counts.get("acme", OpenItems))
	of(p.work, "acme", completed(item))
	require.NoError(t, p.gate.counts.catchUp(t.Context(), OpenItems))
	require.Zero(t, p.gate.counts.get("acme", OpenItems))
	require.Empty(t, p.gate.counts.items)
}

// TestI14_LittleMemory: while little memory is left, first the namespaces that hold most may add nothing, then
// nobody; what ends something is executed, and everybody goes on when there is memory again.
func TestI14_LittleMemory(t *testing.T) {
	p := open(t, map[string]string{"acme.mib": "100", "other.mib": "100"})
	p.gate.cfg.Memory = 1000
	of(p.work, "acme", created(), created(), created())
	of(p.work, "other", created())
	require.NoError(t, p.gate.counts.catchUp(t.Context(), MiB))
	call := func(namespace, method string) error {
		return must.Err(p.gate.Unary(as(namespace), method, &workv1.CreateWorkItemRequest{},
			func(context.Context, any) (any, error) { return "ok", nil }))
	}
	for _, c := range []struct {
		live        uint64
		acme, other bool
	}{
		{449, true, true},
		{450, false, true},
		{549, false, true},
		{550, false, false},
		{1000, false, false},
		{0, true, true},
	} {
		p.gate.Observe(c.live)
		for namespace, ok := range map[string]bool{"acme": c.acme, "other": c.other} {
			require.NoError(t, call(namespace, finish))
			for _, err := range []error{call(namespace, create), p.gate.Delivery(namespace, "trg_1", 1)} {
				if ok {
					require.NoError(t, err, "%+v", c)
					continue
				}
				require.ErrorIs(t, err, fault.Overloaded, "%+v", c)
				require.Equal(t, memoryAfter, fault.From(err).RetryAfter())
			}
			_, err := p.gate.Stream(rpc.Actor{Namespace: namespace})
			require.Equal(t, ok, err == nil)
		}
	}
}
