package waiting

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
)

var (
	epoch    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	registry = journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto)
)

const (
	itemA = "wi_0000000000000000000000000a"
	itemB = "wi_0000000000000000000000000b"
	gone  = "wi_0000000000000000000000000c" // completed
	taskX = "tsk_0000000000000000000000000x"
	taskY = "tsk_0000000000000000000000000y"
)

// rig is the plane over memory; the other planes are what the test says.
type rig struct {
	t        *testing.T
	clk      *clock.Fake
	ids      *id.Sequence
	journals *planetest.Journals
	others   *others
	cfg      Config
	keys     *keyfile.Source
	service  *Service
}

// others stands for the planes that this one calls.
type others struct {
	mu       sync.Mutex
	current  string
	ended    map[string]bool  // tasks
	down     bool             // the work plane cannot be reached
	refuse   bool             // and when it can, it refuses waits
	recheck  *workv1.WorkItem // of what the owner of any item is reminded
	attached []*workv1.AttachWaitRequest
	// supervisor and askedBy are what the agent plane knows of any agent.
	supervisor string
	askedBy    []string
	// lane is what the agent plane says of the room in any lane.
	lane error
}

func (o *others) GetWorkQueue(context.Context, *workv1.GetWorkQueueRequest, ...grpc.CallOption) (
	*workv1.GetWorkQueueResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current == "" {
		return &workv1.GetWorkQueueResponse{}, nil
	}
	return &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: o.current}}, nil
}

func (o *others) GetWorkItem(_ context.Context, req *workv1.GetWorkItemRequest, _ ...grpc.CallOption) (
	*workv1.GetWorkItemResponse, error,
) {
	switch req.GetWorkItemId() {
	case itemA, itemB:
		o.mu.Lock()
		defer o.mu.Unlock()
		return &workv1.GetWorkItemResponse{WorkItem: &workv1.WorkItem{
			WorkItemId: req.GetWorkItemId(), State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN,
			RecheckAt: o.recheck.GetRecheckAt(), RecheckConsumedAt: o.recheck.GetRecheckConsumedAt(),
		}}, nil
	case gone:
		return &workv1.GetWorkItemResponse{
			WorkItem: &workv1.WorkItem{WorkItemId: gone, State: workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED},
		}, nil
	}
	return nil, fault.NotFound.New("no such item")
}

func (o *others) AttachWait(_ context.Context, req *workv1.AttachWaitRequest, _ ...grpc.CallOption) (
	*workv1.AttachWaitResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return nil, fault.NotReady.New("starting")
	}
	o.attached = append(o.attached, req)
	return &workv1.AttachWaitResponse{Refused: o.refuse}, nil
}

func (o *others) GetTask(_ context.Context, req *taskv1.GetTaskRequest, _ ...grpc.CallOption) (*taskv1.GetTaskResponse,
	error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id := req.GetTaskId(); id != taskX && id != taskY {
		return nil, fault.NotFound.New("no such task")
	}
	return &taskv1.GetTaskResponse{Task: &taskv1.Task{TaskId: req.GetTaskId(), Terminal: o.ended[req.GetTaskId()]}}, nil
}

func (o *others) AgentExists(_ context.Context, agentID string) error {
	if agentID == "nobody" {
		return fault.NotFound.New("no such agent")
	}
	return nil
}

func (o *others) LaneRoom(context.Context, string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lane
}

func (o *others) Supervision(context.Context, string) (string, []string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return "", nil, fault.NotReady.New("starting")
	}
	return o.supervisor, o.askedBy, nil
}

func (o *others) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *others) attaches() []*workv1.AttachWaitRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]*workv1.AttachWaitRequest(nil), o.attached...)
}

func newRig(t *testing.T) *rig {
	r := &rig{
		t: t, clk: clock.NewFake(epoch), ids: &id.Sequence{}, journals: planetest.NewJournals(),
		keys: keyfile.Fixed(keyfile.Of([]byte("the installation's key"))), others: &others{ended: map[string]bool{}},
		cfg: Config{PublicURL: "https://q.example/"},
	}
	r.up()
	t.Cleanup(func() {
		r.down()
		checkPages(t, r.events())
	})
	return r
}

func (r *rig) up() {
	r.t.Helper()
	r.service = must.Value(New(r.cfg, Deps{
		Deps: plane.Deps{Log: r.journals.Log, Sources: r.journals.Sources, Clock: r.clk, IDs: r.ids}, Work: r.others,
		Tasks: r.others, Agents: r.others, Keys: r.keys,
	}))(r.t)
	planetest.Start(r.t, r.service)
}

func (r *rig) down() { planetest.Stop(r.t, r.service) }

func (r *rig) restart() {
	r.t.Helper()
	r.down()
	r.up()
}

func (r *rig) agent() context.Context { return planetest.AsAgent(r.t.Context(), "keeper") }

func (r *rig) waitFor(req *waitingv1.WaitForRequest) *waitingv1.WaitForResponse {
	r.t.Helper()
	return must.Value(r.tryWaitFor(req))(r.t)
}

func (r *rig) tryWaitFor(req *waitingv1.WaitForRequest) (*waitingv1.WaitForResponse, error) {
	req.AgentId = "keeper"
	if req.GetReason() == "" {
		req.Reason = "why"
	}
	return r.service.WaitFor(r.agent(), req)
}

func (r *rig) wait(waitID string) *waitingv1.Wait {
	r.t.Helper()
	resp := must.Value(r.service.GetWait(r.agent(), &waitingv1.GetWaitRequest{AgentId: "keeper", WaitId: waitID}))(r.t)
	return resp.GetWait()
}

func (r *rig) trigger(item string, mode waitingv1.DeliveryMode) *waitingv1.CreateExternalTriggerResponse {
	r.t.Helper()
	return must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", WorkItemId: item, DeliveryMode: mode,
	}))(r.t)
}

func (r *rig) deliver(token, body string) *waitingv1.DeliverTriggerResponse {
	r.t.Helper()
	return must.Value(r.service.DeliverTrigger(context.Background(), &waitingv1.DeliverTriggerRequest{
		Token: token, Body: []byte(body), ContentType: "text/plain",
	}))(r.t)
}

func (r *rig) events() []*journal.Event { return r.journals.Events(r.t, Plane, registry) }

func (r *rig) since(n int) []string { return planetest.Types(r.events()[n:]) }

// hear applies another plane's event by the plane's own rule, as consuming it would.
func (r *rig) hear(item string, payload proto.Message) {
	r.t.Helper()
	ev := &journal.Event{Namespace: "acme", AgentID: "keeper", WorkItemID: item, Payload: payload}
	planetest.React(r.t, r.service.engine, ev, react)
}

func (r *rig) eventually(ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, time.Minute, 2*time.Millisecond)
}

func seconds(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }

const (
	stands = waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
	came   = waitingv1.WaitStatus_WAIT_STATUS_RESOLVED
	over   = waitingv1.WaitStatus_WAIT_STATUS_CANCELLED

	operatorInput = waitingv1.Wake_WAKE_OPERATOR_INPUT
	taskResult    = waitingv1.Wake_WAKE_TASK_RESULT
	external      = waitingv1.Wake_WAKE_EXTERNAL
	timer         = waitingv1.Wake_WAKE_TIMER

	contentful = waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
	wakeHint   = waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT
)

// state returns the live state; the caller must not race with commands.
func (s *Service) state() *State {
	st, _, err := journal.View(context.Background(), s.engine.All()[0], func(st *State) (*State, error) {
		return st, nil
	})
	if err != nil {
		panic(err)
	}
	return st
}

// rawLog is every byte of the journal.
func (r *rig) rawLog() string {
	r.t.Helper()
	log := must.Value(r.journals.Log(Plane, 0))(r.t)
	var all []byte
	require.NoError(r.t, log.Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		all = append(all, f.Body...)
		return nil
	}))
	return string(all)
}

// idle waits until all that is due by the test's clock has fired: fires are one
// after another, so a key that is set last is fired last.
func (r *rig) idle() {
	r.t.Helper()
	const last = "last"
	for range 2 { // what fires may set another key that is due
		r.service.due.Set(last, r.clk.Now())
		r.eventually(func() bool {
			_, set := r.service.due.At(last)
			return !set
		})
		r.service.due.Set(last, r.clk.Now())
		r.eventually(func() bool {
			_, set := r.service.due.At(last)
			return !set
		})
	}
}

func envAt(now time.Time) journal.Env {
	ids := &id.Sequence{}
	return journal.Env{Now: now, Actor: journal.Actor{Namespace: "acme"}, NewID: ids.New}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
