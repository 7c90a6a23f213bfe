package board

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/wal"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const owner = "keeper" // the session and its orchestrator

// rig is the plane over memory.
type rig struct {
	t        testing.TB
	clk      *clock.Fake
	ids      *id.Sequence
	journals *planetest.Journals
	room     *framelog.Room // of the store of the journals; nil: there is room for everything
	cfg      Config
	service  *Service
}

func openRig(t testing.TB) *rig {
	r := &rig{t: t, clk: clock.NewFake(epoch), ids: &id.Sequence{}, journals: planetest.NewJournals()}
	r.up()
	return r
}

func newRig(t testing.TB) *rig {
	r := openRig(t)
	t.Cleanup(func() {
		r.down()
		r.checkPages()
	})
	return r
}

func (r *rig) up() {
	s := must.Value(New(r.cfg, Deps{
		Deps:    plane.Deps{Log: r.journals.Log, Sources: r.journals.Sources, Clock: r.clk, IDs: r.ids, Room: r.room},
		MintRun: func(_, _, runID string) string { return "token-of-" + runID },
	}))(r.t)
	require.NoError(r.t, s.Start(context.Background()))
	r.service = s
}

func (r *rig) down() {
	if r.service != nil {
		require.NoError(r.t, r.service.Stop(context.Background()))
		r.service = nil
	}
}

func (r *rig) restart() {
	r.down()
	r.up()
}

// owner acts as the session's agent, operator as an operator, as as a run of worker w.
func (r *rig) owner() context.Context { return planetest.AsAgent(within(r.t), owner) }

func (r *rig) operator() context.Context { return planetest.As(within(r.t), rpc.RoleOperator) }

func (r *rig) as(worker, runID string) context.Context {
	return rpc.WithActor(within(r.t), rpc.Actor{
		Namespace: "acme", Principal: "worker/" + worker, Role: rpc.RoleWorker, AgentID: worker, RunID: runID,
	})
}

// within returns a context that ends a test which would hang.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func in(id string, deps ...string) *boardv1.StepInput {
	return &boardv1.StepInput{StepId: id, Title: "Step " + id, DependsOnStepIds: deps}
}

func optional(s *boardv1.StepInput) *boardv1.StepInput {
	no := false
	s.Required = &no
	return s
}

func (r *rig) create(board string, steps ...*boardv1.StepInput) *boardv1.Board {
	r.t.Helper()
	return must.Value(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: board, WalName: board + "-wal", Title: "Board " + board, Steps: steps,
	}))(r.t).GetBoard()
}

func (r *rig) get(board string) *boardv1.Board {
	r.t.Helper()
	resp := must.Value(r.service.GetBoard(r.owner(), &boardv1.GetBoardRequest{SessionId: owner, BoardId: board}))(r.t)
	return resp.GetBoard()
}

func (r *rig) step(board, id string) *boardv1.Step {
	r.t.Helper()
	for _, s := range r.get(board).GetSteps() {
		if s.GetStepId() == id {
			return s
		}
	}
	require.Fail(r.t, "no such step", id)
	return nil
}

// run dispatches a run by hand, as a worker with a stream would get it.
func (r *rig) run(board, worker string, allowed ...string) string {
	r.t.Helper()
	return r.runIn(board, worker, model.DefaultPool, allowed...)
}

func (r *rig) runIn(board, worker, pool string, allowed ...string) string {
	r.t.Helper()
	runID := r.ids.New("run_")
	must.Value(r.service.do(r.owner(), change{
		method: "test", session: model.Key{Namespace: "acme", ID: owner}, board: board, actor: plane.System("acme"),
		decide: func(_ *model.State, b *board_, _ journal.Env) ([]*journal.Event, error) {
			return []*journal.Event{b.NewEvent("", &boardv1.WorkerDispatched{Run: &boardv1.WorkerRun{
				RunId: runID, SessionId: owner, BoardId: board, WorkerPoolId: pool, WorkerId: worker,
				AllowedStepIds: allowed, Status: boardv1.RunStatus_RUN_STATUS_RUNNING,
			}})}, nil
		},
	}))(r.t)
	return runID
}

type board_ = model.Board

func (r *rig) claim(board, worker, runID, step string) error {
	return must.Err(r.service.ClaimStep(r.as(worker, runID), &boardv1.ClaimStepRequest{
		SessionId: owner, BoardId: board, StepId: step,
	}))
}

// held claims a step with a new run of a worker of its own.
func (r *rig) held(board, step string) string {
	r.t.Helper()
	runID := r.run(board, "w-"+step)
	require.NoError(r.t, r.claim(board, "w-"+step, runID, step))
	return runID
}

func (r *rig) report(board, worker, runID, step string, to model.StepStatus) error {
	return must.Err(r.service.UpdateStep(r.as(worker, runID), &boardv1.UpdateStepRequest{
		SessionId: owner, BoardId: board, StepId: step, Status: to,
	}))
}

func (r *rig) say(board, step string, to model.StepStatus) error {
	return must.Err(r.service.UpdateStep(r.owner(), &boardv1.UpdateStepRequest{
		SessionId: owner, BoardId: board, StepId: step, Status: to,
	}))
}

func (r *rig) update(board string, ops ...*boardv1.Operation) error {
	return must.Err(r.service.UpdateBoard(r.owner(), &boardv1.UpdateBoardRequest{
		SessionId: owner, BoardId: board, Operations: ops,
	}))
}

func (r *rig) events() []*journal.Event {
	r.t.Helper()
	t, ok := r.t.(*testing.T)
	require.True(r.t, ok)
	return r.journals.Events(t, Plane, wal.Registry)
}

// checkPages applies all events to a state that is written and read in pages.
func (r *rig) checkPages() {
	r.t.Helper()
	t, ok := r.t.(*testing.T)
	if !ok || t.Failed() {
		return
	}
	all := r.events()
	if len(all) > 500 {
		return // each event encodes the page of its board, which then is large
	}
	state := journaltest.Checked(func() *model.State { return model.NewState(time.Minute) }, max(1, len(all)/8), nil)
	for _, ev := range all {
		require.NoError(t, state.Apply(ev))
	}
	require.NoError(t, state.Check())
}

// wal returns a whole WAL.
func (r *rig) wal(name string) []byte {
	r.t.Helper()
	var out []byte
	for {
		resp := must.Value(r.service.ReadWal(r.owner(), &boardv1.ReadWalRequest{
			SessionId: owner, WalName: name, AfterWalSeq: int64(countLines(out)),
		}))(r.t)
		out = append(out, resp.GetLines()...)
		if !resp.GetTruncated() {
			return out
		}
	}
}

func countLines(b []byte) (n int) {
	for _, c := range b {
		if c == '\n' {
			n++
		}
	}
	return n
}

// pair is a stream between a worker and the plane, without a network.
type pair struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // of the stream, which has one anyway
	cancel context.CancelFunc
	in     chan *boardv1.ConnectRequest
	out    chan *boardv1.ConnectResponse
	ended  chan error
}

func (p *pair) Context() context.Context { return p.ctx }

func (p *pair) Recv() (*boardv1.ConnectRequest, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (p *pair) Send(m *boardv1.ConnectResponse) error {
	select {
	case p.out <- m:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *pair) SendHeader(metadata.MD) error { return nil }

// connect joins a worker; its stream ends with the test.
func (r *rig) connect(hello *boardv1.BoardWorkerHello) *pair {
	r.t.Helper()
	if len(hello.GetWorkerPoolIds()) == 0 {
		hello.WorkerPoolIds = []string{model.DefaultPool}
	}
	hello.BootId = "boot"
	ctx, cancel := context.WithCancel(planetest.As(within(r.t), rpc.RoleWorker))
	p := &pair{
		ctx: ctx, cancel: cancel, in: make(chan *boardv1.ConnectRequest, 16),
		out: make(chan *boardv1.ConnectResponse, 1024), ended: make(chan error, 1),
	}
	service := r.service
	go func() { p.ended <- service.Connect(p) }()
	p.in <- &boardv1.ConnectRequest{Hello: hello}
	r.t.Cleanup(func() {
		cancel()
		<-p.ended
	})
	require.Eventually(r.t, func() bool {
		resp, err := service.ListWorkers(r.owner(), &boardv1.ListWorkersRequest{})
		if err != nil {
			return false
		}
		for _, w := range resp.GetWorkers() {
			if w.GetWorkerId() == hello.GetWorkerId() {
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond)
	return p
}

// next returns the next message for the worker.
func (p *pair) next(t testing.TB) *boardv1.ConnectResponse {
	t.Helper()
	select {
	case m := <-p.out:
		return m
	case <-time.After(time.Minute):
		require.Fail(t, "the worker was told nothing")
		return nil
	}
}

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("s%d", i)
	}
	return out
}

// changeOf writes events as they are.
func changeOf(board string, events ...*journal.Event) change {
	return change{
		method: "test", session: model.Key{Namespace: "acme", ID: owner}, board: board, actor: plane.System("acme"),
		decide: func(*model.State, *board_, journal.Env) ([]*journal.Event, error) { return events, nil },
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
