package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/id"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

const (
	// stepHeartbeat is a tenth of the default lease of a step.
	stepHeartbeat = 30 * time.Second
	// reportsAtOnce bounds the reports of one message.
	reportsAtOnce = 1000
)

// StepOptions configure a worker of board steps.
type StepOptions struct {
	// ID is the permanent name of the worker. Two running processes must not share one.
	ID string
	// Pools are the pools that the worker joins, 1 to 100.
	Pools []string
	// Capacity is how many steps the worker executes at once. Default 4.
	Capacity int
	// Labels are shown with the worker.
	Labels map[string]string
	// Heartbeat is the period in which leases are renewed. Default 30 s. If a fourth of the
	// shortest lease is less than Heartbeat, that is the period.
	Heartbeat time.Duration
	// Troubled is called with the error of each lost or failed connection, after which the worker
	// connects again, and with the error of each report that the server refused. Optional.
	Troubled func(error)
}

// StepResult is the result of a step. In its texts, U+FFFD takes the place of NUL and of bytes that
// are not UTF-8, and what exceeds 16 KiB is cut off.
type StepResult struct {
	// Status is completed, blocked, failed or cancelled. Default: completed.
	Status boardv1.StepStatus
	// Summary is shown to those who depend on the step.
	Summary string
	// ArtifactIDs name what the step produced: at most 200, each of 1 to 256 characters. Others are
	// refused by the server, and the step fails with that as reason.
	ArtifactIDs []string
	// Reason says why the step was not completed.
	Reason string
}

// StepHandler executes a step. Its ctx ends with ErrStopped when the run is cancelled, and
// with ErrStopping when the worker stops. If it returns an error or panics, the step has failed
// with that as reason; but an error that it returns because the worker stops releases the run.
type StepHandler func(ctx context.Context, a *boardv1.StepAssignment) (StepResult, error)

// RunSteps claims steps of boards and calls handle with each, until ctx ends (SPEC B11). It
// uses one stream. Results are kept until they are stored, and sent again after a lost
// connection. When ctx ends, handlers are cancelled and the runs of those that return an error
// released, so that the steps can be claimed again; RunSteps waits at most 10 s for the server
// to store that, and for the handlers to return. It returns an error if the server refuses the
// worker, and nil after the end of ctx.
func (c *Client) RunSteps(ctx context.Context, opts StepOptions, handle StepHandler) error {
	if opts.Capacity <= 0 {
		opts.Capacity = defaultCapacity
	}
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = stepHeartbeat
	}
	if opts.Troubled == nil {
		opts.Troubled = func(error) {}
	}
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &stepLoop{
		client: c, opts: opts, handle: handle, life: life, boot: id.New().New("boot_"),
		runs: map[string]*stepRun{}, more: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
	ended := make(chan error, 1)
	go func() { ended <- linked(life, w.once, opts.Troubled) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		w.drain()
	}
	w.stop()
	end(ErrStopping)
	if err == nil {
		err = <-ended
	}
	w.working.Wait()
	return err
}

// stepLoop is one call of RunSteps.
type stepLoop struct {
	client *Client
	opts   StepOptions
	handle StepHandler
	life   context.Context //nolint:containedctx // of the steps, which outlive streams
	boot   string

	mu       sync.Mutex
	runs     map[string]*stepRun // until their last report is stored
	unsent   []string            // the run of each report that is to be sent, in the order of the reports
	freed    int                 // capacity for which no step was requested yet
	stopping bool
	lease    time.Duration  // the shortest term of a step's lease so far; 0: there was none
	working  sync.WaitGroup // grows under mu, and not once stopping

	more chan struct{} // capacity 1: there is something to send
	idle chan struct{} // capacity 1: a run was removed
}

// stepRun is a run until its end is stored.
type stepRun struct {
	cancel  context.CancelCauseFunc
	reports []*boardv1.StepReport // not stored yet: that the step runs, and its end
	sent    int                   // how many of reports were sent on this stream
	ended   bool
}

type stepStream = grpc.BidiStreamingClient[boardv1.ConnectRequest, boardv1.ConnectResponse]

func (w *stepLoop) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := w.client.Steps.Connect(ctx)
	if err != nil {
		return err
	}
	broken := make(chan error, 1)
	go func() {
		err := w.receive(s)
		cancel()
		broken <- err
	}()
	if s.Send(w.hello()) == nil {
		w.sendAll(ctx, s)
	}
	cancel()
	return <-broken // the receiver has the error of the stream
}

// hello returns the first message of a stream: the runs that are held, and the capacity for
// others.
func (w *stepLoop) hello() *boardv1.ConnectRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &boardv1.BoardWorkerHello{
		WorkerId: w.opts.ID, BootId: w.boot, WorkerPoolIds: w.opts.Pools, Capacity: int32(min(w.opts.Capacity, 1<<30)),
		Labels: w.opts.Labels,
	}
	w.unsent, w.freed = nil, w.opts.Capacity
	for runID, r := range w.runs {
		h.RunIds = append(h.RunIds, runID)
		if r.sent = 0; len(r.reports) > 0 {
			w.unsent = append(w.unsent, runID)
		}
		if !r.ended {
			w.freed--
		}
	}
	return &boardv1.ConnectRequest{Hello: h}
}

func (w *stepLoop) sendAll(ctx context.Context, s stepStream) {
	every := w.heartbeat()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for m := w.next(); m != nil; m = w.next() {
			if s.Send(m) != nil {
				return
			}
		}
		if now := w.heartbeat(); now != every {
			every = now
			tick.Reset(every)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.more:
		case <-tick.C:
			if s.Send(&boardv1.ConnectRequest{RenewRunIds: w.held()}) != nil {
				return
			}
		}
	}
}

// heartbeat returns how often to send heartbeats for the current leases.
func (w *stepLoop) heartbeat() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lease > 0 {
		return min(w.opts.Heartbeat, max(w.lease/4, 10*time.Millisecond))
	}
	return w.opts.Heartbeat
}

// next returns the next message to send, nil if there is none.
func (w *stepLoop) next() *boardv1.ConnectRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &boardv1.ConnectRequest{}
	if !w.stopping {
		m.Want, w.freed = int32(min(w.freed, 1<<30)), 0
	}
	n, size := 0, 0
	for ; n < len(w.unsent) && len(m.GetReports()) < reportsAtOnce && size < maxMessageBytes; n++ {
		if r := w.runs[w.unsent[n]]; r != nil {
			for _, report := range r.reports[r.sent:] {
				m.Reports = append(m.Reports, report)
				size += proto.Size(report)
			}
			r.sent = len(r.reports)
		}
	}
	w.unsent = slices.Delete(w.unsent, 0, n)
	if m.GetWant() == 0 && len(m.GetReports()) == 0 {
		return nil
	}
	return m
}

func (w *stepLoop) held() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for runID, r := range w.runs {
		if !r.ended {
			ids = append(ids, runID)
		}
	}
	return ids
}

func (w *stepLoop) receive(s stepStream) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		for _, a := range m.GetAssigned() {
			w.accept(a)
		}
		for _, a := range m.GetAcks() {
			w.acknowledged(a)
		}
		for _, runID := range m.GetCancelRunIds() {
			w.stopRun(runID, ErrStopped)
		}
	}
}

// accept starts to execute a step, unless its run was started before or the worker stops.
func (w *stepLoop) accept(a *boardv1.StepAssignment) {
	runID := a.GetRun().GetRunId()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping || w.runs[runID] != nil {
		return
	}
	// Both times are of the server's clock.
	if term := a.GetStep().GetLeaseExpiresAt().AsTime().Sub(a.GetStep().GetUpdatedAt().AsTime()); term > 0 &&
		(w.lease == 0 || term < w.lease) {
		w.lease = term
	}
	ctx, cancel := context.WithCancelCause(w.life)
	w.runs[runID] = &stepRun{cancel: cancel}
	w.report(runID, &boardv1.StepReport{RunId: runID, Status: boardv1.StepStatus_STEP_STATUS_RUNNING})
	w.working.Go(func() {
		defer cancel(nil)
		w.finished(runID, sendable(w.work(ctx, a)))
	})
}

// work calls the handler and returns the report of its result. A handler that panics has
// failed; one that ended because the worker stops releases its run.
func (w *stepLoop) work(ctx context.Context, a *boardv1.StepAssignment) (end *boardv1.StepReport) {
	runID := a.GetRun().GetRunId()
	defer func() {
		if p := recover(); p != nil {
			end = &boardv1.StepReport{
				RunId: runID, Status: boardv1.StepStatus_STEP_STATUS_FAILED,
				Reason: fmt.Sprint("the handler panicked: ", p), Finished: true,
			}
		}
	}()
	got, err := w.handle(ctx, a)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), ErrStopping):
		return &boardv1.StepReport{RunId: runID, Finished: true, WorkerResult: "the worker was stopped"}
	case err != nil:
		got = StepResult{
			Status: boardv1.StepStatus_STEP_STATUS_FAILED, Summary: got.Summary,
			ArtifactIDs: got.ArtifactIDs, Reason: err.Error(),
		}
	case got.Status == boardv1.StepStatus_STEP_STATUS_UNSPECIFIED:
		got.Status = boardv1.StepStatus_STEP_STATUS_COMPLETED
	}
	end = &boardv1.StepReport{
		RunId: runID, Status: got.Status, ArtifactIds: got.ArtifactIDs, Reason: got.Reason,
		Finished: true,
	}
	if got.Summary != "" {
		end.ResultSummary = &got.Summary
	}
	return end
}

// finished queues the report of a run's end, and frees its capacity for another step.
func (w *stepLoop) finished(runID string, end *boardv1.StepReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.runs[runID]; r != nil {
		r.ended = true
		w.freed++
		if r.sent == 0 {
			r.reports = nil // a start that this stream has not sent is left out: the end implies it
		}
		w.report(runID, end)
	}
}

// report queues a report of a run. The caller holds w.mu.
func (w *stepLoop) report(runID string, m *boardv1.StepReport) {
	r := w.runs[runID]
	r.reports = append(r.reports, m)
	w.unsent = append(w.unsent, runID)
	signal(w.more)
}

// acknowledged removes the reports of a run that were stored or refused. Reports after a
// refused one would be refused as well.
func (w *stepLoop) acknowledged(a *boardv1.ReportAck) {
	w.mu.Lock()
	r := w.runs[a.GetRunId()]
	var cancel context.CancelCauseFunc
	if r != nil {
		if a.GetError() != "" {
			cancel = r.cancel
			if r.ended {
				r.reports, r.sent = nil, 0
			}
		}
		if len(r.reports) > 0 {
			r.reports = slices.Delete(r.reports, 0, 1)
			r.sent = max(r.sent-1, 0)
		}
		if r.ended && len(r.reports) == 0 {
			delete(w.runs, a.GetRunId())
			signal(w.idle)
		}
	}
	w.mu.Unlock()
	if a.GetError() != "" {
		w.opts.Troubled(fmt.Errorf("client: run %s: %s: %s", a.GetRunId(), a.GetError(), a.GetMessage()))
	}
	if cancel != nil {
		cancel(ErrStopped)
	}
}

func (w *stepLoop) stopRun(runID string, why error) {
	w.mu.Lock()
	r := w.runs[runID]
	w.mu.Unlock()
	if r != nil {
		r.cancel(why)
	}
}

// stop accepts no more steps and ends the handlers.
func (w *stepLoop) stop() {
	w.mu.Lock()
	w.stopping = true
	var all []*stepRun
	for _, r := range w.runs {
		all = append(all, r)
	}
	w.mu.Unlock()
	for _, r := range all {
		r.cancel(ErrStopping)
	}
}

// drain ends the handlers and waits until their reports are stored.
func (w *stepLoop) drain() {
	w.stop()
	drained(func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.runs)
	}, w.idle)
}
