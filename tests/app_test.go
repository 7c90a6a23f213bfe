package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
	"quartet/tests/proc"
)

// system is a running Quartet as a client sees it: an address for each service.
type system struct {
	agents    agentv1.AgentServiceClient
	work      workv1.WorkServiceClient
	tasks     taskv1.TaskServiceClient
	waiting   waitingv1.WaitingServiceClient
	scheduler schedulerv1.SchedulerServiceClient
	events    eventv1.EventServiceClient
	http      string
	token     string // of REST, where it needs one
	// dial opens a connection of its own to the process that serves a service.
	dial func(t *testing.T, service string, opts ...grpc.DialOption) *grpc.ClientConn
	// more starts another process that serves only these services.
	more func(t *testing.T, services ...string)
}

func connect(addr map[string]string, http string) *system {
	s := &system{http: "http://" + http}
	s.dial = func(t *testing.T, service string, opts ...grpc.DialOption) *grpc.ClientConn {
		opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(client.LocalCredential(addr[service])),
			grpc.WithUnaryInterceptor(rpc.FaultsUnary), grpc.WithStreamInterceptor(rpc.FaultsStream))
		conn := must.Value(grpc.NewClient("passthrough:///"+addr[service], opts...))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	return s
}

func (s *system) open(t *testing.T) *system {
	s.agents = agentv1.NewAgentServiceClient(s.dial(t, "agent"))
	s.work = workv1.NewWorkServiceClient(s.dial(t, "work"))
	s.tasks = taskv1.NewTaskServiceClient(s.dial(t, "task"))
	s.waiting = waitingv1.NewWaitingServiceClient(s.dial(t, "waiting"))
	s.scheduler = schedulerv1.NewSchedulerServiceClient(s.dial(t, "scheduler"))
	s.events = eventv1.NewEventServiceClient(s.dial(t, "event"))
	return s
}

// startApp starts a server. If the test fails, what the server warned of last is in its output.
func startApp(t *testing.T, cfg app.Config) *app.App {
	core, logs := observer.New(zap.WarnLevel)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		all := logs.All()
		for _, entry := range all[max(0, len(all)-50):] {
			t.Log(entry.Time.Format(time.RFC3339Nano), entry.Level, entry.Message, entry.ContextMap())
		}
	})
	return startLogged(t, cfg, zap.New(core))
}

func startLogged(t *testing.T, cfg app.Config, log *zap.Logger) *app.App {
	a := must.Value(app.New(cfg, log, "test"))(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, a.Start(ctx))
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, a.Stop(stopping))
	})
	require.Eventually(t, func() bool { return a.Ready() == nil }, time.Minute, 5*time.Millisecond)
	return a
}

// oneProcess is everything over memory and an embedded NATS.
func oneProcess(t *testing.T) *system { return oneProcessWith(t, startApp) }

func oneProcessWith(t *testing.T, startApp func(*testing.T, app.Config) *app.App) *system {
	dir := t.TempDir()
	grpcAddr, httpAddr := freeAddr(t), freeAddr(t)
	a := startApp(t, app.Config{
		WorkerUnconfined: true, DataDir: dir, GRPCAddr: grpcAddr, HTTPAddr: httpAddr, Publish: true, Replicas: 1,
		WorkerID: "w1", WorkerRoots: []string{dir}, WorkerCapacity: 4,
	})
	addr := map[string]string{}
	for _, s := range append([]string{"event"}, app.Services...) {
		addr[s] = a.GRPCAddr()
	}
	return connect(addr, httpAddr).open(t)
}

// split starts the same services in three processes' worth of apps over TCP, with
// one NATS server that they share; or, asked at one of them, with a second
// instance of every plane.
func split(t *testing.T, throughOne bool) *system { return splitWith(t, throughOne, startApp) }

func splitWith(t *testing.T, throughOne bool, startApp func(*testing.T, app.Config) *app.App) *system {
	dir := t.TempDir()
	broker := must.Value(natsd.Start(natsd.Config{StoreDir: filepath.Join(dir, "nats"), Port: 0}))(t)
	t.Cleanup(broker.Stop)
	groups := [][]string{{"agent", "waiting"}, {"work", "task", "worker"}, {"scheduler", "gateway", "identity"}}
	addr := map[string]string{}
	grpcAddrs := make([]string, len(groups))
	for i, g := range groups {
		grpcAddrs[i] = freeAddr(t)
		for _, s := range g {
			addr[s] = grpcAddrs[i]
		}
	}
	addr["event"] = addr["gateway"]
	httpAddr := freeAddr(t)
	config := func(i int, services []string) app.Config {
		return app.Config{
			WorkerUnconfined: true,
			DataDir:          filepath.Join(dir, fmt.Sprint(i)), HomeDir: filepath.Join(dir, "home"),
			NATSURL: broker.URL(), KeyFile: filepath.Join(dir, "key"),
			Addresses: addr, Serve: services, HTTPAddr: httpAddr, PublicURL: "http://" + httpAddr,
			Publish: true, Replicas: 1, WorkerID: "w1", WorkerRoots: []string{dir}, WorkerCapacity: 4,
		}
	}
	for i, g := range groups {
		cfg := config(i, g)
		cfg.GRPCAddr = grpcAddrs[i]
		startApp(t, cfg)
	}
	ask := addr
	if throughOne { // it hands on what it does not serve
		// And to whoever holds it: half of what can be split is elsewhere.
		cfg := config(len(groups)+1, []string{"agent", "work", "task", "waiting", "board", "identity"})
		cfg.GRPCAddr, cfg.HTTPAddr = freeAddr(t), freeAddr(t)
		startApp(t, cfg)
		ask = map[string]string{}
		for service := range addr {
			ask[service] = addr["gateway"]
		}
	}
	s := connect(ask, httpAddr)
	s.more = func(t *testing.T, services ...string) {
		cfg := config(len(groups), services)
		cfg.GRPCAddr, cfg.HTTPAddr = freeAddr(t), freeAddr(t)
		startApp(t, cfg)
	}
	return s.open(t)
}

func freeAddr(t *testing.T) string {
	return must.Value(proc.FreeAddr())(t)
}

// eachWay runs a body over each deployment: in process is a network, so
// nothing may tell them apart.
func eachWay(t *testing.T, body func(t *testing.T, ctx context.Context, s *system)) {
	ways := map[string]func(*testing.T) *system{
		"one process":    oneProcess,
		"split over TCP": func(t *testing.T) *system { return split(t, false) },
		"two instances, asked at the gateway's process": func(t *testing.T) *system { return split(t, true) },
	}
	if *deployedGRPC != "" {
		ways = map[string]func(*testing.T) *system{"deployed": deployed}
	}
	for name, start := range ways {
		t.Run(name, func(t *testing.T) {
			s := start(t) // may build its binary first
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			body(t, ctx, s)
		})
	}
}

func (s *system) spawn(t *testing.T, ctx context.Context, agentID string) {
	must.Value(s.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
}

func (s *system) say(t *testing.T, ctx context.Context, agentID, text string) string {
	r := must.Value(s.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: agentID, Text: text}))(t)
	return r.GetMessageId()
}

// turn is a turn held by a test.
type turn struct {
	s   *system
	got *agentv1.AcquireTurnResponse
	n   int32
}

func (s *system) acquire(t *testing.T, ctx context.Context, agentID string) *turn {
	got := must.Value(s.agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
		AgentIds: []string{agentID},
		Wait:     durationpb.New(20 * time.Second),
	}))(t)
	require.False(t, got.GetPending(), "agent %s has nothing to do", agentID)
	return &turn{s: s, got: got}
}

func args(t *testing.T, m map[string]any) *structpb.Struct {
	return must.Value(structpb.NewStruct(m))(t)
}

// again submits a round of before once more, as a runner does whose answer was lost.
func (tn *turn) again(t *testing.T, ctx context.Context, index int32) *agentv1.SubmitRoundResponse {
	tr := tn.got.GetTurn()
	kept, err := tn.s.agents.GetTurn(ctx, &agentv1.GetTurnRequest{AgentId: tr.GetAgentId(), TurnId: tr.GetTurnId()})
	require.NoError(t, err)
	round := kept.GetRounds()[index]
	return must.Value(tn.s.agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: tr.GetAgentId(), TurnId: tr.GetTurnId(), RunId: tr.GetRunId(), RoundIndex: index,
		Text: round.GetText(), ToolCalls: round.GetToolCalls(),
	}))(t)
}

func (tn *turn) round(t *testing.T, ctx context.Context, text string,
	calls ...*agentv1.ToolCall,
) *agentv1.SubmitRoundResponse {
	for i, c := range calls {
		c.CallId = fmt.Sprint(i)
	}
	tr := tn.got.GetTurn()
	r := must.Value(tn.s.agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: tr.GetAgentId(), TurnId: tr.GetTurnId(), RunId: tr.GetRunId(), RoundIndex: tn.n, Text: text,
		ToolCalls: calls,
	}))(t)
	tn.n++
	for _, res := range r.GetToolResults() {
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, res.GetStatus(), "%s: %s", res.GetToolName(),
			res.GetError().GetMessage())
	}
	return r
}

func tool(t *testing.T, name string, m map[string]any) *agentv1.ToolCall {
	return &agentv1.ToolCall{Name: name, Arguments: args(t, m)}
}

func at(r *agentv1.ToolResult, path ...string) string {
	v := structpb.NewStructValue(r.GetResult())
	for _, p := range path {
		v = v.GetStructValue().GetFields()[p]
	}
	return v.GetStringValue()
}

// TestOneLoopThroughAllPlanes takes an agent through every plane: a command, a trigger, a
// timer and an operator each wake it.
func TestOneLoopThroughAllPlanes(t *testing.T) {
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		s.spawn(t, ctx, "keeper")
		s.say(t, ctx, "keeper", "do three things")

		// A command: the turn ends with the wait and the result wakes the agent.
		tn := s.acquire(t, ctx, "keeper")
		require.Equal(t, "do three things", tn.got.GetMessage().GetText())
		r := tn.round(t, ctx, "",
			tool(t, "CreateWorkItem", map[string]any{"objective": "run a command", "plan": "run it\n"}))
		item := at(r.GetToolResults()[0], "work_item", "work_item_id")
		r = tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
			tool(t, "ExecCommand", map[string]any{"cmd": "sleep 1; echo hello; exit 3", "yield_time": "0s"}))
		task := at(r.GetToolResults()[1], "handle", "task_id")
		r = tn.round(t, ctx, "",
			tool(t, "WaitFor", map[string]any{"wake": "task_result", "resource": task, "reason": "the command"}))
		require.True(t, r.GetTurnEnded())
		require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR, r.GetEndReason())

		tn = s.acquire(t, ctx, "keeper")
		if tn.got.GetMessage().GetTick() != nil { // the scheduler was quicker than the message with the result
			require.Contains(t, tn.got.GetContext().GetText(), "TaskOutput, task_id "+task,
				"the turn is told where the result is")
			tr := tn.got.GetTurn()
			must.Value(s.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
				AgentId: "keeper", TurnId: tr.GetTurnId(),
				RunId: tr.GetRunId(), Outcome: agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED,
			}))(t)
			tn = s.acquire(t, ctx, "keeper")
		}
		require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, tn.got.GetMessage().GetKind())
		require.Equal(t, item, tn.got.GetMessage().GetWorkItemId(), "the result is bound to its item")
		require.Contains(t, tn.got.GetMessage().GetText(), "hello")
		got := must.Value(s.work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: item}))(t)
		require.Equal(t, workv1.Readiness_READINESS_RUNNABLE, got.GetWorkItem().GetReadiness(),
			"the wait is over when the result is shown")
		require.Empty(t, got.GetWorkItem().GetBlockedBy())
		tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}))
		r = tn.round(t, ctx, "It said hello and failed with 3.",
			tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))
		require.True(t, r.GetTurnEnded())
		require.Equal(t, item, r.GetPromotedWorkItemId())

		// An event from outside: counted, shown, never cleared by the system.
		s.say(t, ctx, "keeper", "now wait for the world")
		tn = s.acquire(t, ctx, "keeper")
		r = tn.round(t, ctx, "", tool(t, "CreateWorkItem", map[string]any{"objective": "wait for the world"}))
		item = at(r.GetToolResults()[0], "work_item", "work_item_id")
		r = tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
			tool(t, "CreateExternalTrigger", map[string]any{}))
		tn0 := tn
		url, trigger := at(r.GetToolResults()[1], "url"), at(r.GetToolResults()[1], "trigger", "trigger_id")
		require.True(t, strings.HasPrefix(url, s.http+"/v1/triggers/"), url)
		tn.round(t, ctx, "",
			tool(t, "WaitFor", map[string]any{"wake": "external", "resource": trigger, "reason": "the world"}))
		post(t, ctx, url, `{"n":1}`)
		tn = s.acquire(t, ctx, "keeper")
		require.Equal(t, agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, tn.got.GetMessage().GetTick().GetReason())
		got = must.Value(s.work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: item}))(t)
		require.Equal(t, "the world", got.GetWorkItem().GetBlockedBy())
		require.True(t, got.GetWorkItem().GetHasTriggeredWaits())
		tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
			tool(t, "UpdateWorkItem", map[string]any{"blocked_by": nil}))
		tn.round(t, ctx, "The world called.", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))

		// A timer, while another item goes on.
		s.say(t, ctx, "keeper", "and wait a moment")
		tn = s.acquire(t, ctx, "keeper")
		r = tn.round(t, ctx, "", tool(t, "CreateWorkItem", map[string]any{"objective": "wait a moment"}))
		item = at(r.GetToolResults()[0], "work_item", "work_item_id")
		tn.round(t, ctx, "", tool(t, "WaitFor", map[string]any{
			"wake": "timer", "after": "0.3s", "reason": "a moment",
			"work_item_id": item,
		}))
		tn = s.acquire(t, ctx, "keeper")
		require.Equal(t, agentv1.TickReason_TICK_REASON_PICK_QUEUED, tn.got.GetMessage().GetTick().GetReason())
		tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}))
		tn.round(t, ctx, "A moment has passed.", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))

		// A round that is asked for again after its turn ended has the secret too.
		again := tn0.again(t, ctx, 1)
		require.Equal(t, url, at(again.GetToolResults()[1], "url"))
		secret := strings.TrimPrefix(url, s.http+"/v1/triggers/")
		require.NotContains(t, s.everything(t, ctx), secret, "the secret of a trigger is told to its maker alone "+
			"(SPEC P3)")

		require.Eventually(t, func() bool {
			e, err := s.scheduler.Explain(ctx, &schedulerv1.ExplainRequest{AgentId: "keeper"})
			return err == nil && e.GetVerdict().GetReason() == "all_completed"
		}, time.Minute, 10*time.Millisecond)
	})
}
