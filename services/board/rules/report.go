package rules

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// Report is a report of a worker, or a change by the orchestrator, of one step.
type Report struct {
	Status    model.StepStatus
	Summary   *string  // nil: unchanged
	Artifacts []string // empty: unchanged
	Reason    string
}

// Report adds and returns the event for a report of r about s, or refuses a status that the status
// machine does not allow to the holder. The caller must have checked with HeldStep that r holds s.
func (f *Transition) Report(r *model.Run, s *model.Step, rep Report) (*journal.Event, error) {
	from := f.Status(s)
	if rep.Status == model.StepRunning && from == model.StepRunning {
		return f.emitFor(s, r, model.StepRunning, &boardv1.TaskStepUpdated{
			LeaseExpiresAt: f.leaseUntil(r.Record.GetDeadlineAt()), ResultSummary: rep.Summary,
			ArtifactIds: rep.Artifacts,
		}), nil
	}
	if !model.StepMayMove(model.ByHolder, from, rep.Status) {
		return nil, cannotMove(s, from, rep.Status)
	}
	if rep.Status == model.StepRunning {
		return f.emitFor(s, r, model.StepRunning, &boardv1.TaskStepStarted{
			LeaseExpiresAt: f.leaseUntil(r.Record.GetDeadlineAt()), ResultSummary: rep.Summary,
			ArtifactIds: rep.Artifacts,
		}), nil
	}
	return f.emitFor(s, r, rep.Status, rep.Payload()), nil
}

// emitFor adds an event that changes the status of a step, as an act of a run if r is
// not nil.
func (f *Transition) emitFor(s *model.Step, r *model.Run, to model.StepStatus, payload proto.Message) *journal.Event {
	ev := f.move(s, to, payload)
	if r != nil {
		ev.ActorRunID = r.Record.GetRunId()
	}
	return ev
}

// Payload returns the payload of the event for a report with any status but running. The
// status pending reopens the step.
func (rep Report) Payload() proto.Message {
	switch rep.Status {
	case model.StepBlocked:
		return &boardv1.TaskStepBlocked{Reason: rep.Reason, ResultSummary: rep.Summary, ArtifactIds: rep.Artifacts}
	case model.StepCompleted:
		return &boardv1.TaskStepCompleted{ResultSummary: rep.Summary, ArtifactIds: rep.Artifacts}
	case model.StepFailed:
		return &boardv1.TaskStepFailed{Reason: rep.Reason, ResultSummary: rep.Summary, ArtifactIds: rep.Artifacts}
	case model.StepCancelled:
		return &boardv1.TaskStepCancelled{Reason: rep.Reason, ResultSummary: rep.Summary, ArtifactIds: rep.Artifacts}
	default:
		// A report of pending reopens the step, below.
	}
	return &boardv1.TaskStepReopened{Reason: rep.Reason}
}

// cannotMove returns the refusal of a change that the status machine of steps does not allow.
func cannotMove(s *model.Step, from, to model.StepStatus) error {
	return fault.StepState.Newf("step %q is %s and cannot become %s by this", s.ID(), model.StepStatusName(from),
		model.StepStatusName(to)).
		With("step_id", s.ID()).With("step_status", model.StepStatusName(from))
}

// HeldStep returns the step that a run holds with the events so far, or the refusal that says
// why it holds none. A stepID that is not empty must name that step.
func (f *Transition) HeldStep(r *model.Run, stepID string) (*model.Step, error) {
	if _, ended := f.EndedRuns[r]; ended || !r.Running() {
		return nil, f.EndedError(r)
	}
	s := f.Claimed[r]
	if s == nil {
		s = r.Step
	}
	switch {
	case stepID != "" && f.Board.Steps[stepID] == nil:
		return nil, model.NoStep(f.Board, stepID)
	case stepID != "" && (s == nil || s.ID() != stepID):
		return nil, fault.PermissionDenied.Newf("run %s does not hold step %q; a run reports on the step it claimed",
			r.Record.GetRunId(), stepID).
			With("step_id", stepID).With("run_id", r.Record.GetRunId())
	case s == nil:
		return nil, fault.StepState.Newf("run %s has claimed no step", r.Record.GetRunId()).
			With("run_id", r.Record.GetRunId())
	case f.Holder(s) != r.Record.GetRunId():
		if r.LeaseExpired {
			return nil, f.EndedError(r)
		}
		return nil, fault.StepState.Newf("step %q is %s, and the run does not hold it any more", s.ID(),
			model.StepStatusName(f.Status(s))).
			With("step_id", s.ID()).With("step_status", model.StepStatusName(f.Status(s)))
	}
	return s, nil
}

// revise is Revise for a step that exists.
func (f *Transition) revise(s *model.Step, rep Report) error {
	from := f.Status(s)
	if !model.StepMayMove(model.ByOrchestrator, from, rep.Status) {
		return cannotMove(s, from, rep.Status)
	}
	if rep.Status == model.StepPending && (rep.Summary != nil || len(rep.Artifacts) > 0) {
		return fault.InvalidArgument.New("a step that is reopened has no result yet; leave result_summary and "+
			"artifact_ids out").
			WithField("result_summary", "must be left out")
	}
	holder := f.Board.Runs[f.Holder(s)]
	f.move(s, rep.Status, rep.Payload())
	if holder != nil {
		f.FinishRun(holder, boardv1.RunStatus_RUN_STATUS_CANCELLED, WhyCancelled, &boardv1.WorkerRunEnded{})
	}
	return nil
}

// Revise adds the events for a change of a step by the orchestrator, or refuses the change
// (SPEC B7). A run that holds the step ends, so that its worker is told to stop.
func (f *Transition) Revise(stepID string, rep Report) error {
	if err := f.Board.CheckChangeable(); err != nil {
		return err
	}
	s := f.Board.Steps[stepID]
	if s == nil {
		return model.NoStep(f.Board, stepID)
	}
	return f.revise(s, rep)
}

// Limits of what a report says of a step.
const (
	maxArtifacts = 200
	maxArtifact  = 256 // characters
)

// CheckResult returns an error for a result that is too large.
func CheckResult(summary string, artifacts []string, reason string) error {
	if err := fault.First(
		fault.TextBytes("result_summary", summary, fault.MaxFreeTextBytes, false),
		fault.TextBytes("reason", reason, fault.MaxFreeTextBytes, false),
		fault.Entries("artifact_ids", len(artifacts), maxArtifacts),
	); err != nil {
		return err
	}
	for i, id := range artifacts {
		if err := fault.Text(fmt.Sprintf("artifact_ids[%d]", i), id, maxArtifact, true); err != nil {
			return err
		}
	}
	return nil
}
