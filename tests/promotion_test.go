package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	agentplane "quartet/services/agent"
	workplane "quartet/services/work"
)

// disk is the journals of two planes, which stop taking anything after so many
// appends, as they do when the process dies there.
type disk struct {
	mu   sync.Mutex
	left int // appends until it dies; negative: it lives
	dead bool
}

func (d *disk) arm(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.dead = n, false
}

func (d *disk) died() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}

type dying struct {
	framelog.Log
	disk *disk
}

func (l dying) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	l.disk.mu.Lock()
	if l.disk.left == 0 {
		l.disk.dead = true
	} else if l.disk.left > 0 {
		l.disk.left--
	}
	dead := l.disk.dead
	l.disk.mu.Unlock()
	if dead {
		return 0, fmt.Errorf("%w: the process is dead", framelog.ErrRefused)
	}
	return l.Log.Append(ctx, expect, f)
}

// alone stands for the planes that take no part: no tasks, no waits.
type alone struct{}

func (alone) AgentExists(context.Context, string) error { return nil }
func (alone) RunningTasks(context.Context, string, string) ([]workplane.RunningTask, error) {
	return nil, nil
}

func (alone) GetTimer(context.Context, *waitingv1.GetTimerRequest, ...grpc.CallOption) (*waitingv1.GetTimerResponse,
	error,
) {
	return &waitingv1.GetTimerResponse{}, nil
}

func (alone) ListWaits(context.Context, *waitingv1.ListWaitsRequest, ...grpc.CallOption) (*waitingv1.ListWaitsResponse,
	error,
) {
	return &waitingv1.ListWaitsResponse{}, nil
}

// pair is the agent and the work plane over journals that outlive them.
type pair struct {
	t        *testing.T
	clk      *clock.Fake
	ids      map[string]*id.Sequence
	journals *planetest.Journals
	disk     *disk
	home     string
	agent    *agentplane.Service
	work     *workplane.Service
	stops    []func()
}

func newPair(t *testing.T) *pair {
	p := &pair{
		t: t, clk: clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), disk: &disk{left: -1},
		home: t.TempDir(), ids: map[string]*id.Sequence{"agent": {}, "work": {}}, journals: planetest.NewJournals(),
	}
	p.journals.Wrap = func(_ string, log framelog.Log) framelog.Log { return dying{log, p.disk} }
	p.up()
	t.Cleanup(p.down)
	return p
}

func (p *pair) up() {
	net := planetest.NewNet(p.t)
	deps := func(name string) plane.Deps {
		return plane.Deps{Log: p.journals.Log, Sources: p.journals.Sources, Clock: p.clk, IDs: p.ids[name]}
	}
	p.work = must.Value(workplane.New(workplane.Config{Home: p.home}, workplane.Deps{
		Deps: deps("work"), Tasks: alone{}, Agents: alone{},
	}))(p.t)
	require.NoError(p.t, p.work.Start(context.Background()))
	p.stops = append(p.stops, net.Serve("work", p.work.Register))
	conn := must.Value(net.Conn("work"))(p.t)
	p.agent = must.Value(agentplane.New(agentplane.Config{}, agentplane.Deps{
		Deps: deps("agent"), Work: workv1.NewWorkServiceClient(conn), Waiting: alone{}, Conn: net.Conn,
		MintRun: func(_, _, run string) string { return run },
	}))(p.t)
	require.NoError(p.t, p.agent.Start(context.Background()))
}

func (p *pair) down() {
	p.disk.arm(-1)
	require.NoError(p.t, p.agent.Stop(context.Background()))
	require.NoError(p.t, p.work.Stop(context.Background()))
	for _, stop := range p.stops {
		stop()
	}
	p.stops = nil
}

func (p *pair) runner() context.Context   { return planetest.As(p.t.Context(), rpc.RoleRunner) }
func (p *pair) operator() context.Context { return planetest.As(p.t.Context(), rpc.RoleOperator) }

// item creates an item, puts it into focus, and returns the turn that did.
func (p *pair) item() (*agentv1.Turn, string) {
	p.t.Helper()
	must.Value(p.agent.SpawnAgent(p.operator(), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: "go",
	}))(p.t)
	got := must.Value(p.agent.AcquireTurn(p.runner(), &agentv1.AcquireTurnRequest{Wait: durationpb.New(0)}))(p.t)
	first := must.Value(p.round(got.GetTurn(), 0, "", call("CreateWorkItem", "objective", "count")))(p.t)
	item := itemOf(first.GetToolResults()[0])
	must.Value(p.round(got.GetTurn(), 1, "", call("PickWorkItem", "work_item_id", item)))(p.t)
	return got.GetTurn(), item
}

// roundOfDead submits a round during which a plane may die: calls to it are tried again for two seconds.
func (p *pair) roundOfDead(turn *agentv1.Turn, index int32, text string, calls ...*agentv1.ToolCall) {
	ctx, cancel := context.WithTimeout(p.runner(), 2*time.Second)
	defer cancel()
	_, _ = p.submit(ctx, turn, index, text, calls...)
}

func (p *pair) round(turn *agentv1.Turn, index int32, text string, calls ...*agentv1.ToolCall) (
	*agentv1.SubmitRoundResponse, error,
) {
	ctx, cancel := context.WithTimeout(p.runner(), time.Minute)
	defer cancel()
	return p.submit(ctx, turn, index, text, calls...)
}

func (p *pair) submit(ctx context.Context, turn *agentv1.Turn, index int32, text string, calls ...*agentv1.ToolCall) (
	*agentv1.SubmitRoundResponse, error,
) {
	return p.agent.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: turn.GetTurnId(), RunId: turn.GetRunId(), RoundIndex: index, Text: text,
		ToolCalls: calls,
	})
}

// TestC3_OneResultBriefOverEveryCrash kills the process at every append between
// the call of CompleteWorkItem and the brief, in both planes, whatever the runner
// does then: send the round again, finish the turn, or never come back. A
// completed item has one report and one result brief, which are the round's text
// (SPEC C3, W7, X1).
func TestC3_OneResultBriefOverEveryCrash(t *testing.T) {
	const report = "done: 12 packages pass"
	for name, then := range map[string]func(p *pair, turn *agentv1.Turn, item string){
		"the round is sent again": func(p *pair, turn *agentv1.Turn, item string) {
			again := must.Value(p.round(turn, 2, report, call("CompleteWorkItem", "work_item_id", item)))(p.t)
			require.True(p.t, again.GetTurnEnded())
			require.Equal(p.t, item, again.GetPromotedWorkItemId())
		},
		"the turn is finished": func(p *pair, turn *agentv1.Turn, _ string) {
			must.Value(p.agent.FinishTurn(p.runner(), &agentv1.FinishTurnRequest{
				AgentId: "keeper", TurnId: turn.GetTurnId(), RunId: turn.GetRunId(),
			}))(p.t)
		},
		"the runner never comes back": func(p *pair, _ *agentv1.Turn, _ string) {
			p.clk.Advance(31 * time.Second)
			require.NoError(p.t, p.agent.Quiesce(p.t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			for n := 0; ; n++ {
				p := newPair(t)
				turn, item := p.item()
				p.disk.arm(n)
				p.roundOfDead(turn, 2, report, call("CompleteWorkItem", "work_item_id", item))
				crashed := p.disk.died()
				for range 2 { // a crash of the recovery's own process is one more start
					p.down()
					p.up()
				}
				then(p, turn, item)
				p.audit(item, report, n, name == "the round is sent again" || !crashed)
				if !crashed {
					require.Greater(t, n, 4, "the round, the completion, its result, the report and the end of the "+
						"turn are appends")
					return
				}
			}
		})
	}
}

// audit wants one report and one result brief of a completed item, also after
// one more start.
func (p *pair) audit(item, report string, n int, completed bool) {
	p.t.Helper()
	for range 2 {
		got, err := p.work.GetWorkItem(p.operator(), &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: item})
		require.NoError(p.t, err)
		done := got.GetWorkItem().GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
		if completed {
			require.True(p.t, done, "crash at append %d", n)
		}
		var briefs []*agentv1.Brief
		settled := func() bool {
			l := must.Value(p.agent.ListBriefs(p.operator(), &agentv1.ListBriefsRequest{AgentId: "keeper"}))(p.t)
			briefs = nil
			for _, b := range l.GetBriefs() {
				if b.GetKind() == agentv1.BriefKind_BRIEF_KIND_RESULT && b.GetWorkItemId() != "" {
					briefs = append(briefs, b)
				}
			}
			return !done || len(briefs) > 0
		}
		require.Eventually(p.t, settled, time.Minute, time.Millisecond, "crash at append %d: no brief", n)
		promoted := 0
		for _, ev := range p.journals.Events(p.t, "work",
			journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto)) {
			if ev.Type == "report_promoted" {
				promoted++
			}
		}
		if !done {
			require.Zero(p.t, promoted)
			require.Empty(p.t, briefs)
			return
		}
		require.Equal(p.t, 1, promoted, "crash at append %d", n)
		require.Equal(p.t, report, got.GetWorkItem().GetResultSummary())
		require.Len(p.t, briefs, 1, "crash at append %d", n)
		require.Equal(p.t, got.GetWorkItem().GetResultBriefId(), briefs[0].GetBriefId())
		require.Equal(p.t, report, briefs[0].GetText())
		l := must.Value(p.agent.ListBriefs(p.operator(), &agentv1.ListBriefsRequest{AgentId: "keeper"}))(p.t)
		for _, b := range l.GetBriefs() {
			require.False(p.t, b.GetKind() == agentv1.BriefKind_BRIEF_KIND_RESULT && b.GetWorkItemId() == "",
				"crash at append %d: the turn's end says it once more (W7)", n)
		}
		p.down()
		p.up()
	}
}
