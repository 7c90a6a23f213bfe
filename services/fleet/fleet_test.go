package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// records are the agents and boards that the index reads, held in memory.
type records struct {
	mu     sync.Mutex
	agents map[plane.Key]*agentv1.GetAgentResponse
	boards map[plane.Key][]*boardv1.Board
	gate   chan struct{} // GetAgent waits until it is closed; nil: it does not
	// entered has an element once a call waits at the gate.
	entered chan struct{}
	reads   int // calls of GetAgent
	lists   int // calls of ListBoards
}

func (r *records) set(namespace string, got *agentv1.GetAgentResponse, boards ...*boardv1.Board) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := plane.KeyOf(namespace, got.GetAgent().GetAgentId())
	r.agents[k], r.boards[k] = got, boards
}

func (r *records) drop(namespace, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.agents, plane.KeyOf(namespace, id))
}

// GetFacts implements Agents: one agent in a page.
func (r *records) GetFacts(_ context.Context, in *agentv1.GetFactsRequest, _ ...grpc.CallOption) (
	*agentv1.GetFactsResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []plane.Key
	for k := range r.agents {
		keys = append(keys, k)
	}
	text := func(k plane.Key) string { return k.Namespace + "/" + k.ID }
	slices.SortFunc(keys, func(a, b plane.Key) int { return strings.Compare(text(a), text(b)) })
	for i, k := range keys {
		if text(k) > in.GetPageToken() {
			page := &agentv1.GetFactsResponse{
				Facts: []*agentv1.AgentFacts{{Namespace: k.Namespace, Agent: r.agents[k].GetAgent()}},
			}
			if i < len(keys)-1 {
				page.NextPageToken = text(k)
			}
			return page, nil
		}
	}
	return &agentv1.GetFactsResponse{}, nil
}

// GetAgent implements Agents.
func (r *records) GetAgent(ctx context.Context, in *agentv1.GetAgentRequest, _ ...grpc.CallOption) (
	*agentv1.GetAgentResponse, error,
) {
	r.mu.Lock()
	gate := r.gate
	r.reads++
	r.mu.Unlock()
	if gate != nil {
		select {
		case r.entered <- struct{}{}:
		default:
		}
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	got, ok := r.agents[plane.KeyOf(rpc.ActorFrom(ctx).Namespace, in.GetAgentId())]
	if !ok {
		return nil, fault.NotFound.New("no such agent")
	}
	return got, nil
}

// ListBoards implements Boards.
func (r *records) ListBoards(ctx context.Context, in *boardv1.ListBoardsRequest, _ ...grpc.CallOption) (
	*boardv1.ListBoardsResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists++
	return &boardv1.ListBoardsResponse{Boards: r.boards[plane.KeyOf(rpc.ActorFrom(ctx).Namespace, in.GetSessionId())]},
		nil
}

// agent is an agent that does something.
func agent(id string, posture agentv1.Posture, waits ...*waitingv1.Wait) *agentv1.GetAgentResponse {
	return &agentv1.GetAgentResponse{
		Agent: &agentv1.Agent{AgentId: id, Posture: posture, Lane: &agentv1.Lane{}},
		Waits: waits,
	}
}

func quarantined(got *agentv1.GetAgentResponse) *agentv1.GetAgentResponse {
	got.Agent.Lane.Quarantined = 1
	return got
}

func private(got *agentv1.GetAgentResponse) *agentv1.GetAgentResponse {
	got.Agent.Visibility = agentv1.Visibility_VISIBILITY_PRIVATE
	return got
}

const (
	idle    = agentv1.Posture_POSTURE_IDLE
	running = agentv1.Posture_POSTURE_RUNNING_TURN
	asking  = agentv1.Posture_POSTURE_WAITING_OPERATOR
	blocked = agentv1.Posture_POSTURE_BLOCKED
	outside = agentv1.Posture_POSTURE_WAITING_EXTERNAL
)

// weak is a wait that nothing ends.
func weak() *waitingv1.Wait {
	return &waitingv1.Wait{
		Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
		WeakReason: waitingv1.WeakReason_WEAK_REASON_NO_LIVE_TRIGGER,
	}
}

// rig is a service over records. No journal is followed: a test marks what changed, as an event would.
type rig struct {
	*testing.T
	*Service
	records *records
	clock   *clock.Fake
}

func newRig(t *testing.T) *rig {
	r := &rig{
		T: t, records: &records{
			agents: map[plane.Key]*agentv1.GetAgentResponse{},
			boards: map[plane.Key][]*boardv1.Board{}, entered: make(chan struct{}, 1),
		},
		clock: clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
	}
	r.Service = must.Value(New(Deps{
		Sources: func(string) ([]journal.Source, error) { return nil, nil }, Agents: r.records,
		Boards: r.records, Clock: r.clock,
	}))(t)
	t.Cleanup(r.Stop)
	return r
}

// as returns the context of an operator of a namespace.
func (r *rig) as(namespace string) context.Context {
	return rpc.WithActor(r.Context(), rpc.Actor{Namespace: namespace, Role: rpc.RoleOperator, Principal: "o"})
}

// whole waits until all agents were looked at.
func (r *rig) whole() *index {
	x := must.Value(r.current(r.as("a")))(r)
	select {
	case <-x.done:
	case <-time.After(time.Minute):
		require.FailNow(r, "the index was never complete")
	}
	return x
}

// search returns the ids on all pages, and the totals must agree.
func (r *rig) search(namespace string, req *fleetv1.SearchAgentsRequest) []string {
	r.Helper()
	var ids []string
	req.PageToken = ""
	for {
		page := must.Value(r.SearchAgents(r.as(namespace), req))(r)
		require.False(r, page.GetIncomplete())
		for _, a := range page.GetAgents() {
			ids = append(ids, a.GetAgentId())
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			require.Len(r, ids, int(page.GetTotal()))
			return ids
		}
	}
}

// G16: agents are found by what they do, why they need a person, and a part of the id.
func TestG16_FiltersSelect(t *testing.T) {
	r := newRig(t)
	r.records.set("a", agent("ask-1", asking))
	r.records.set("a", agent("bored", idle))
	r.records.set("a", private(agent("child-asks", asking)))
	r.records.set("a", quarantined(agent("failing", running)))
	r.records.set("a", agent("keeper", idle), &boardv1.Board{Status: boardv1.BoardStatus_BOARD_STATUS_BLOCKED})
	r.records.set("a", agent("stuck", blocked))
	r.records.set("a", agent("waiter", outside, weak()))
	r.whole()
	for _, c := range []struct {
		req  *fleetv1.SearchAgentsRequest
		want string
	}{
		{&fleetv1.SearchAgentsRequest{}, "ask-1 bored failing keeper stuck waiter"},
		{&fleetv1.SearchAgentsRequest{IncludePrivate: true}, "ask-1 bored child-asks failing keeper stuck waiter"},
		{&fleetv1.SearchAgentsRequest{Postures: []agentv1.Posture{idle}}, "bored keeper"},
		{&fleetv1.SearchAgentsRequest{Postures: []agentv1.Posture{idle, running}}, "bored failing keeper"},
		{&fleetv1.SearchAgentsRequest{Attentions: []fleetv1.Attention{fleetv1.Attention_ATTENTION_QUESTION}}, "ask-1"},
		{&fleetv1.SearchAgentsRequest{
			Attentions:     []fleetv1.Attention{fleetv1.Attention_ATTENTION_QUESTION},
			IncludePrivate: true,
		}, "ask-1"},
		{
			&fleetv1.SearchAgentsRequest{Attentions: []fleetv1.Attention{fleetv1.Attention_ATTENTION_QUARANTINED}},
			"failing",
		},
		{
			&fleetv1.SearchAgentsRequest{Attentions: []fleetv1.Attention{fleetv1.Attention_ATTENTION_WEAK_WAIT}},
			"waiter",
		},
		{
			&fleetv1.SearchAgentsRequest{Attentions: []fleetv1.Attention{fleetv1.Attention_ATTENTION_STALLED_BOARD}},
			"keeper",
		},
		{&fleetv1.SearchAgentsRequest{Attentions: []fleetv1.Attention{fleetv1.Attention_ATTENTION_BLOCKED}}, "stuck"},
		{&fleetv1.SearchAgentsRequest{Attentions: attentions}, "ask-1 failing keeper stuck waiter"},
		{&fleetv1.SearchAgentsRequest{Attentions: attentions, Postures: []agentv1.Posture{idle}}, "keeper"},
		{&fleetv1.SearchAgentsRequest{Contains: "e"}, "bored keeper waiter"},
		{&fleetv1.SearchAgentsRequest{Contains: "k-"}, "ask-1"},
		{&fleetv1.SearchAgentsRequest{Contains: "E"}, ""},
	} {
		require.Equal(t, c.want, strings.Join(r.search("a", c.req), " "), c.req)
	}
	got := must.Value(r.CountAgents(r.as("a"), &fleetv1.CountAgentsRequest{}))(t)
	require.EqualValues(t, 6, got.GetAgents())
	require.EqualValues(t, 5, got.GetNeedAttention())
	require.Len(t, got.GetAttentions(), 5)
	got = must.Value(r.CountAgents(r.as("a"), &fleetv1.CountAgentsRequest{IncludePrivate: true}))(t)
	require.EqualValues(t, 7, got.GetAgents())
}

// A filter that is none is refused by name.
func TestG16_BadFiltersAreRefused(t *testing.T) {
	r := newRig(t)
	for field, req := range map[string]*fleetv1.SearchAgentsRequest{
		"postures[0]":   {Postures: []agentv1.Posture{0}},
		"postures[1]":   {Postures: []agentv1.Posture{idle, 99}},
		"attentions[0]": {Attentions: []fleetv1.Attention{7}},
		"postures":      {Postures: slices.Repeat([]agentv1.Posture{idle}, maxChosen+1)},
		"attentions":    {Attentions: slices.Repeat([]fleetv1.Attention{1}, maxChosen+1)},
		"contains":      {Contains: strings.Repeat("ä", maxContains+1)},
		"page_size":     {PageSize: 501},
		"page_token":    {PageToken: "x"},
	} {
		_, err := r.SearchAgents(r.as("a"), req)
		e := fault.From(err)
		require.NotEmpty(t, e.Violations(), field)
		require.Equal(t, field, e.Violations()[0].Field)
	}
	r.whole()
	must.Value(r.SearchAgents(r.as("a"), &fleetv1.SearchAgentsRequest{
		Contains: strings.Repeat("ä", maxContains),
		PageSize: 500,
	}))(t)
}

// Pages have each agent once: below, at and above their size.
func TestG16_PagesHaveEachAgentOnce(t *testing.T) {
	r := newRig(t)
	var want []string
	for i := range 51 {
		want = append(want, fmt.Sprintf("agent-%03d", i))
		r.records.set("a", agent(want[i], idle))
	}
	x := r.whole()
	for _, n := range []int{49, 50, 51} { // the default size is 50
		for i, id := range want {
			if i < n {
				x.put(plane.KeyOf("a", id), entryOf(agent(id, idle)))
			} else {
				x.remove(plane.KeyOf("a", id))
			}
		}
		page := must.Value(r.SearchAgents(r.as("a"), &fleetv1.SearchAgentsRequest{}))(t)
		require.Len(t, page.GetAgents(), min(n, 50))
		require.EqualValues(t, n, page.GetTotal())
		require.Equal(t, n > 50, page.GetNextPageToken() != "", n)
		for _, size := range []int32{0, 1, 7, 49, 50, 51, 500} {
			require.Equal(t, want[:n], r.search("a", &fleetv1.SearchAgentsRequest{PageSize: size}), "%d in pages of %d",
				n, size)
		}
	}
}

// Tenants do not see each other's agents, nor count them.
func TestG16_TenantsAreApart(t *testing.T) {
	r := newRig(t)
	r.records.set("a", agent("keeper", idle))
	r.records.set("a", agent("mine", running))
	r.records.set("b", agent("keeper", asking))
	x := r.whole()
	require.Equal(t, []string{"keeper", "mine"}, r.search("a", &fleetv1.SearchAgentsRequest{}))
	require.Equal(t, []string{"keeper"}, r.search("b", &fleetv1.SearchAgentsRequest{}))
	require.Empty(t, r.search("a", &fleetv1.SearchAgentsRequest{Attentions: attentions}))
	require.Empty(t, r.search("c", &fleetv1.SearchAgentsRequest{IncludePrivate: true}))
	second := r.clock.Now().Unix()
	x.of("a").rates.add(second, 3, 100, 10)
	for namespace, want := range map[string][3]int32{"a": {2, 0, 3}, "b": {1, 1, 0}, "c": {}} {
		got := must.Value(r.CountAgents(r.as(namespace), &fleetv1.CountAgentsRequest{IncludePrivate: true}))(t)
		require.Equal(t, want, [3]int32{got.GetAgents(), got.GetNeedAttention(), got.GetTurnsLastMinute()}, namespace)
	}
}

// An agent that is deleted is neither found nor counted once its event is read, nor returned before.
func TestG16_DeletedAgentsAreGone(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"gone", "kept", "marked"} {
		r.records.set("a", agent(id, idle))
	}
	x := r.whole()
	r.records.drop("a", "gone")
	deleted := agent("marked", idle)
	deleted.Agent.Lifecycle = agentv1.Lifecycle_LIFECYCLE_DELETED
	r.records.set("a", deleted)
	page := must.Value(r.SearchAgents(r.as("a"), &fleetv1.SearchAgentsRequest{Contains: "gone"}))(t)
	require.Empty(t, page.GetAgents(), "its record is read for the page")
	for _, id := range []string{"gone", "marked"} {
		require.NoError(t, x.look(t.Context(), plane.KeyOf("a", id), true))
	}
	require.Equal(t, []string{"kept"}, r.search("a", &fleetv1.SearchAgentsRequest{}))
	require.EqualValues(t, 1, must.Value(r.CountAgents(r.as("a"), &fleetv1.CountAgentsRequest{}))(t).GetAgents())
}

// A call right after the start waits for the agents, and says so in JSON if they take longer than it waits.
func TestG16_CountsRightAfterTheStart(t *testing.T) {
	r := newRig(t)
	gate := make(chan struct{})
	r.records.gate = gate
	r.records.set("a", agent("keeper", idle))

	type answer struct {
		got *fleetv1.CountAgentsResponse
		err error
	}
	count := func(ctx context.Context) chan answer {
		out := make(chan answer, 1)
		go func() {
			got, err := r.CountAgents(ctx, &fleetv1.CountAgentsRequest{})
			out <- answer{got, err}
		}()
		return out
	}
	take := func(from chan answer) *fleetv1.CountAgentsResponse {
		select {
		case a := <-from:
			require.NoError(t, a.err)
			return a.got
		case <-time.After(time.Minute):
			require.FailNow(t, "no answer")
			return nil
		}
	}
	gone, leave := context.WithCancel(r.as("a"))
	leave()
	require.True(t, take(count(gone)).GetIncomplete(), "a caller that left is not waited for")

	<-r.records.entered // the index reads, and waits for no time
	first := count(r.as("a"))
	r.clock.AwaitTimers(1)
	r.clock.Advance(patience)
	got := take(first)
	require.True(t, got.GetIncomplete())
	text := must.Value(protojson.Marshal(got))(t)
	require.Equal(t, `{"incomplete":true}`, strings.ReplaceAll(string(text), " ", ""),
		"JSON says that none is not the answer")

	second := count(r.as("a"))
	close(gate)
	got = take(second)
	require.False(t, got.GetIncomplete())
	require.EqualValues(t, 1, got.GetAgents())
}

// What was counted is forgotten after a minute.
func TestG16_RatesAreOfTheLastMinute(t *testing.T) {
	var r rates
	at := time.Unix(1_000_000, 0)
	r.add(at.Unix(), 1, 10, 100)
	r.add(at.Unix(), 1, 1, 1)
	r.add(at.Unix()+59, 1, 0, 0)
	sum := func(after time.Duration) [3]int64 {
		turns, in, out := r.sum(at.Add(after))
		return [3]int64{int64(turns), in, out}
	}
	require.Equal(t, [3]int64{3, 11, 101}, sum(59*time.Second))
	require.Equal(t, [3]int64{1, 0, 0}, sum(60*time.Second))
	require.Equal(t, [3]int64{}, sum(119*time.Second))
	r.add(at.Unix()+60, 5, 0, 0) // the place of the first second
	require.Equal(t, [3]int64{6, 0, 0}, sum(60*time.Second))
}

// Calls are refused once the service stopped, and Stop ends an index that still reads.
func TestStopEndsAnIndexThatReads(t *testing.T) {
	r := newRig(t)
	r.records.gate = make(chan struct{})
	r.records.set("a", agent("keeper", idle))
	must.Value(r.current(r.as("a")))(t)
	r.Stop()
	r.Stop()
	must.Refuse(r.SearchAgents(r.as("a"), &fleetv1.SearchAgentsRequest{}))(t, fault.NotReady)
}
