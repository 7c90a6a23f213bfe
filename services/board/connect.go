package board

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// Limits of a worker's stream.
const (
	maxCapacity   = 10_000
	maxPools      = 100
	maxWant       = 10_000
	maxBatchBytes = 1 << 20 // of reports that are written together
)

// Connect holds a worker's one stream: the fast way for many runs. What came
// in while the last frame was on its way to disk is written as one command.
func (s *Service) Connect(stream grpc.BidiStreamingServer[boardv1.ConnectRequest, boardv1.ConnectResponse]) error {
	ctx := stream.Context()
	if err := rpc.RequireRole(ctx, rpc.RoleWorker, rpc.RoleAdmin, rpc.RoleService); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := checkHello(first.GetHello()); err != nil {
		return err
	}
	actor := journal.Actor(rpc.ActorFrom(ctx))
	l := newLink(ctx, s, actor, first.GetHello())
	if old := s.floor.join(l.w); old != nil {
		old.end(fault.Cancelled.New("worker " + l.w.id + " connected again; this stream is not used any more"))
	}
	defer s.floor.leave(l.w)
	defer l.end(context.Canceled)
	if err := l.welcome(); err != nil {
		return err
	}
	if err := fault.First(l.take(first), stream.SendHeader(nil)); err != nil { // the header tells that the hello is settled
		return err
	}
	go l.receive(stream)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		l.deliver(stream)
	}()
	err = l.work()
	l.end(err)
	<-sent
	return err
}

func checkHello(h *boardv1.BoardWorkerHello) error {
	if h == nil {
		return fault.InvalidArgument.New("the first message of a worker must be hello").WithField("hello", "is required")
	}
	if err := fault.First(
		fault.Name("hello.worker_id", h.GetWorkerId()), fault.Name("hello.boot_id", h.GetBootId()),
		fault.Entries("hello.worker_pool_ids", len(h.GetWorkerPoolIds()), maxPools),
		fault.Entries("hello.run_ids", len(h.GetRunIds()), maxCapacity),
		fault.Entries("hello.labels", len(h.GetLabels()), maxPools),
	); err != nil {
		return err
	}
	if len(h.GetWorkerPoolIds()) == 0 {
		return fault.InvalidArgument.New("hello.worker_pool_ids is empty; a worker joins at least one pool").WithField("hello.worker_pool_ids", "must have an entry")
	}
	for i, p := range h.GetWorkerPoolIds() {
		if err := fault.Name(fmt.Sprintf("hello.worker_pool_ids[%d]", i), p); err != nil {
			return err
		}
	}
	if c := h.GetCapacity(); c < 1 || c > maxCapacity {
		return fault.LimitExceeded.Newf("hello.capacity is %d; it must be 1 to %d", c, maxCapacity).WithField("hello.capacity", "must be 1 to 10000")
	}
	return nil
}

// link is one stream of one worker.
type link struct {
	s     *Service
	actor journal.Actor
	w     *worker
	ctx   context.Context //nolint:containedctx // the link is what ends with it
	end   context.CancelCauseFunc
	turn  int // of the dispatches that it claims from

	mu      sync.Mutex
	reports []*boardv1.StepReport
	renew   []string
	begin   []*boardv1.WorkerRun // dispatched runs to start
	out     *boardv1.ConnectResponse
	wake    chan struct{} // capacity 1
	more    chan struct{} // capacity 1
}

func newLink(ctx context.Context, s *Service, actor journal.Actor, hello *boardv1.BoardWorkerHello) *link {
	actor.AgentID = hello.GetWorkerId()
	l := &link{s: s, actor: actor, wake: make(chan struct{}, 1), more: make(chan struct{}, 1)}
	l.ctx, l.end = context.WithCancelCause(ctx)
	l.w = &worker{
		namespace: actor.Namespace, id: hello.GetWorkerId(), hello: hello, link: l,
		since: timestamppb.New(s.deps.Clock.Now()), runs: map[string]bool{},
	}
	return l
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *link) wakeUp() { nudge(l.wake) }

// start queues a dispatched run.
func (l *link) start(run *boardv1.WorkerRun) {
	l.mu.Lock()
	l.begin = append(l.begin, run)
	l.mu.Unlock()
	l.wakeUp()
}

// send adds to what the worker is told next. It never blocks.
func (l *link) send(m *boardv1.ConnectResponse) {
	l.mu.Lock()
	if l.out == nil {
		l.out = m
	} else {
		l.out.Assigned = append(l.out.Assigned, m.GetAssigned()...)
		l.out.Acks = append(l.out.Acks, m.GetAcks()...)
		l.out.CancelRunIds = append(l.out.CancelRunIds, m.GetCancelRunIds()...)
	}
	l.mu.Unlock()
	nudge(l.more)
}

// mostAtOnce bounds one message: assignments may carry 16 KiB of text each.
const mostAtOnce = 64

func (l *link) deliver(stream grpc.ServerStreamingServer[boardv1.ConnectResponse]) {
	for {
		l.mu.Lock()
		m := l.out
		if l.out = nil; len(m.GetAssigned()) > mostAtOnce {
			l.out = &boardv1.ConnectResponse{Assigned: m.GetAssigned()[mostAtOnce:]}
			m = &boardv1.ConnectResponse{Assigned: m.GetAssigned()[:mostAtOnce], Acks: m.GetAcks(), CancelRunIds: m.GetCancelRunIds()}
		}
		l.mu.Unlock()
		if m != nil {
			if err := stream.Send(m); err != nil {
				l.end(err)
				return
			}
			continue
		}
		select {
		case <-l.more:
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *link) receive(stream grpc.BidiStreamingServer[boardv1.ConnectRequest, boardv1.ConnectResponse]) {
	for {
		m, err := stream.Recv()
		if err == nil && m.GetHello() != nil {
			err = fault.InvalidArgument.New("a worker says hello once").WithField("hello", "must be left out")
		}
		if err == nil {
			err = l.take(m)
		}
		if err != nil {
			l.end(err)
			return
		}
	}
}

// take queues what the worker said.
func (l *link) take(m *boardv1.ConnectRequest) error {
	if n := m.GetWant(); n < 0 || n > maxWant {
		return fault.LimitExceeded.Newf("want is %d; it must be 0 to %d", n, maxWant).WithField("want", "must be 0 to 10000")
	}
	f := &l.s.floor
	f.mu.Lock()
	l.w.want = min(l.w.want+int(m.GetWant()), maxWant)
	f.mu.Unlock()
	l.mu.Lock()
	l.reports = append(l.reports, m.GetReports()...)
	l.renew = append(l.renew, m.GetRenewRunIds()...)
	l.mu.Unlock()
	l.wakeUp()
	return nil
}

// work handles what was queued, batch by batch, until the stream ends.
func (l *link) work() error {
	for {
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			if err := context.Cause(l.ctx); !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		case <-l.s.ctx.Done():
			return fault.NotReady.New("the service of boards is stopping; connect again")
		}
		l.mu.Lock()
		reports, renew, begin := l.reports, l.renew, l.begin
		l.reports, l.renew, l.begin = nil, nil, nil
		l.mu.Unlock()
		if len(renew) > 0 {
			if err := l.renewed(renew); err != nil {
				return err
			}
		}
		for first := true; first || len(reports) > 0; first = false {
			n := fitting(reports)
			if err := l.batch(reports[:n], begin); err != nil {
				return err
			}
			reports, begin = reports[n:], nil
		}
	}
}

// fitting is how many reports go into one command.
func fitting(reports []*boardv1.StepReport) int {
	size := 0
	for i, r := range reports {
		size += len(r.GetResultSummary()) + len(r.GetReason()) + len(r.GetWorkerResult()) + 512
		for _, a := range r.GetArtifactIds() {
			size += len(a) + 8
		}
		if size > maxBatchBytes && i > 0 {
			return i
		}
	}
	return len(reports)
}

// renewed begins leases anew, and tells the worker of runs that are over.
func (l *link) renewed(ids []string) error {
	over := map[string]bool{}
	for _, id := range ids {
		over[id] = true
	}
	for _, p := range l.s.engine.All() {
		_, _, err := journal.View(l.ctx, p, func(st *model.State) (struct{}, error) {
			until := l.s.deps.Clock.Now().Add(l.s.cfg.LeaseTerm)
			for _, id := range ids {
				if r := st.Runs[model.Key{Namespace: l.w.namespace, ID: id}]; r != nil && r.Running() && r.Record.GetWorkerId() == l.w.id {
					r.Lease(until)
					delete(over, id)
				}
			}
			return struct{}{}, nil
		})
		if err != nil {
			return err
		}
	}
	if len(over) > 0 {
		var gone []string
		for id := range over {
			gone = append(gone, id)
		}
		slices.Sort(gone)
		l.send(&boardv1.ConnectResponse{CancelRunIds: gone})
	}
	return nil
}

// welcome settles what a worker that comes (back) has: runs that it does not
// know of are said again, and those that are over are named.
func (l *link) welcome() error {
	knows := map[string]bool{}
	for _, id := range l.w.hello.GetRunIds() {
		knows[id] = true
	}
	m := &boardv1.ConnectResponse{}
	for _, p := range l.s.engine.All() {
		type found struct {
			runs   []*boardv1.WorkerRun
			again  []*boardv1.StepAssignment
			begin  []*boardv1.WorkerRun
			cancel []string
		}
		got, _, err := journal.View(l.ctx, p, func(st *model.State) (found, error) {
			var f found
			until := l.s.deps.Clock.Now().Add(l.s.cfg.LeaseTerm)
			for b := range st.WithRuns {
				for id, r := range b.Runs {
					if b.Key.Namespace != l.w.namespace || r.Record.GetWorkerId() != l.w.id {
						continue
					}
					r.Lease(until)
					f.runs = append(f.runs, r.Record)
					switch {
					case r.Record.GetCancelling():
						f.cancel = append(f.cancel, id)
					case knows[id]:
					case r.Step != nil && r.HoldsStep() && !l.w.hello.GetChoosesSteps():
						f.again = append(f.again, &boardv1.StepAssignment{Run: r.Shown(), Step: b.ShownStep(r.Step), Dependencies: results(r.Step, nil)})
					default:
						f.begin = append(f.begin, r.Record)
					}
				}
			}
			return f, nil
		})
		if err != nil {
			return err
		}
		for _, r := range got.runs {
			l.s.floor.took(l.w, r.GetRunId())
			delete(knows, r.GetRunId())
		}
		m.Assigned = append(m.Assigned, got.again...)
		m.CancelRunIds = append(m.CancelRunIds, got.cancel...)
		l.mu.Lock()
		l.begin = append(l.begin, got.begin...)
		l.mu.Unlock()
	}
	for id := range knows {
		m.CancelRunIds = append(m.CancelRunIds, id)
	}
	if len(m.GetAssigned())+len(m.GetCancelRunIds()) > 0 {
		slices.Sort(m.CancelRunIds)
		l.send(m)
	}
	return nil
}

// maxDependencyResults bounds what an assignment carries of others' results.
const maxDependencyResults = 100

// results are the steps that a step depends on, with what was said of them in
// a flow that is not applied yet.
func results(s *model.Step, said map[*model.Step]rules.Report) []*boardv1.Step {
	var out []*boardv1.Step
	for _, d := range s.DependsOn {
		if len(out) == maxDependencyResults {
			break
		}
		rec := d.Record
		if rep, now := said[d]; now {
			rec = model.CopyStep(rec, rec.GetUpdatedAt().AsTime())
			rec.Status = rep.Status
			if p, ok := rep.Payload().(model.StepResult); ok {
				model.MergeResult(rec, p)
			}
		}
		out = append(out, rec)
	}
	return out
}
