package board

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// flow is what a command does to one board: its lines so far, and how the
// steps stand with them, over a board that it leaves alone. So one command can
// take many reports and hand out many steps.
type flow struct {
	b      *board
	env    journal.Env
	events []*journal.Event

	status  map[*step]status
	waiting map[*step]int
	owner   map[*step]string // run
	task    taskStatus
	due     []*step // may be ready now
	newly   []*step // became ready in this flow
	next    map[*bitset]map[*bitset]int
	running map[*dispatch]int // added
	took    map[*run]*step    // claimed in this flow
	over    map[*run]boardv1.RunStatus
}

func newFlow(b *board, env journal.Env) *flow {
	return &flow{b: b, env: env, task: b.status, status: map[*step]status{}, waiting: map[*step]int{}, owner: map[*step]string{}}
}

func (f *flow) at(s *step) status {
	if st, moved := f.status[s]; moved {
		return st
	}
	return s.rec.GetStatus()
}

func (f *flow) holder(s *step) string {
	if id, moved := f.owner[s]; moved {
		return id
	}
	return s.rec.GetClaimedByRunId()
}

func (f *flow) waits(s *step) int {
	if n, moved := f.waiting[s]; moved {
		return n
	}
	return s.waiting
}

func (f *flow) emit(s *step, payload proto.Message) *journal.Event {
	id := ""
	if s != nil {
		id = s.id()
	}
	ev := f.b.event(id, payload)
	f.events = append(f.events, ev)
	return ev
}

// move writes a line by which a step moves. Whether it may is the caller's to know.
func (f *flow) move(s *step, to status, payload proto.Message) *journal.Event {
	f.status[s] = to
	if !held(to) {
		f.owner[s] = ""
	}
	switch to {
	case stepCompleted:
		for _, k := range s.kids {
			f.waiting[k] = f.waits(k) - 1
			f.due = append(f.due, k)
		}
	case stepPending:
		f.due = append(f.due, s)
	}
	return f.emit(s, payload)
}

// settle writes what follows by itself: steps become ready, and with the first
// of them the board runs (S2-149, S2-191).
func (f *flow) settle() {
	for _, s := range f.due {
		if f.at(s) == stepPending && f.waits(s) == 0 {
			f.status[s] = stepReady
			f.newly = append(f.newly, s)
			f.emit(s, &boardv1.TaskStepReady{})
		}
	}
	f.due = f.due[:0]
	if f.task == taskPending && len(f.newly) > 0 {
		f.task = taskRunning
		f.emit(nil, &boardv1.TaskRunning{})
	}
}

// candidate is the first ready step of a pool, within a scope, in the order of
// creation; nil if there is none.
func (f *flow) candidate(pool string, scope *bitset, allowed map[string]bool) *step {
	ready := f.b.ready[pool]
	from := f.next[ready][scope]
	for {
		i := ready.next(from, scope)
		if i < 0 {
			break
		}
		from = i + 1
		if s := f.b.order[i]; f.at(s) == stepReady {
			// What lies before i is taken in this flow, and stays so.
			if f.next == nil {
				f.next = map[*bitset]map[*bitset]int{}
			}
			if f.next[ready] == nil {
				f.next[ready] = map[*bitset]int{}
			}
			f.next[ready][scope] = i
			return s
		}
	}
	for len(f.newly) > 0 && f.at(f.newly[0]) != stepReady {
		f.newly = f.newly[1:]
	}
	for _, s := range f.newly {
		if f.at(s) == stepReady && s.rec.GetWorkerPoolId() == pool && (allowed == nil || allowed[s.id()]) {
			return s
		}
	}
	return nil
}

// claim gives a step to a run.
func (f *flow) claim(s *step, runID, workerID, dispatchID string) *journal.Event {
	ev := f.move(s, stepClaimed, &boardv1.TaskStepClaimed{
		ClaimedByAgentId: workerID, ClaimedByRunId: runID, DispatchId: dispatchID,
		LeaseExpiresAt: timestamppb.New(f.env.Now.Add(f.b.term)),
	})
	ev.ActorRunID = runID
	f.owner[s] = runID
	return ev
}

// report is what a worker, or the orchestrator, says of a step.
type report struct {
	status    status
	summary   *string
	artifacts []string
	reason    string
}

// take writes a report of the run that holds the step, or refuses it.
func (f *flow) take(r *run, s *step, rep report) (*journal.Event, error) {
	from := f.at(s)
	if rep.status == stepRunning && from == stepRunning {
		return f.tell(s, r, stepRunning, &boardv1.TaskStepUpdated{
			LeaseExpiresAt: timestamppb.New(f.env.Now.Add(f.b.term)), ResultSummary: rep.summary, ArtifactIds: rep.artifacts,
		}), nil
	}
	if !mayStep(holder, from, rep.status) {
		return nil, cannot(s, from, rep.status)
	}
	if rep.status == stepRunning {
		return f.tell(s, r, stepRunning, &boardv1.TaskStepStarted{
			LeaseExpiresAt: timestamppb.New(f.env.Now.Add(f.b.term)), ResultSummary: rep.summary, ArtifactIds: rep.artifacts,
		}), nil
	}
	return f.tell(s, r, rep.status, rep.payload()), nil
}

func (f *flow) tell(s *step, r *run, to status, payload proto.Message) *journal.Event {
	ev := f.move(s, to, payload)
	if r != nil {
		ev.ActorRunID = r.rec.GetRunId()
	}
	return ev
}

// payload is the line for a report that ends a lease.
func (rep report) payload() proto.Message {
	switch rep.status {
	case stepBlocked:
		return &boardv1.TaskStepBlocked{Reason: rep.reason, ResultSummary: rep.summary, ArtifactIds: rep.artifacts}
	case stepCompleted:
		return &boardv1.TaskStepCompleted{ResultSummary: rep.summary, ArtifactIds: rep.artifacts}
	case stepFailed:
		return &boardv1.TaskStepFailed{Reason: rep.reason, ResultSummary: rep.summary, ArtifactIds: rep.artifacts}
	case stepCancelled:
		return &boardv1.TaskStepCancelled{Reason: rep.reason, ResultSummary: rep.summary, ArtifactIds: rep.artifacts}
	}
	return &boardv1.TaskStepReopened{Reason: rep.reason}
}

func cannot(s *step, from, to status) error {
	return fault.StepState.Newf("step %q is %s and cannot become %s by this", s.id(), word(from), word(to)).
		With("step_id", s.id()).With("step_status", word(from))
}

// own is the run's own step, or why it has none to report on.
func (f *flow) own(r *run, stepID string) (*step, error) {
	if _, over := f.over[r]; over || !r.live() {
		return nil, f.late(r)
	}
	s := f.took[r]
	if s == nil {
		s = r.step
	}
	switch {
	case stepID != "" && f.b.steps[stepID] == nil:
		return nil, noStep(f.b, stepID)
	case stepID != "" && (s == nil || s.id() != stepID):
		return nil, fault.PermissionDenied.Newf("run %s does not hold step %q; a run reports on the step it claimed", r.rec.GetRunId(), stepID).
			With("step_id", stepID).With("run_id", r.rec.GetRunId())
	case s == nil:
		return nil, fault.StepState.Newf("run %s has claimed no step", r.rec.GetRunId()).With("run_id", r.rec.GetRunId())
	case f.holder(s) != r.rec.GetRunId():
		if r.lapsed {
			return nil, f.late(r)
		}
		return nil, fault.StepState.Newf("step %q is %s and not the run's any more", s.id(), word(f.at(s))).
			With("step_id", s.id()).With("step_status", word(f.at(s)))
	}
	return s, nil
}

// late is what a run hears that is over.
func (f *flow) late(r *run) error {
	if r.lapsed {
		return fault.LeaseExpired.Newf("the lease of run %s on step %q was over and the step was given back; stop working on it", r.rec.GetRunId(), r.rec.GetClaimedStepId()).
			With("run_id", r.rec.GetRunId()).With("step_id", r.rec.GetClaimedStepId())
	}
	if err := f.b.unended(); err != nil {
		return err
	}
	return runOver(r.rec.GetRunId())
}

func runOver(runID string) error {
	return fault.RunStale.Newf("run %s is over; stop working on it", runID).With("run_id", runID)
}

func noStep(b *board, stepID string) error {
	return fault.NotFound.Newf("board %q has no step %q; QuerySteps shows what it has", b.id, stepID).With("step_id", stepID)
}

// finish ends a run. A step that it still holds fails, unless its board is
// being ended, which settles the step itself (S2-415 to S2-421, S2-436).
func (f *flow) finish(r *run, how boardv1.RunStatus, why string, ended *boardv1.WorkerRunEnded) {
	s := f.took[r]
	if s == nil {
		s = r.step
	}
	if s != nil && f.b.terminating == nil && held(f.at(s)) && f.holder(s) == r.rec.GetRunId() {
		f.tell(s, r, stepFailed, &boardv1.TaskStepFailed{Reason: why, ResultSummary: &why})
		if r.dispatch != nil && how == boardv1.RunStatus_RUN_STATUS_FINISHED && ended.GetWorkerResult() == "" {
			f.over = put(f.over, r, how)
			return // ended with its step
		}
	}
	f.over = put(f.over, r, how)
	ended.RunId, ended.Status = r.rec.GetRunId(), how
	if how != boardv1.RunStatus_RUN_STATUS_FINISHED && ended.GetEndReason() == "" {
		ended.EndReason = why
	}
	f.emit(nil, ended).ActorRunID = f.env.Actor.RunID
}

func put[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	m[k] = v
	return m
}

// Why a step failed that its run left behind.
const (
	whyFinished  = "worker_finished_without_terminal_step_status"
	whyCancelled = "worker_cancelled"
	whyTimeout   = "worker_timeout"
)

// lapse takes the step of a silent run back, and ends the run.
func (f *flow) lapse(r *run) {
	if r.holds() {
		rec := r.step.rec
		f.move(r.step, stepPending, &boardv1.TaskStepLeaseExpired{ClaimedByAgentId: rec.GetClaimedByAgentId(), ClaimedByRunId: rec.GetClaimedByRunId()})
		f.settle()
	}
	f.over = put(f.over, r, boardv1.RunStatus_RUN_STATUS_LOST)
	if r.dispatch == nil || !r.holds() {
		f.emit(nil, &boardv1.WorkerRunEnded{RunId: r.rec.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_LOST, EndReason: "worker_lost"})
	}
}

// revise is what the orchestrator itself may say of a step (SPEC B7).
func (f *flow) revise(s *step, rep report) error {
	from := f.at(s)
	if !mayStep(orchestrator, from, rep.status) {
		return cannot(s, from, rep.status)
	}
	if rep.status == stepPending && (rep.summary != nil || len(rep.artifacts) > 0) {
		return fault.InvalidArgument.New("a step that is reopened has no result yet; leave result_summary and artifact_ids out").
			WithField("result_summary", "must be left out")
	}
	f.move(s, rep.status, rep.payload())
	return nil
}

// endChunk is how many steps are ended in one write.
const endChunk = 4000

// endSteps writes the end of steps that have none and, once none is left, the
// board's.
func (f *flow) endSteps(to taskStatus, reason string) {
	n := 0
	for _, s := range f.b.order {
		if s == nil || settledStep(f.at(s)) {
			continue
		}
		if n++; n > endChunk {
			return
		}
		if to == taskFailed {
			why := "task_failed"
			f.emit(s, &boardv1.TaskStepFailed{Reason: why, ResultSummary: &why})
		} else {
			why := "task_cancelled"
			f.emit(s, &boardv1.TaskStepCancelled{Reason: why, ResultSummary: &why})
		}
	}
	if to == taskFailed {
		f.emit(nil, &boardv1.TaskFailed{Reason: reason})
	} else {
		f.emit(nil, &boardv1.TaskCancelled{Reason: reason})
	}
}
