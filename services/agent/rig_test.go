package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/state"
)

var (
	epoch    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	registry = journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto)
)

// rig is the plane over memory; the other planes are what the test says.
type rig struct {
	t        *testing.T
	clk      *clock.Fake
	ids      *id.Sequence
	journals *planetest.Journals
	others   *others
	service  *Service
}

// others stands for the planes that this one calls.
type others struct {
	mu      sync.Mutex
	queue   func() (*workv1.GetWorkQueueResponse, error)
	item    func() *workv1.WorkItem
	promote func(*workv1.PromoteReportRequest) (*workv1.PromoteReportResponse, error)
	waits   []*waitingv1.Wait
	// firings is how often each timer fired after its first time.
	firings int64
	// waitRevision and waitsErr are what ListWaits answers beside waits.
	waitRevision int64
	waitsErr     error
	reads        []string // of GetWorkQueue and ListWaits, with the positions they name
	answer       map[string]func(context.Context, proto.Message) (proto.Message, error)
	calls        []called
	reports      []*workv1.PromoteReportRequest
	boards       func(*boardv1.GetSummaryRequest) (*boardv1.GetSummaryResponse, error)
	history      []*workv1.WorkItemMutation
}

// called is one tool call as the other plane saw it.
type called struct {
	plane, method, requestID string
	actor                    rpc.Actor
	req                      proto.Message
}

// read notes a read of facts. o.mu is held.
func (o *others) read(ctx context.Context, method string) {
	md, _ := metadata.FromOutgoingContext(ctx)
	if after := md.Get("quartet-after"); len(after) > 0 {
		method += " after " + strings.Join(after, " ")
	}
	o.reads = append(o.reads, method)
}

// factReads returns the reads since the last time.
func (o *others) factReads() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	reads := o.reads
	o.reads = nil
	return reads
}

func (o *others) GetWorkQueue(ctx context.Context, req *workv1.GetWorkQueueRequest, _ ...grpc.CallOption) (
	*workv1.GetWorkQueueResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read(ctx, "GetWorkQueue")
	if o.queue != nil {
		q, err := o.queue()
		return withNamed(q, req), err
	}
	return &workv1.GetWorkQueueResponse{AgentId: req.GetAgentId(), Revision: 7}, nil
}

// withNamed adds the first of the items that a request names.
func withNamed(q *workv1.GetWorkQueueResponse, req *workv1.GetWorkQueueRequest) *workv1.GetWorkQueueResponse {
	if q == nil {
		return nil
	}
	all := slices.Concat([]*workv1.WorkItem{q.GetCurrent()}, q.GetTriggeredBlocked(), q.GetQueuedRunnable(),
		q.GetWaitingForOperator(), q.GetBlocked(), q.GetRechecks())
	for _, id := range req.GetWorkItemIds() {
		if i := slices.IndexFunc(all, func(it *workv1.WorkItem) bool {
			return id != "" &&
				it.GetWorkItemId() == id
		}); i >= 0 {
			q.Named = all[i]
			break
		}
	}
	return q
}

func (o *others) GetWorkItem(context.Context, *workv1.GetWorkItemRequest, ...grpc.CallOption) (
	*workv1.GetWorkItemResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.item == nil {
		return nil, fault.NotFound.New("no item")
	}
	return &workv1.GetWorkItemResponse{WorkItem: o.item()}, nil
}

func (o *others) ListWaits(ctx context.Context, req *waitingv1.ListWaitsRequest, _ ...grpc.CallOption) (
	*waitingv1.ListWaitsResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read(ctx, "ListWaits")
	if o.waitsErr != nil {
		return nil, o.waitsErr
	}
	resp := &waitingv1.ListWaitsResponse{Revision: o.waitRevision}
	for _, w := range o.waits {
		ended := w.GetStatus() != waitingv1.WaitStatus_WAIT_STATUS_UNSPECIFIED &&
			w.GetStatus() != waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
		selected := slices.Contains(req.GetWaitIds(), w.GetWaitId()) || req.GetEndedBy() != "" &&
			w.GetEndedBy() == req.GetEndedBy()
		all := len(req.GetWaitIds()) == 0 && req.GetEndedBy() == "" || req.GetAlsoActive()
		if selected || all && !ended {
			resp.Waits = append(resp.Waits, w)
		}
	}
	begin, _ := strconv.Atoi(req.GetPageToken())
	resp.Waits = resp.Waits[begin:]
	if size := int(req.GetPageSize()); size > 0 && len(resp.Waits) > size {
		resp.Waits, resp.NextPageToken = resp.Waits[:size], strconv.Itoa(begin+size)
	}
	return resp, nil
}

func (o *others) GetTimer(_ context.Context, req *waitingv1.GetTimerRequest, _ ...grpc.CallOption) (
	*waitingv1.GetTimerResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &waitingv1.GetTimerResponse{Timer: &waitingv1.Timer{TimerId: req.GetTimerId(), FireCount: 1 + o.firings}},
		nil
}

func (o *others) PromoteReport(_ context.Context, req *workv1.PromoteReportRequest, _ ...grpc.CallOption) (
	*workv1.PromoteReportResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.promote != nil {
		return o.promote(req)
	}
	o.reports = append(o.reports, req)
	return &workv1.PromoteReportResponse{Promoted: true, WorkItem: &workv1.WorkItem{
		WorkItemId:    req.GetWorkItemId(),
		ResultBriefId: "brf_1",
	}}, nil
}

func (o *others) ListWorkItemHistory(context.Context, *workv1.ListWorkItemHistoryRequest, ...grpc.CallOption) (
	*workv1.ListWorkItemHistoryResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.history == nil {
		return nil, fault.NotFound.New("no item")
	}
	return &workv1.ListWorkItemHistoryResponse{Mutations: o.history}, nil
}

func (o *others) GetSummary(_ context.Context, req *boardv1.GetSummaryRequest, _ ...grpc.CallOption) (
	*boardv1.GetSummaryResponse, error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.boards == nil {
		return &boardv1.GetSummaryResponse{}, nil
	}
	return o.boards(req)
}

func (o *others) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *others) seen() []called {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]called(nil), o.calls...)
}

func (o *others) methods() []string {
	var out []string
	for _, c := range o.seen() {
		out = append(out, c.method)
	}
	return out
}

// conn is the connection to one plane.
type conn struct {
	plane  string
	others *others
}

func (c conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	req, _ := args.(proto.Message)
	into, _ := reply.(proto.Message)
	requestID := ""
	if r, ok := req.(interface{ GetRequestId() string }); ok {
		requestID = r.GetRequestId()
	}
	c.others.mu.Lock()
	c.others.calls = append(c.others.calls, called{
		c.plane, method[lastSlash(method)+1:], requestID, rpc.ActorFrom(ctx),
		proto.Clone(req),
	})
	answer := c.others.answer[method[lastSlash(method)+1:]]
	c.others.mu.Unlock()
	if answer == nil {
		return nil
	}
	out, err := answer(ctx, req)
	if err == nil && out != nil {
		proto.Merge(into, out)
	}
	return err
}

func lastSlash(s string) int {
	at := 0
	for i, c := range s {
		if c == '/' {
			at = i
		}
	}
	return at
}

func (conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, fault.Unimplemented.New("no streams")
}

func newRig(t *testing.T) *rig {
	r := &rig{
		t: t, clk: clock.NewFake(epoch), ids: &id.Sequence{}, journals: planetest.NewJournals(), others: &others{},
	}
	r.others.answer = map[string]func(context.Context, proto.Message) (proto.Message, error){}
	r.up()
	t.Cleanup(func() {
		r.down()
		r.checkPages()
	})
	return r
}

func (r *rig) up() {
	r.t.Helper()
	r.service = must.Value(New(Config{}, Deps{
		Deps: plane.Deps{
			Log: r.journals.Log, Sources: r.journals.Sources, Clock: r.clk, WaitClock: clock.System(), IDs: r.ids,
		},
		Work:    r.others,
		Waiting: r.others,
		Boards:  r.others,
		Conn:    func(p string) (grpc.ClientConnInterface, error) { return conn{p, r.others}, nil },
		MintRun: func(ns, agent, run string) string { return "token/" + ns + "/" + agent + "/" + run },
	}))(r.t)
	planetest.Start(r.t, r.service)
}

func (r *rig) down() { planetest.Stop(r.t, r.service) }

func (r *rig) restart() {
	r.t.Helper()
	r.down()
	r.up()
}

// injectFaults restarts the service over a log in which the test can inject faults.
func (r *rig) injectFaults() (log *journaltest.FaultLog) {
	r.t.Helper()
	r.journals.Wrap = func(_ string, inner framelog.Log) framelog.Log {
		log = journaltest.NewFaultLog(inner)
		return log
	}
	r.restart()
	return log
}

func (r *rig) operator() context.Context { return planetest.As(r.t.Context(), rpc.RoleOperator) }

func (r *rig) runner() context.Context { return planetest.As(r.t.Context(), rpc.RoleRunner) }

func (r *rig) scheduler() context.Context {
	return planetest.As(r.t.Context(), rpc.RoleService)
}

func (r *rig) spawn(agentID string) {
	r.t.Helper()
	must.Value(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(r.t)
}

func (r *rig) send(agentID, text string, p agentv1.Priority) string {
	r.t.Helper()
	return must.Value(r.service.EnqueueMessage(r.operator(), &agentv1.EnqueueMessageRequest{
		AgentId: agentID, Text: text, Priority: p,
	}))(r.t).GetMessageId()
}

// take acquires a turn that must be there.
func (r *rig) take(agents ...string) *agentv1.AcquireTurnResponse {
	r.t.Helper()
	resp := r.poll(agents...)
	require.NotNil(r.t, resp.GetTurn(), "no turn")
	return resp
}

func (r *rig) poll(agents ...string) *agentv1.AcquireTurnResponse {
	r.t.Helper()
	return must.Value(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
		AgentIds: agents, Wait: durationpb.New(0),
	}))(r.t)
}

func (r *rig) submit(a *agentv1.AcquireTurnResponse, index int32, text string,
	calls ...*agentv1.ToolCall,
) *agentv1.SubmitRoundResponse {
	r.t.Helper()
	return must.Value(r.trySubmit(a, index, text, calls...))(r.t)
}

func (r *rig) trySubmit(a *agentv1.AcquireTurnResponse, index int32, text string, calls ...*agentv1.ToolCall) (
	*agentv1.SubmitRoundResponse, error,
) {
	return r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
		RoundIndex: index, Text: text, ToolCalls: calls,
	})
}

func (r *rig) finish(a *agentv1.AcquireTurnResponse, outcome agentv1.TurnOutcome) *agentv1.Turn {
	r.t.Helper()
	return must.Value(r.tryFinish(a, outcome))(r.t).GetTurn()
}

func (r *rig) tryFinish(a *agentv1.AcquireTurnResponse, outcome agentv1.TurnOutcome) (*agentv1.FinishTurnResponse,
	error,
) {
	return r.service.FinishTurn(r.runner(), &agentv1.FinishTurnRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
		Outcome: outcome,
	})
}

func (r *rig) tryRenew(a *agentv1.AcquireTurnResponse) (*agentv1.RenewTurnResponse, error) {
	return r.service.RenewTurn(r.runner(), &agentv1.RenewTurnRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
	})
}

func (r *rig) message(agentID, messageID string) *agentv1.Message {
	r.t.Helper()
	resp, err := r.service.GetMessage(r.operator(), &agentv1.GetMessageRequest{AgentId: agentID, MessageId: messageID})
	require.NoError(r.t, err)
	return resp.GetMessage()
}

func (r *rig) facts(agentID string) *agentv1.AgentFacts {
	r.t.Helper()
	resp := must.Value(r.service.GetFacts(r.scheduler(), &agentv1.GetFactsRequest{AgentId: agentID}))(r.t)
	require.Len(r.t, resp.GetFacts(), 1)
	return resp.GetFacts()[0]
}

func (r *rig) events() []*journal.Event { return r.journals.Events(r.t, Plane, registry) }

// checkPages folds all events into a state whose pages are checked.
func (r *rig) checkPages() {
	r.t.Helper()
	checked := journaltest.Checked(state.NewState, 20, nil)
	for _, ev := range r.events() {
		require.NoError(r.t, checked.Apply(ev))
	}
	require.NoError(r.t, checked.Check())
}

// hear applies another plane's event by the plane's own rule, as consuming it would.
func (r *rig) hear(ev *journal.Event) {
	r.t.Helper()
	must.Value(plane.Do(context.Background(), r.service.engine, plane.Command[*state.State, struct{}]{
		Method: "hear", AgentID: ev.AgentID, Actor: plane.System(ev.Namespace),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			events, err := state.React(st, env, ev)
			return journal.Decision[struct{}]{Events: events}, err
		},
	}))(r.t)
}

func (r *rig) eventually(ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, time.Minute, 2*time.Millisecond)
}

// use returns a tool call; args are key, value, key, value.
func use(name string, args ...any) *agentv1.ToolCall {
	m := map[string]any{}
	for i := 0; i+1 < len(args); i += 2 {
		m[fmt.Sprint(args[i])] = args[i+1]
	}
	s, err := structpb.NewStruct(m)
	if err != nil {
		panic(err)
	}
	return &agentv1.ToolCall{Name: name, Arguments: s}
}

const (
	retryable = agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE
	released  = agentv1.TurnOutcome_TURN_OUTCOME_RELEASED
	fatal     = agentv1.TurnOutcome_TURN_OUTCOME_FATAL
	done      = agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED
	normal    = agentv1.Priority_PRIORITY_NORMAL
	interject = agentv1.Priority_PRIORITY_INTERJECT
)

// completeThenHang answers CompleteWorkItem, refuses the first promotion and
// lets later ones hang until proceed is closed.
func (r *rig) completeThenHang(hang, proceed chan struct{}) {
	r.others.set(func() {
		r.others.answer["CompleteWorkItem"] = func(context.Context, proto.Message) (proto.Message, error) {
			return &workv1.CompleteWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}, WasCurrent: true},
				nil
		}
		n := 0
		r.others.promote = func(*workv1.PromoteReportRequest) (*workv1.PromoteReportResponse, error) {
			n++
			if n == 2 {
				r.others.mu.Unlock()
				defer r.others.mu.Lock()
				close(hang)
				<-proceed
			}
			if n < 3 {
				return nil, fault.NotReady.New("starting")
			}
			return &workv1.PromoteReportResponse{}, nil
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
