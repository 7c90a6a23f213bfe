package rules

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// Batch is the rule for everything that one worker's stream asks of a partition
// at once: reports, dispatched runs to begin, and steps to claim. All of it
// becomes one write.
type Batch struct {
	Namespace, WorkerID string
	Pools               []string
	// ChoosesSteps says that the worker claims steps itself, so that none is claimed
	// for it.
	ChoosesSteps bool
	Reports      []*boardv1.StepReport
	Begin        []*boardv1.WorkerRun // of boards of this partition
	// Want is how many steps the worker asked for, Room how many more runs it can
	// have. Reports of this batch that end runs make more room.
	Want, Room int
	// Turn rotates the standing dispatches from which steps are claimed, so that none
	// is always the first.
	Turn int
	// MorePartitions says that reports on unknown runs are left to other partitions.
	MorePartitions bool
	// MintToken makes the credential of a run, for a worker that chooses steps.
	MintToken func(runID string) string
}

// BatchResult is what a batch has for the worker.
type BatchResult struct {
	Acks     []*boardv1.ReportAck
	Assigned []*boardv1.StepAssignment
	Ended    []string              // runs that end with this batch
	Gone     []string              // runs of Begin that had ended before, so that the worker is not given them
	Unknown  []*boardv1.StepReport // reports on runs that this partition does not know
	Claims   int                   // steps that were claimed under standing dispatches
}

// Decide applies the batch to a partition. A report that is refused is acknowledged
// with its error and does not keep the others from being written.
func (b Batch) Decide(st *model.State, env journal.Env) ([]*journal.Event, BatchResult) {
	d := batchDecision{
		Batch: b, st: st, env: env, byBoard: map[*model.Board]*Transition{},
		completed: map[*model.Step]Report{},
	}
	for _, rep := range b.Reports {
		r := st.Runs[model.Key{Namespace: b.Namespace, ID: rep.GetRunId()}]
		if r == nil && b.MorePartitions {
			d.Unknown = append(d.Unknown, rep)
			continue
		}
		ack := &boardv1.ReportAck{RunId: rep.GetRunId()}
		if err := d.report(r, rep); err != nil {
			e := fault.From(err)
			ack.Error, ack.Message = strings.ToLower(string(e.Reason())), e.Message()
		}
		d.Acks = append(d.Acks, ack)
	}
	for _, t := range d.transitions {
		t.FollowUps()
	}
	for _, run := range b.Begin {
		d.begin(run)
	}
	if n := min(b.Want, b.Room+len(d.Ended)); n > 0 && !b.ChoosesSteps {
		d.claim(n)
	}
	if len(d.transitions) == 1 {
		return d.transitions[0].Events, d.BatchResult
	}
	var events []*journal.Event
	for _, t := range d.transitions {
		events = append(events, t.Events...)
	}
	return events, d.BatchResult
}

// batchDecision is a Batch that is being decided.
type batchDecision struct {
	Batch
	BatchResult
	st          *model.State
	env         journal.Env
	transitions []*Transition // in the order in which the batch touched their boards
	byBoard     map[*model.Board]*Transition
	completed   map[*model.Step]Report // steps that this batch completes
}

// transition returns the transition of a board in this batch, which it begins if necessary.
func (d *batchDecision) transition(b *model.Board) *Transition {
	t := d.byBoard[b]
	if t == nil {
		t = NewTransition(b, d.env)
		d.byBoard[b] = t
		d.transitions = append(d.transitions, t)
	}
	return t
}

// report applies one report. r is its run, nil for an unknown one. An error refuses this
// report alone.
func (d *batchDecision) report(r *model.Run, rep *boardv1.StepReport) error {
	if r == nil {
		return model.RunEnded(rep.GetRunId())
	}
	if r.Record.GetWorkerId() != d.WorkerID {
		return fault.PermissionDenied.Newf("run %s is another worker's", rep.GetRunId()).With("run_id", rep.GetRunId())
	}
	if err := checkReport(rep); err != nil {
		return d.refuse(r, err)
	}
	t := d.transition(r.Board)
	if rep.GetStatus() != 0 {
		if repeated(r, rep) {
			return nil
		}
		ended, err := d.reportStep(t, r, rep)
		if err != nil || ended {
			return err
		}
	}
	if !rep.GetFinished() {
		return nil
	}
	if _, ended := t.EndedRuns[r]; ended || !r.Running() {
		return t.EndedError(r)
	}
	d.finish(t, r, WhyFinished, rep.GetWorkerResult())
	return nil
}

// finish ends a run as finished, as an act of the run; see Transition.FinishRun. A step that it still holds fails with
// the reason why, unless the board is being ended, since then the step ends with the board. workerResult is what the
// worker returned, or empty.
func (d *batchDecision) finish(t *Transition, r *model.Run, why, workerResult string) {
	before := len(t.Events)
	t.FinishRun(r, boardv1.RunStatus_RUN_STATUS_FINISHED, why, &boardv1.WorkerRunEnded{
		WorkerResult: workerResult, NoStepClaimed: r.Step == nil && t.Claimed[r] == nil,
	})
	for _, ev := range t.Events[before:] {
		ev.ActorRunID = r.Record.GetRunId()
	}
	d.endRun(t, r)
}

// refuse ends a run because of a report whose content cannot be accepted, and returns err,
// the refusal. The step of the run fails with it: a worker cannot make such a report good, and
// without an end the step would be executed again once the lease has expired, and so on.
func (d *batchDecision) refuse(r *model.Run, err error) error {
	t := d.transition(r.Board)
	if _, ended := t.EndedRuns[r]; ended || !r.Running() {
		return err
	}
	e := fault.From(err)
	d.finish(t, r, "the report of the worker was refused: "+strings.ToLower(string(e.Reason()))+": "+e.Message(), "")
	return err
}

// checkReport returns an error for a report whose content is not acceptable from any run.
func checkReport(rep *boardv1.StepReport) error {
	if err := fault.First(
		CheckResult(rep.GetResultSummary(), rep.GetArtifactIds(), rep.GetReason()),
		fault.TextBytes("worker_result", rep.GetWorkerResult(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return err
	}
	if rep.GetStatus() == 0 && !rep.GetFinished() {
		return fault.InvalidArgument.New("a report has the status of the step, or says that the run is finished").
			WithField("status", "is required")
	}
	switch rep.GetStatus() {
	case 0, model.StepRunning, model.StepBlocked, model.StepCompleted, model.StepFailed, model.StepCancelled:
		return nil
	default:
		return fault.Invalid("status", rep.GetStatus().String(), "must be running, blocked, completed, failed or "+
			"cancelled")
	}
}

// reportStep applies the status that a report gives its step, and reports whether
// the run ended with it.
func (d *batchDecision) reportStep(t *Transition, r *model.Run, rep *boardv1.StepReport) (ended bool, _ error) {
	s, err := t.HeldStep(r, "")
	if err != nil {
		return false, err
	}
	report := Report{rep.GetStatus(), rep.ResultSummary, rep.GetArtifactIds(), rep.GetReason()}
	if _, err := t.Report(r, s, report); err != nil {
		return false, err
	}
	if rep.GetStatus() == model.StepCompleted {
		d.completed[s] = report
	}
	if r.Dispatch == nil || model.Held(t.Status(s)) {
		return false, nil
	}
	d.endRun(t, r)
	if rep.GetWorkerResult() != "" {
		t.Emit(nil, &boardv1.WorkerRunEnded{
			RunId: r.Record.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_FINISHED,
			WorkerResult: rep.GetWorkerResult(),
		}).ActorRunID = r.Record.GetRunId()
	}
	return true, nil
}

// endRun records that a run finishes with this batch.
func (d *batchDecision) endRun(t *Transition, r *model.Run) {
	t.EndedRuns = AddTo(t.EndedRuns, r, boardv1.RunStatus_RUN_STATUS_FINISHED)
	if r.Dispatch != nil {
		t.StartedRuns = AddTo(t.StartedRuns, r.Dispatch, t.StartedRuns[r.Dispatch]-1)
	}
	d.Ended = append(d.Ended, r.Record.GetRunId())
}

// repeated reports whether a report was stored before: its acknowledgement was
// lost, and the worker sends it again.
func repeated(r *model.Run, rep *boardv1.StepReport) bool {
	return !r.Running() && r.Record.GetStatus() == boardv1.RunStatus_RUN_STATUS_FINISHED &&
		r.Record.GetStepStatus() == rep.GetStatus() && r.Record.GetStepResultSummary() == rep.GetResultSummary()
}

// begin begins a dispatched run: it claims a step for it, or, if the worker chooses steps,
// only gives the worker the run. A run for which there is no step ends at once. One that has ended
// since it was dispatched may be so old that it is not in memory any more.
func (d *batchDecision) begin(run *boardv1.WorkerRun) {
	r := d.st.Runs[model.Key{Namespace: d.Namespace, ID: run.GetRunId()}]
	if r == nil || !r.Running() {
		d.Gone = append(d.Gone, run.GetRunId())
		return
	}
	// this batch may have ended or begun it: a worker that connects meets what is dispatched to it
	if t := d.byBoard[r.Board]; t != nil {
		if _, ended := t.EndedRuns[r]; ended || t.Claimed[r] != nil {
			return
		}
	}
	if d.ChoosesSteps {
		d.Assigned = append(d.Assigned, &boardv1.StepAssignment{Run: r.Shown(), RunToken: d.MintToken(run.GetRunId())})
		return
	}
	if r.Step != nil {
		return
	}
	t := d.transition(r.Board)
	var s *model.Step
	if r.Board.Dispatchable() {
		s = t.Candidate(r.Record.GetWorkerPoolId(), r.AllowedSet, r.Allowed)
	}
	if s == nil {
		t.EndedRuns = AddTo(t.EndedRuns, r, boardv1.RunStatus_RUN_STATUS_FINISHED)
		t.Emit(nil, &boardv1.WorkerRunEnded{
			RunId: run.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_FINISHED, NoStepClaimed: true,
		}).ActorRunID = run.GetRunId()
		d.Ended = append(d.Ended, run.GetRunId())
		return
	}
	t.Claim(s, r)
	t.Claimed = AddTo(t.Claimed, r, s)
	d.assign(t, model.CopyRun(r.Record), s)
}

// claim claims up to n steps under the standing dispatches of the worker's pools: one under each
// dispatch, then a second one, and so on until no dispatch has a step.
func (d *batchDecision) claim(n int) {
	from := d.claimable(n)
	for i := 0; n > 0 && len(from) > 0; {
		i %= len(from)
		if !d.claimFrom(from[i]) {
			from = append(from[:i], from[i+1:]...)
			continue
		}
		n--
		i++
	}
}

// claimable returns the standing dispatches of the worker's pools that may have a step: at most n of
// each pool, and in addition all those of boards in this batch.
func (d *batchDecision) claimable(n int) []*model.Dispatch {
	var out []*model.Dispatch
	seen := map[*model.Dispatch]bool{}
	add := func(dispatch *model.Dispatch) {
		if !seen[dispatch] {
			seen[dispatch] = true
			out = append(out, dispatch)
		}
	}
	for _, id := range d.Pools {
		if p := d.st.Pools[model.Key{Namespace: d.Namespace, ID: id}]; p != nil {
			for i := range min(len(p.Claimable), n) {
				add(p.Claimable[(d.Turn+i)%len(p.Claimable)])
			}
		}
		for _, t := range d.transitions { // this batch may have made their steps ready
			for _, dispatch := range t.Board.Dispatches {
				if dispatch.Record.GetWorkerPoolId() == id {
					add(dispatch)
				}
			}
		}
	}
	return out
}

// claimFrom claims a step under a standing dispatch, with a new run. It reports
// false if the dispatch has no step now.
func (d *batchDecision) claimFrom(dispatch *model.Dispatch) bool {
	if !dispatch.Board.Dispatchable() {
		return false
	}
	t := d.transition(dispatch.Board)
	if dispatch.Running+t.StartedRuns[dispatch] >= int(dispatch.Record.GetMaxParallel()) {
		return false
	}
	s := t.Candidate(dispatch.Record.GetWorkerPoolId(), dispatch.AllowedSet, dispatch.Allowed)
	if s == nil {
		return false
	}
	runID := d.env.NewID("run_")
	t.ClaimUnder(dispatch, s, runID, d.WorkerID)
	t.StartedRuns = AddTo(t.StartedRuns, dispatch, t.StartedRuns[dispatch]+1)
	d.Claims++
	d.assign(t, &boardv1.WorkerRun{
		RunId: runID, SessionId: dispatch.Board.Key.Session, BoardId: dispatch.Board.ID,
		WorkerPoolId: dispatch.Record.GetWorkerPoolId(),
		WorkerId:     d.WorkerID, DispatchId: dispatch.Record.GetDispatchId(),
		AllowedStepIds: dispatch.Record.GetAllowedStepIds(),
		Instruction:    dispatch.Record.GetInstruction(), Status: boardv1.RunStatus_RUN_STATUS_RUNNING,
		DispatchedAt: timestamppb.New(d.env.Now),
		DeadlineAt:   timestamppb.New(d.env.Now.Add(dispatch.StepTimeout())),
	}, s)
	return true
}

// assign adds a run with the step that it claimed in this batch to what the worker gets.
func (d *batchDecision) assign(t *Transition, run *boardv1.WorkerRun, s *model.Step) {
	step := model.CopyStep(s.Record, d.env.Now)
	step.Status, step.ClaimedByAgentId, step.ClaimedByRunId = model.StepClaimed, d.WorkerID, run.GetRunId()
	step.LeaseExpiresAt = t.leaseUntil(run.GetDeadlineAt())
	run.ClaimedStepId, run.AllowedStepIds = s.ID(), nil
	d.Assigned = append(d.Assigned, &boardv1.StepAssignment{
		Run: run, Step: step,
		Dependencies: Dependencies(s, d.completed),
	})
}

// maxDependencyResults bounds the dependencies that an assignment carries.
const maxDependencyResults = 100

// Dependencies returns the steps that a step depends on, with their results, at most
// maxDependencyResults. completed has the reports of steps that this batch completes and that
// are not applied yet.
func Dependencies(s *model.Step, completed map[*model.Step]Report) []*boardv1.Step {
	var out []*boardv1.Step
	for _, dependency := range s.DependsOn {
		if len(out) == maxDependencyResults {
			break
		}
		rec := dependency.Record
		if rep, ok := completed[dependency]; ok {
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
