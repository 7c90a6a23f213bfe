package board

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// overdueError names a board whose leases must be taken back first.
type overdueError struct {
	k     model.Key
	board string
}

func (*overdueError) Error() string { return errOverdue.Error() }

// batch is what one stream asks for at once: reports, dispatched runs to start,
// and steps for as many runs as the worker has room for.
type batch struct {
	s       *Service
	w       *worker
	chooses bool
	turn    int
	want    int // claims at most

	st    *model.State
	env   journal.Env
	flows []*rules.Transition
	of    map[*model.Board]*rules.Transition
	said  map[*model.Step]rules.Report

	acks     []*boardv1.ReportAck
	assigned []*boardv1.StepAssignment
	over     []string // runs
	unknown  []*boardv1.StepReport
	claims   int
}

// batch writes one batch for each partition that it touches.
func (l *link) batch(reports []*boardv1.StepReport, begin []*boardv1.WorkerRun) error {
	parts := l.s.engine.All()
	freed := len(reports) > 0 && len(parts) > 1
	first := l.turn // none is always the first to give steps
	for i := range parts {
		// A run's partition is not in its id; with several, each takes what it
		// knows, and the last says what nobody knew.
		var err error
		if reports, err = l.commit(parts[(first+i)%len(parts)], reports, begin, i < len(parts)-1); err != nil {
			return err
		}
	}
	if freed {
		// The reports made room, and the partitions before theirs were asked when
		// there was none.
		for i := range parts {
			if _, err := l.commit(parts[(first+i)%len(parts)], nil, nil, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// commit writes one batch of one partition. With others behind it, it gives the
// reports of runs that this one does not know.
func (l *link) commit(p *journal.Partition[*model.State], reports []*boardv1.StepReport, begin []*boardv1.WorkerRun, others bool) (unknown []*boardv1.StepReport, _ error) {
	f := &l.s.floor
	f.mu.Lock()
	want, room := l.w.want, l.w.room()
	f.mu.Unlock()
	if len(reports) == 0 && len(begin) == 0 && min(want, room) <= 0 {
		return nil, nil
	}
	var b *batch
	for {
		_, _, err := journal.Do(l.ctx, p, journal.Op[*model.State, struct{}]{
			Method: "Connect", Actor: l.actor,
			Decide: func(st *model.State, env journal.Env) (d journal.Decision[struct{}], err error) {
				b = &batch{
					s: l.s, w: l.w, chooses: l.w.hello.GetChoosesSteps(), turn: l.turn, want: want,
					st: st, env: env, of: map[*model.Board]*rules.Transition{}, said: map[*model.Step]rules.Report{},
				}
				d.Events, err = b.decide(reports, begin, room, others)
				return d, err
			},
		})
		var late *overdueError
		switch {
		case errors.As(err, &late):
			if err := l.s.reconcile(l.ctx, late.k, late.board); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, fault.LimitExceeded) && len(reports) > 1:
			// Together they make more lines than a frame holds.
			half := len(reports) / 2
			first, err := l.commit(p, reports[:half], begin, others)
			if err != nil {
				return nil, err
			}
			second, err := l.commit(p, reports[half:], nil, others)
			return append(first, second...), err
		case err != nil:
			return nil, err
		}
		break
	}
	l.turn++
	f.release(l.w.namespace, b.over...)
	for _, a := range b.assigned {
		f.took(l.w, a.GetRun().GetRunId())
	}
	f.mu.Lock()
	l.w.want -= b.claims
	f.mu.Unlock()
	if len(b.acks)+len(b.assigned) > 0 {
		l.send(&boardv1.ConnectResponse{Acks: b.acks, Assigned: b.assigned})
	}
	return b.unknown, nil
}

// decide is the rule.
func (b *batch) decide(reports []*boardv1.StepReport, begin []*boardv1.WorkerRun, room int, others bool) ([]*journal.Event, error) {
	for _, rep := range reports {
		r := b.st.Runs[model.Key{Namespace: b.w.namespace, ID: rep.GetRunId()}]
		if r == nil && others {
			b.unknown = append(b.unknown, rep) // another partition's, perhaps
			continue
		}
		if r != nil && b.s.late(r.Board, b.env.Now) {
			return nil, &overdueError{model.Key{Namespace: r.Board.Key.Namespace, ID: r.Board.Key.Session}, r.Board.ID}
		}
		ack := &boardv1.ReportAck{RunId: rep.GetRunId()}
		if err := b.report(r, rep); err != nil {
			e := fault.From(err)
			ack.Error, ack.Message = strings.ToLower(string(e.Reason())), e.Message()
		}
		b.acks = append(b.acks, ack)
	}
	for _, f := range b.flows {
		f.FollowUps()
	}
	for _, rec := range begin {
		b.start(rec)
	}
	if n := min(b.want, room+len(b.over)); n > 0 && !b.chooses {
		if err := b.claim(n); err != nil {
			return nil, err
		}
	}
	if len(b.flows) == 1 {
		return b.flows[0].Events, nil
	}
	var events []*journal.Event
	for _, f := range b.flows {
		events = append(events, f.Events...)
	}
	return events, nil
}

func (b *batch) flow(of *model.Board) *rules.Transition {
	f := b.of[of]
	if f == nil {
		f = rules.NewTransition(of, b.env)
		b.of[of] = f
		b.flows = append(b.flows, f)
	}
	return f
}

// report takes one report.
func (b *batch) report(r *model.Run, rep *boardv1.StepReport) error {
	if r == nil {
		return model.RunEnded(rep.GetRunId())
	}
	if r.Record.GetWorkerId() != b.w.id {
		return fault.PermissionDenied.Newf("run %s is another worker's", rep.GetRunId()).With("run_id", rep.GetRunId())
	}
	if err := fault.First(
		rules.CheckResult(rep.GetResultSummary(), rep.GetArtifactIds(), rep.GetReason()),
		fault.TextBytes("worker_result", rep.GetWorkerResult(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return err
	}
	if rep.GetStatus() == 0 && !rep.GetFinished() {
		return fault.InvalidArgument.New("a report says where the step stands, or that the run is finished").WithField("status", "is required")
	}
	f := b.flow(r.Board)
	if rep.GetStatus() != 0 {
		if repeated(r, rep) {
			return nil
		}
		s, err := f.HeldStep(r, "")
		if err != nil {
			return err
		}
		said := rules.Report{Status: rep.GetStatus(), Summary: rep.ResultSummary, Artifacts: rep.GetArtifactIds(), Reason: rep.GetReason()}
		if _, err := f.Report(r, s, said); err != nil {
			return err
		}
		if rep.GetStatus() == model.StepCompleted {
			b.said[s] = said
		}
		if r.Dispatch != nil && !model.Held(f.Status(s)) {
			b.ended(f, r)
			if rep.GetWorkerResult() != "" {
				f.Emit(nil, &boardv1.WorkerRunEnded{RunId: r.Record.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_FINISHED, WorkerResult: rep.GetWorkerResult()}).
					ActorRunID = r.Record.GetRunId()
			}
			return nil
		}
	}
	if !rep.GetFinished() {
		return nil
	}
	if _, over := f.EndedRuns[r]; over || !r.Running() {
		return f.EndedError(r)
	}
	before := len(f.Events)
	f.FinishRun(r, boardv1.RunStatus_RUN_STATUS_FINISHED, rules.WhyFinished, &boardv1.WorkerRunEnded{
		WorkerResult: rep.GetWorkerResult(), NoStepClaimed: r.Step == nil && f.Claimed[r] == nil,
	})
	for _, ev := range f.Events[before:] {
		ev.ActorRunID = r.Record.GetRunId()
	}
	b.ended(f, r)
	return nil
}

// ended notes that a run is over with this batch.
func (b *batch) ended(f *rules.Transition, r *model.Run) {
	f.EndedRuns = rules.AddTo(f.EndedRuns, r, boardv1.RunStatus_RUN_STATUS_FINISHED)
	if r.Dispatch != nil {
		f.StartedRuns = rules.AddTo(f.StartedRuns, r.Dispatch, f.StartedRuns[r.Dispatch]-1)
	}
	b.over = append(b.over, r.Record.GetRunId())
}

// repeated says whether a report was stored before: the answer was lost, and
// the worker says it again.
func repeated(r *model.Run, rep *boardv1.StepReport) bool {
	return !r.Running() && r.Record.GetStatus() == boardv1.RunStatus_RUN_STATUS_FINISHED && r.Record.GetStepStatus() == rep.GetStatus() &&
		r.Record.GetStepResultSummary() == rep.GetResultSummary()
}

// start begins a dispatched run: its step is claimed for it, unless its worker
// chooses.
func (b *batch) start(rec *boardv1.WorkerRun) {
	r := b.st.Runs[model.Key{Namespace: b.w.namespace, ID: rec.GetRunId()}]
	if r == nil || !r.Running() {
		return
	}
	if b.chooses {
		b.assigned = append(b.assigned, &boardv1.StepAssignment{
			Run: r.Shown(), RunToken: b.s.deps.MintRun(b.w.namespace, b.w.id, rec.GetRunId()),
		})
		return
	}
	if r.Step != nil {
		return
	}
	f := b.flow(r.Board)
	var s *model.Step
	if r.Board.Dispatchable() {
		s = f.Candidate(r.Record.GetWorkerPoolId(), r.AllowedSet, r.Allowed)
	}
	if s == nil {
		f.EndedRuns = rules.AddTo(f.EndedRuns, r, boardv1.RunStatus_RUN_STATUS_FINISHED)
		f.Emit(nil, &boardv1.WorkerRunEnded{RunId: rec.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_FINISHED, NoStepClaimed: true}).
			ActorRunID = rec.GetRunId()
		b.over = append(b.over, rec.GetRunId())
		return
	}
	f.Claim(s, rec.GetRunId(), b.w.id, "")
	f.Claimed = rules.AddTo(f.Claimed, r, s)
	b.assign(f, model.CopyRun(r.Record), s)
}

// claim takes steps from the standing dispatches of the worker's pools, from
// one after the other.
func (b *batch) claim(n int) error {
	var from []*model.Dispatch
	seen := map[*model.Dispatch]bool{}
	add := func(d *model.Dispatch) {
		if !seen[d] {
			seen[d] = true
			from = append(from, d)
		}
	}
	for _, id := range b.w.hello.GetWorkerPoolIds() {
		if p := b.st.Pools[model.Key{Namespace: b.w.namespace, ID: id}]; p != nil {
			// More than are wanted need not be looked at.
			for i := range min(len(p.Claimable), n) {
				add(p.Claimable[(b.turn+i)%len(p.Claimable)])
			}
		}
		for _, f := range b.flows { // what became claimable in this batch
			for _, d := range f.Board.Dispatches {
				if d.Record.GetWorkerPoolId() == id {
					add(d)
				}
			}
		}
	}
	for i := 0; n > 0 && len(from) > 0; {
		i %= len(from)
		d := from[i]
		if b.s.late(d.Board, b.env.Now) {
			return &overdueError{model.Key{Namespace: d.Board.Key.Namespace, ID: d.Board.Key.Session}, d.Board.ID}
		}
		if !b.claimFrom(d) {
			from = append(from[:i], from[i+1:]...)
			continue
		}
		n--
		i++
	}
	return nil
}

func (b *batch) claimFrom(d *model.Dispatch) bool {
	if !d.Board.Dispatchable() {
		return false
	}
	f := b.of[d.Board]
	if f == nil {
		f = b.flow(d.Board)
	}
	if d.Running+f.StartedRuns[d] >= int(d.Record.GetMaxParallel()) {
		return false
	}
	s := f.Candidate(d.Record.GetWorkerPoolId(), d.AllowedSet, d.Allowed)
	if s == nil {
		return false
	}
	runID := b.env.NewID("run_")
	f.Claim(s, runID, b.w.id, d.Record.GetDispatchId())
	f.StartedRuns = rules.AddTo(f.StartedRuns, d, f.StartedRuns[d]+1)
	b.claims++
	b.assign(f, &boardv1.WorkerRun{
		RunId: runID, SessionId: d.Board.Key.Session, BoardId: d.Board.ID, WorkerPoolId: d.Record.GetWorkerPoolId(), WorkerId: b.w.id,
		DispatchId: d.Record.GetDispatchId(), AllowedStepIds: d.Record.GetAllowedStepIds(), Instruction: d.Record.GetInstruction(),
		Status: boardv1.RunStatus_RUN_STATUS_RUNNING, DispatchedAt: timestamppb.New(b.env.Now),
	}, s)
	return true
}

func (b *batch) assign(f *rules.Transition, run *boardv1.WorkerRun, s *model.Step) {
	rec := model.CopyStep(s.Record, b.env.Now)
	rec.Status, rec.ClaimedByAgentId, rec.ClaimedByRunId = model.StepClaimed, b.w.id, run.GetRunId()
	rec.LeaseExpiresAt = timestamppb.New(b.env.Now.Add(f.Board.LeaseTerm))
	run.ClaimedStepId, run.AllowedStepIds = s.ID(), nil
	b.assigned = append(b.assigned, &boardv1.StepAssignment{Run: run, Step: rec, Dependencies: results(s, b.said)})
}
