package model

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// Step is a node of a board. Its record is replaced and never modified, so that
// readers may keep it.
type Step struct {
	Record           *boardv1.Step
	Index            int     // position in Board.Order
	DependsOn        []*Step // in the order of the record
	Dependents       []*Step // the steps that depend on it, in the order of creation
	OpenDependencies int     // how many of DependsOn are not completed
	// AtClaim is the record as it was when the run that holds the step claimed it; nil
	// if no run does.
	AtClaim *boardv1.Step
}

// ID returns the step's id.
func (s *Step) ID() string { return s.Record.GetStepId() }

// addStep adds a pending step without its edges, which linkDependencies sets.
func (b *Board) addStep(in *boardv1.StepInput, at time.Time) error {
	if b.Steps[in.GetStepId()] != nil {
		return fmt.Errorf("step %s exists already", in.GetStepId())
	}
	s := &Step{Record: NewStep(in, b.DefaultPool, at), Index: len(b.Order)}
	b.Steps[s.ID()] = s
	b.Order = append(b.Order, s)
	b.Count[s.Record.GetStatus()]++
	b.RequiredOpen += RequiredOpen(s.Record)
	b.IDBytes += len(s.ID())
	return nil
}

// NewStep returns the record of a new step, which is pending. pool is its pool if it names
// none.
func NewStep(in *boardv1.StepInput, pool string, at time.Time) *boardv1.Step {
	if in.GetWorkerPoolId() != "" {
		pool = in.GetWorkerPoolId()
	}
	now := timestamppb.New(at)
	return &boardv1.Step{
		StepId: in.GetStepId(), Title: in.GetTitle(), Summary: in.GetSummary(), Status: StepPending,
		DependsOnStepIds: slices.Clone(in.GetDependsOnStepIds()), Required: in.Required == nil || in.GetRequired(),
		WorkerPoolId: pool, CreatedAt: now, UpdatedAt: now,
	}
}

// linkDependencies sets the edges of a step to those of its record.
func (b *Board) linkDependencies(s *Step) error {
	for _, d := range s.DependsOn {
		d.Dependents = slices.DeleteFunc(d.Dependents, func(k *Step) bool { return k == s })
	}
	s.DependsOn, s.OpenDependencies = nil, 0
	for _, id := range s.Record.GetDependsOnStepIds() {
		d := b.Steps[id]
		if d == nil {
			return fmt.Errorf("step %s depends on %s, which does not exist", s.ID(), id)
		}
		s.DependsOn = append(s.DependsOn, d)
		at := len(d.Dependents)
		if at > 0 && d.Dependents[at-1].Index > s.Index {
			at, _ = slices.BinarySearchFunc(d.Dependents, s.Index, func(k *Step, index int) int {
				return cmp.Compare(k.Index, index)
			})
		}
		d.Dependents = slices.Insert(d.Dependents, at, s)
		if d.Record.GetStatus() != StepCompleted {
			s.OpenDependencies++
		}
	}
	return nil
}

// findRoots sets roots to the steps without dependencies.
func (b *Board) findRoots() {
	roots := make([]string, 0, len(b.roots))
	for _, s := range b.Order {
		if s != nil && len(s.Record.GetDependsOnStepIds()) == 0 {
			roots = append(roots, s.ID())
		}
	}
	b.roots = roots
}

// RequiredOpen returns 1 for a step that must still be completed before the board can be
// completed, and 0 for any other step.
func RequiredOpen(s *boardv1.Step) int {
	if s.GetRequired() && s.GetStatus() != StepCompleted {
		return 1
	}
	return 0
}

// setRecord replaces the record of a step and updates everything that is derived from it,
// except edges.
func (b *Board) setRecord(s *Step, rec *boardv1.Step) {
	old := s.Record
	b.Count[old.GetStatus()]--
	b.Count[rec.GetStatus()]++
	b.RequiredOpen += RequiredOpen(rec) - RequiredOpen(old)
	if old.GetStatus() == StepReady {
		b.removeReady(s)
	}
	if rec.GetStatus() == StepReady {
		b.addReady(rec.GetWorkerPoolId(), s.Index)
	}
	s.Record = rec
	if rec.GetStatus() == StepCompleted && old.GetStatus() != StepCompleted {
		for _, k := range s.Dependents {
			k.OpenDependencies--
		}
	}
}

// addReady adds the index of a step to the ready ones of a pool.
func (b *Board) addReady(pool string, index int) {
	r := b.Ready[pool]
	if r == nil {
		r = &Bitset{}
		b.Ready[pool] = r
	}
	r.add(index)
}

// removeReady removes a step from the ready ones of its pool.
func (b *Board) removeReady(s *Step) {
	pool := s.Record.GetWorkerPoolId()
	r := b.Ready[pool]
	r.remove(s.Index)
	if r.Len() == 0 {
		delete(b.Ready, pool)
	}
}

// rebuild derives everything that follows from the records of the steps in Order. It continues after
// an error, without the edges that caused it, and returns the first one.
func (b *Board) rebuild() (err error) {
	b.Steps, b.Ready = make(map[string]*Step, len(b.Order)), map[string]*Bitset{}
	b.Count, b.RequiredOpen, b.IDBytes = [9]int{}, 0, 0
	for i, s := range b.Order {
		if s == nil {
			continue
		}
		s.Index, s.DependsOn, s.Dependents = i, nil, nil
		if b.Steps[s.ID()] != nil && err == nil {
			err = fmt.Errorf("there are two steps %s", s.ID())
		}
		b.Steps[s.ID()] = s
		b.Count[s.Record.GetStatus()]++
		b.RequiredOpen += RequiredOpen(s.Record)
		b.IDBytes += len(s.ID())
		if s.Record.GetStatus() == StepReady {
			b.addReady(s.Record.GetWorkerPoolId(), i)
		}
	}
	for _, s := range b.Order {
		if s == nil {
			continue
		}
		if wrong := b.linkDependencies(s); wrong != nil && err == nil {
			err = wrong
		}
	}
	b.findRoots()
	return err
}

// applyStep applies a line about one step, of which fold makes the next record. A change that the status machine
// allows to nobody is an error; who makes it is not checked.
func (b *Board) applyStep(ev *journal.Event, fold func(st *Step, next *boardv1.Step) error) error {
	s := b.Steps[ev.StepID]
	if s == nil {
		return fmt.Errorf("%s of step %q, which does not exist", ev.Type, ev.StepID)
	}
	from, n := s.Record.GetStatus(), CopyStep(s.Record, ev.CreatedAt)
	n.Reason = ""
	if err := fold(s, n); err != nil {
		return err
	}
	if !Held(n.GetStatus()) {
		n.ClaimedByAgentId, n.ClaimedByRunId, n.LeaseExpiresAt, s.AtClaim = "", "", nil, nil
	}
	if stepMoves[stepMove{from, n.GetStatus()}] == 0 {
		return fmt.Errorf("%s of step %s, which is %s", ev.Type, s.ID(), StepStatusName(from))
	}
	b.setRecord(s, n)
	return nil
}

// StepResult is what the events that carry a result have in common.
type StepResult interface {
	proto.Message
	GetResultSummary() string
	GetArtifactIds() []string
}

// MergeResult sets the result fields of n that p gives; empty ones stay.
func MergeResult(n *boardv1.Step, p StepResult) {
	if p.GetResultSummary() != "" {
		n.ResultSummary = p.GetResultSummary()
	}
	if len(p.GetArtifactIds()) > 0 {
		n.ArtifactIds = p.GetArtifactIds()
	}
}

// CopyStep returns a copy of a record that the caller may modify, with the time of change at.
// It shares the record's slices. It is written by hand, since it runs for every line and
// proto.Clone takes ten times as long.
func CopyStep(o *boardv1.Step, at time.Time) *boardv1.Step {
	return &boardv1.Step{
		StepId: o.GetStepId(), Title: o.GetTitle(), Summary: o.GetSummary(), Status: o.GetStatus(),
		DependsOnStepIds: o.GetDependsOnStepIds(), Required: o.GetRequired(), WorkerPoolId: o.GetWorkerPoolId(),
		ClaimedByAgentId: o.GetClaimedByAgentId(), ClaimedByRunId: o.GetClaimedByRunId(),
		LeaseExpiresAt: o.GetLeaseExpiresAt(),
		ResultSummary:  o.GetResultSummary(), ArtifactIds: o.GetArtifactIds(), Reason: o.GetReason(),
		CreatedAt: o.GetCreatedAt(), UpdatedAt: timestamppb.New(at),
	}
}
