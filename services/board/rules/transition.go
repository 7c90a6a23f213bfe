package rules

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// Transition is the effect of one command on one board: the events so far, and the
// statuses and holders that steps have with them. It does not change the board, so
// that a command can apply many reports and claim many steps before anything is
// folded.
type Transition struct {
	Board  *model.Board
	env    journal.Env
	Events []*journal.Event

	// The maps have entries for the steps that differ from the board.
	status          map[*model.Step]model.StepStatus
	openDeps        map[*model.Step]int    // dependencies that are not completed
	holders         map[*model.Step]string // run ids; empty: none
	boardStatus     model.BoardStatus
	readyCandidates []*model.Step // that FollowUps has to check
	newlyReady      []*model.Step // that became ready in this transition
	// scanFrom is the index from which Candidate searches, by the ready steps of a pool and the
	// scope: all ready steps in the scope before it are claimed in this transition.
	scanFrom    map[*model.Bitset]map[*model.Bitset]int
	StartedRuns map[*model.Dispatch]int          // runs started minus runs ended in this transition
	Claimed     map[*model.Run]*model.Step       // by existing runs in this transition
	EndedRuns   map[*model.Run]boardv1.RunStatus // runs that end in this transition
}

// NewTransition begins a transition of a board.
func NewTransition(b *model.Board, env journal.Env) *Transition {
	return &Transition{
		Board: b, env: env, boardStatus: b.Status, status: map[*model.Step]model.StepStatus{},
		openDeps: map[*model.Step]int{}, holders: map[*model.Step]string{},
	}
}

// Status returns the status that a step has with the events so far.
func (f *Transition) Status(s *model.Step) model.StepStatus {
	if st, moved := f.status[s]; moved {
		return st
	}
	return s.Record.GetStatus()
}

// Holder returns the run that holds a step with the events so far, or "".
func (f *Transition) Holder(s *model.Step) string {
	if id, moved := f.holders[s]; moved {
		return id
	}
	return s.Record.GetClaimedByRunId()
}

// openDependencies returns how many dependencies of a step are not completed with the events so far.
func (f *Transition) openDependencies(s *model.Step) int {
	if n, moved := f.openDeps[s]; moved {
		return n
	}
	return s.OpenDependencies
}

// Emit adds an event about a step or, if s is nil, about the board, and returns it. It
// changes no status; see move.
func (f *Transition) Emit(s *model.Step, payload proto.Message) *journal.Event {
	id := ""
	if s != nil {
		id = s.ID()
	}
	ev := f.Board.NewEvent(id, payload)
	f.Events = append(f.Events, ev)
	return ev
}

// move adds and returns an event that changes the status of a step. The caller must have checked
// that the status machine allows the change.
func (f *Transition) move(s *model.Step, to model.StepStatus, payload proto.Message) *journal.Event {
	f.status[s] = to
	if !model.Held(to) {
		f.holders[s] = ""
	}
	switch to {
	case model.StepCompleted:
		for _, k := range s.Dependents {
			f.openDeps[k] = f.openDependencies(k) - 1
			f.readyCandidates = append(f.readyCandidates, k)
		}
	case model.StepPending:
		f.readyCandidates = append(f.readyCandidates, s)
	default:
		// Nothing depends on a step that enters one of the others.
	}
	return f.Emit(s, payload)
}

// FollowUps adds the events that follow from the others: steps become ready, and with the
// first ready step a pending board becomes running (S2-149, S2-191). It must be called once
// the other events are added, and may be called again.
func (f *Transition) FollowUps() {
	for _, s := range f.readyCandidates {
		if f.Status(s) == model.StepPending && f.openDependencies(s) == 0 {
			f.status[s] = model.StepReady
			f.newlyReady = append(f.newlyReady, s)
			f.Emit(s, &boardv1.TaskStepReady{})
		}
	}
	f.readyCandidates = f.readyCandidates[:0]
	if f.boardStatus == model.BoardPending && len(f.newlyReady) > 0 {
		f.boardStatus = model.BoardRunning
		f.Emit(nil, &boardv1.TaskRunning{})
	}
}

// Candidate returns the first ready step of a pool within a scope, in the order of
// creation, or nil. allowed is the same scope by ids; a nil scope is all steps. Steps
// that became ready in this transition come last.
func (f *Transition) Candidate(pool string, scope *model.Bitset, allowed map[string]bool) *model.Step {
	ready := f.Board.Ready[pool]
	from := f.scanFrom[ready][scope]
	for {
		i := ready.Next(from, scope)
		if i < 0 {
			break
		}
		from = i + 1
		if s := f.Board.Order[i]; f.Status(s) == model.StepReady {
			if f.scanFrom == nil {
				f.scanFrom = map[*model.Bitset]map[*model.Bitset]int{}
			}
			if f.scanFrom[ready] == nil {
				f.scanFrom[ready] = map[*model.Bitset]int{}
			}
			f.scanFrom[ready][scope] = i
			return s
		}
	}
	for len(f.newlyReady) > 0 && f.Status(f.newlyReady[0]) != model.StepReady {
		f.newlyReady = f.newlyReady[1:]
	}
	for _, s := range f.newlyReady {
		if f.Status(s) == model.StepReady && s.Record.GetWorkerPoolId() == pool && (allowed == nil || allowed[s.ID()]) {
			return s
		}
	}
	return nil
}

// Claim adds and returns the event by which an existing run claims a step, which must be ready.
func (f *Transition) Claim(s *model.Step, r *model.Run) *journal.Event {
	return f.claim(s, r.Record.GetDeadlineAt(), &boardv1.TaskStepClaimed{
		ClaimedByAgentId: r.Record.GetWorkerId(),
		ClaimedByRunId:   r.Record.GetRunId(),
	})
}

// ClaimUnder is Claim for a run that the standing dispatch d creates with this claim.
func (f *Transition) ClaimUnder(d *model.Dispatch, s *model.Step, runID, workerID string) *journal.Event {
	deadline := timestamppb.New(f.env.Now.Add(d.StepTimeout()))
	return f.claim(s, deadline, &boardv1.TaskStepClaimed{
		ClaimedByAgentId: workerID, ClaimedByRunId: runID, DispatchId: d.Record.GetDispatchId(), DeadlineAt: deadline,
	})
}

// claim sets the lease of a claim's event, adds the event and returns it. The lease ends with its term, or at deadline
// if that is earlier, which is that of the run; nil: it has none.
func (f *Transition) claim(s *model.Step, deadline *timestamppb.Timestamp, p *boardv1.TaskStepClaimed) *journal.Event {
	p.LeaseExpiresAt = f.leaseUntil(deadline)
	ev := f.move(s, model.StepClaimed, p)
	ev.ActorRunID = p.GetClaimedByRunId()
	f.holders[s] = p.GetClaimedByRunId()
	return ev
}

// leaseUntil returns when a lease expires that begins now: after a term, or at the deadline of its run if that is
// earlier. A nil deadline means none.
func (f *Transition) leaseUntil(deadline *timestamppb.Timestamp) *timestamppb.Timestamp {
	term := f.env.Now.Add(f.Board.LeaseTerm)
	if deadline != nil && deadline.AsTime().Before(term) {
		return deadline
	}
	return timestamppb.New(term)
}
