package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/identity"
	"quartet/services/work"
)

// rig is a gateway before a real work plane, and before doubles of the others
// that say what a test tells them to.
type rig struct {
	t       *testing.T
	gateway *Service
	base    string
	keys    *rpc.Keyring
	logs    *observer.ObservedLogs
	client  *http.Client

	mu       sync.Mutex
	journals map[string]framelog.Log
	ready    error

	waiting *waitingDouble
	task    *taskDouble
	polled  chan struct{} // has one if a poll for a turn has arrived
}

type nothingRuns struct{}

func (nothingRuns) RunningTasks(context.Context, string, string) ([]work.RunningTask, error) {
	return nil, nil
}
func (nothingRuns) AgentExists(context.Context, string) error { return nil }
func (nothingRuns) LaneRoom(context.Context, string) error    { return nil }

func (nothingRuns) Supervision(context.Context, string) (string, []string, error) {
	return "", nil, nil
}

// waitingDouble keeps what it was delivered.
type waitingDouble struct {
	waitingv1.UnimplementedWaitingServiceServer
	mu        sync.Mutex
	delivered []*waitingv1.DeliverTriggerRequest
	actors    []rpc.Actor
	checked   []int64 // sizes
}

const goodToken = "qtr_secretsecretsecret"

func (d *waitingDouble) CheckDelivery(_ context.Context, req *waitingv1.CheckDeliveryRequest) (
	*waitingv1.CheckDeliveryResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch token := req.GetToken(); {
	case token == "revoked":
		return nil, fault.TriggerRevoked.New("this trigger was revoked")
	case token == "busy":
		return nil, fault.RateLimited.New("too many").WithRetryAfter(3 * time.Second)
	case strings.HasPrefix(token, goodToken):
		d.checked = append(d.checked, req.GetBodyBytes())
		namespace, trigger, ok := strings.Cut(strings.TrimPrefix(token, goodToken), ".")
		if !ok {
			namespace, trigger = "default", "trg_1"
		}
		return &waitingv1.CheckDeliveryResponse{Namespace: namespace, TriggerId: trigger}, nil
	}
	return nil, fault.NotFound.New("no such trigger")
}

func (d *waitingDouble) DeliverTrigger(ctx context.Context, req *waitingv1.DeliverTriggerRequest) (
	*waitingv1.DeliverTriggerResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delivered = append(d.delivered, req)
	d.actors = append(d.actors, rpc.ActorFrom(ctx))
	switch req.GetToken() {
	case goodToken:
		if req.GetRequestId() != "" && len(d.delivered) > 1 && d.delivered[len(d.delivered)-2].GetRequestId() ==
			req.GetRequestId() {
			rpc.Replayed(ctx)
		}
		return &waitingv1.DeliverTriggerResponse{
			Outcome:    waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED,
			DeliveryId: "dlv_1",
		}, nil
	case goodToken + "unsigned.trg_2":
		return nil, fault.SignatureInvalid.New("the signature is wrong")
	}
	return &waitingv1.DeliverTriggerResponse{Outcome: waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED}, nil
}

// taskDouble keeps what was asked for.
type taskDouble struct {
	taskv1.UnimplementedTaskServiceServer
	mu       sync.Mutex
	asked    *taskv1.GetTaskOutputRequest
	overload bool
}

func (d *taskDouble) GetTaskOutput(_ context.Context, req *taskv1.GetTaskOutputRequest) (*taskv1.GetTaskOutputResponse,
	error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.overload {
		return nil, fault.Overloaded.New("too many")
	}
	d.asked = req
	return &taskv1.GetTaskOutputResponse{RetrievalStatus: "success", Task: &taskv1.Task{
		TaskId:   req.GetTaskId(),
		Revision: 4,
	}}, nil
}

func (d *taskDouble) FollowTaskOutput(req *taskv1.FollowTaskOutputRequest,
	out grpc.ServerStreamingServer[taskv1.FollowTaskOutputResponse],
) error {
	switch req.GetTaskId() {
	case "gone":
		return fault.NotFound.New("no such task")
	case "breaks":
		if err := out.Send(&taskv1.FollowTaskOutputResponse{Chunk: &taskv1.OutputChunk{Data: []byte("a")}}); err !=
			nil {
			return err
		}
		return fault.TaskNotRunning.New("it broke")
	}
	for _, s := range []string{"a", "b"} {
		if err := out.Send(&taskv1.FollowTaskOutputResponse{
			Chunk: &taskv1.OutputChunk{Data: []byte(s), Offset: req.GetOffset()},
		}); err != nil {
			return err
		}
	}
	return nil
}

type agentDouble struct {
	agentv1.UnimplementedAgentServiceServer
	polled chan<- struct{}
}

func (agentDouble) GetAgent(ctx context.Context, req *agentv1.GetAgentRequest) (*agentv1.GetAgentResponse, error) {
	a := rpc.ActorFrom(ctx)
	return &agentv1.GetAgentResponse{Agent: &agentv1.Agent{
		AgentId: req.GetAgentId(), Revision: 1,
		PostureReason: a.Namespace + "/" + a.Principal + "/" + a.Role,
	}}, nil
}

// DeleteAgent returns what it was asked, as the agent's reason.
func (agentDouble) DeleteAgent(_ context.Context, req *agentv1.DeleteAgentRequest) (*agentv1.DeleteAgentResponse,
	error,
) {
	if req.GetExpectedRevision() > 1 {
		return nil, fault.RevisionConflict.New("another revision")
	}
	return &agentv1.DeleteAgentResponse{Agent: &agentv1.Agent{
		AgentId: req.GetAgentId(), Revision: 1 + req.GetExpectedRevision(), ControlReason: req.GetRequestId() + "/" +
			req.GetReason(),
	}}, nil
}

// AcquireTurn has nothing to give and waits for as long as it may.
func (d agentDouble) AcquireTurn(ctx context.Context, _ *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse,
	error,
) {
	select {
	case d.polled <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (agentDouble) SubmitRound(_ context.Context, req *agentv1.SubmitRoundRequest) (*agentv1.SubmitRoundResponse,
	error,
) {
	args := &structpb.Struct{}
	if len(req.GetToolCalls()) > 0 {
		args = req.GetToolCalls()[0].GetArguments()
	}
	return &agentv1.SubmitRoundResponse{
		ToolResults: []*agentv1.ToolResult{{Result: args, SummaryText: req.GetUsage().String()}},
	}, nil
}

// roles is an Admission that refuses what a role may not do.
type roles struct{ rpc.Unlimited }

func (roles) Permit(ctx context.Context, method string, a rpc.Actor) error {
	return identity.Permit(ctx, method, a)
}

func newRig(t *testing.T, change ...func(*Config, *Deps)) *rig {
	core, logs := observer.New(zap.DebugLevel)
	r := &rig{
		t: t, keys: rpc.NewKeyring([]byte("key"), true), logs: logs, journals: map[string]framelog.Log{},
		polled:  make(chan struct{}, 1),
		waiting: &waitingDouble{}, task: &taskDouble{}, client: &http.Client{Transport: &http.Transport{}},
	}
	for _, p := range watched {
		r.journals[p] = journaltest.NewMemLog()
	}
	w, err := work.New(work.Config{Home: t.TempDir()}, work.Deps{
		Tasks: nothingRuns{}, Agents: nothingRuns{},
		Deps: plane.Deps{
			Log:     func(string, int) (framelog.Log, error) { return r.journals["work"], nil },
			Sources: func(p string) ([]journal.Source, error) { return r.sources(p) },
		},
	})
	require.NoError(t, err)
	require.NoError(t, w.Start(t.Context()))
	server := rpc.NewServer(rpc.Config{Auth: r.keys, Admission: roles{}})
	w.Register(server)
	waitingv1.RegisterWaitingServiceServer(server, r.waiting)
	taskv1.RegisterTaskServiceServer(server, r.task)
	agentv1.RegisterAgentServiceServer(server, agentDouble{polled: r.polled})
	schedulerv1.RegisterSchedulerServiceServer(server, schedulerv1.UnimplementedSchedulerServiceServer{})
	network := rpc.NewNetwork(rpc.NetworkConfig{Service: "gateway", Token: r.keys.MintService("gateway")})

	cfg := Config{HTTPAddr: "127.0.0.1:0"}
	deps := Deps{
		Admission: roles{},
		Conn:      func(s string) (grpc.ClientConnInterface, error) { return network.Dial(s) }, Auth: r.keys,
		Waits: func(m string) bool { return m == agentv1.AgentService_AcquireTurn_FullMethodName }, Sources: r.sources,
		Ready: func() error {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.ready
		},
		OpenAPI: []byte(`{"openapi":"3.0.3"}`), Logger: zap.New(core), Version: "test",
	}
	for _, f := range change {
		f(&cfg, &deps)
	}
	r.gateway, err = New(cfg, deps)
	require.NoError(t, err)
	r.gateway.Register(server)
	for _, name := range []string{"agent", "work", "task", "waiting", "board", "scheduler", "event", "fleet"} {
		require.NoError(t, network.Listen(name, server))
	}
	require.Error(t, r.gateway.Ready())
	require.NoError(t, r.gateway.Start(t.Context()))
	require.NoError(t, r.gateway.Start(t.Context()), "Start is idempotent")
	require.NoError(t, r.gateway.Ready())
	r.base = "http://" + r.gateway.Addr()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, r.gateway.Stop(ctx))
		require.NoError(t, r.gateway.Stop(ctx), "Stop is idempotent")
		require.Error(t, r.gateway.Ready())
		r.client.CloseIdleConnections()
		server.Stop()
		require.NoError(t, network.Close())
		require.NoError(t, w.Stop(ctx))
	})
	return r
}

func (r *rig) sources(p string) ([]journal.Source, error) {
	return []journal.Source{journal.NewSource(p, 0, r.journals[p])}, nil
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   []byte
	fault  errorInfo
}

// do sends a request; header is name, value, name, value.
func (r *rig) do(method, path, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	a := answer{status: resp.StatusCode, header: resp.Header, body: b}
	if resp.StatusCode >= 400 && resp.Header.Get("Content-Type") == "application/json" {
		var e errorBody
		require.NoError(r.t, json.Unmarshal(b, &e), string(b))
		a.fault = e.Error
	}
	return a
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.NewDecoder(bytes.NewReader(a.body)).Decode(&v), string(a.body))
	return v
}

// create creates a work item and gives its id.
func (r *rig) create(agent, objective string, header ...string) string {
	r.t.Helper()
	a := r.do(http.MethodPost, "/v1/agents/"+agent+"/work-items", `{"objective":"`+objective+`"}`, header...)
	require.Equal(r.t, 200, a.status, string(a.body))
	item, ok := a.json(r.t)["workItem"].(map[string]any)
	require.True(r.t, ok)
	id, ok := item["workItemId"].(string)
	require.True(r.t, ok)
	return id
}
