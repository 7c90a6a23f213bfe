package boards

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/cli/exit"
)

// boardFile is the YAML file from which apply creates or changes a board.
type boardFile struct {
	Board   string     `yaml:"board"`   // board_id
	Wal     string     `yaml:"wal"`     // wal_name; default: the board's id
	Title   string     `yaml:"title"`   // of the board
	Summary string     `yaml:"summary"` // its purpose
	Pool    string     `yaml:"pool"`    // pool of the steps that name none
	Steps   []stepFile `yaml:"steps"`
}

// stepFile is a step in a boardFile.
type stepFile struct {
	ID       string   `yaml:"id"`
	Title    string   `yaml:"title"` // default: the id
	Summary  string   `yaml:"summary"`
	Needs    []string `yaml:"needs"`
	Pool     string   `yaml:"pool"`
	Required *bool    `yaml:"required"` // default: true
}

// readBoardFile reads one board. It refuses unknown fields, because a misspelt "need:"
// would be a step that starts too early.
func readBoardFile(text string) (*boardFile, error) {
	dec := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	dec.KnownFields(true)
	var f boardFile
	if err := dec.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, exit.UsageError("the board cannot be read: " + err.Error())
	}
	if err := dec.Decode(&boardFile{}); !errors.Is(err, io.EOF) {
		return nil, exit.UsageError("the file has more than one document; write one board in a file")
	}
	if f.Wal == "" {
		f.Wal = f.Board
	}
	for i := range f.Steps {
		if f.Steps[i].Title == "" {
			f.Steps[i].Title = f.Steps[i].ID
		}
	}
	return &f, nil
}

// inputs returns the steps as CreateBoard takes them.
func (f *boardFile) inputs() []*boardv1.StepInput {
	var in []*boardv1.StepInput
	for _, s := range f.Steps {
		in = append(in, s.input())
	}
	return in
}

// input returns the step as CreateBoard and UpdateBoard take it.
func (s stepFile) input() *boardv1.StepInput {
	return &boardv1.StepInput{
		StepId: s.ID, Title: s.Title, Summary: s.Summary, DependsOnStepIds: s.Needs, Required: s.Required,
		WorkerPoolId: s.Pool,
	}
}

// change is an operation and its description for people.
type change struct {
	op   *boardv1.Operation
	text string
}

// changes returns the operations after which the title, summary and steps of board b are those of
// the file. A step for which the file has no pool keeps its own. Steps that are not in the file are
// deleted only if prune is set, whatever their status; the board plane refuses all operations
// together if one of these steps is completed, claimed, running, blocked or failed. The change of the
// board itself comes first, then the added steps, because changed steps may need them, then the
// changed ones, and last the deleted ones.
func (f *boardFile) changes(b *boardv1.Board, prune bool) []change {
	var out []change
	if f.Title != b.GetTitle() || f.Summary != b.GetSummary() {
		out = append(out, change{&boardv1.Operation{
			Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK, Task: &boardv1.UpdateTask{
				Title: &f.Title, Summary: &f.Summary,
			},
		}, "~ the board: title and summary"})
	}
	existing := map[string]*boardv1.Step{}
	for _, s := range b.GetSteps() {
		existing[s.GetStepId()] = s
	}
	var changed []change
	named := map[string]bool{}
	for _, s := range f.sortedSteps() {
		named[s.ID] = true
		old := existing[s.ID]
		if old == nil {
			out = append(out, change{&boardv1.Operation{
				Op:   boardv1.OperationKind_OPERATION_KIND_ADD_STEP,
				Step: s.input(),
			}, "+ " + s.ID})
			continue
		}
		if fields, names := s.fields(old, f.Pool); names != "" {
			changed = append(changed, change{&boardv1.Operation{
				Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP, StepId: s.ID, Fields: fields,
			}, fmt.Sprintf("~ %s: %s", s.ID, names)})
		}
	}
	out = append(out, changed...)
	if !prune {
		return out
	}
	for _, s := range slices.Backward(sortByNeeds(b.GetSteps())) {
		if !named[s.GetStepId()] {
			out = append(out, change{&boardv1.Operation{
				Op: boardv1.OperationKind_OPERATION_KIND_DELETE_STEP, StepId: s.GetStepId(),
				Reason: "not in the applied file",
			}, "- " + s.GetStepId()})
		}
	}
	return out
}

// fields returns the fields in which s differs from old, and their names as a list, empty if
// there are none. pool is the file's default, empty for none.
func (s stepFile) fields(old *boardv1.Step, pool string) (f *boardv1.StepFields, names string) {
	f = &boardv1.StepFields{}
	differs := func(name string, differs bool) bool {
		if differs && names != "" {
			names += ", "
		}
		if differs {
			names += name
		}
		return differs
	}
	if differs("title", s.Title != old.GetTitle()) {
		f.Title = &s.Title
	}
	if differs("summary", s.Summary != old.GetSummary()) {
		f.Summary = &s.Summary
	}
	if differs("needs", !slices.Equal(sorted(s.Needs), sorted(old.GetDependsOnStepIds()))) {
		f.DependsOnStepIds = &boardv1.StepList{StepIds: s.Needs}
	}
	required := s.Required == nil || *s.Required
	if differs("required", required != old.GetRequired()) {
		f.Required = &required
	}
	if s.Pool != "" {
		pool = s.Pool
	}
	if differs("pool", pool != "" && pool != old.GetWorkerPoolId()) {
		f.WorkerPoolId = &pool
	}
	return f, names
}

// sorted returns a sorted copy of s.
func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// sortedSteps returns the file's steps, each after the steps that it needs. Steps of a
// cycle, which the server refuses by name, are last.
func (f *boardFile) sortedSteps() []stepFile {
	nodes := make([]node, len(f.Steps))
	for i, s := range f.Steps {
		nodes[i] = node{s.ID, s.Needs}
	}
	return topological(f.Steps, nodes)
}

// sortByNeeds returns the steps in an order in which each is after the steps that it needs, and otherwise as near to
// them as possible. Needs that are not among the steps are ignored, and the steps of a cycle are last.
func sortByNeeds(steps []*boardv1.Step) []*boardv1.Step {
	nodes := make([]node, len(steps))
	for i, s := range steps {
		nodes[i] = node{s.GetStepId(), s.GetDependsOnStepIds()}
	}
	return topological(steps, nodes)
}

// topological returns steps, each after the steps that it needs, and those of a cycle last.
// nodes[i] is the node of steps[i].
func topological[S any](steps []S, nodes []node) []S {
	index := map[string]int{}
	for i, n := range nodes {
		index[n.id] = i
	}
	var out []S
	taken := make([]bool, len(steps))
	for _, i := range topologicalOrder(nodes, index) {
		out, taken[i] = append(out, steps[i]), true
	}
	for i, s := range steps {
		if !taken[i] {
			out = append(out, s)
		}
	}
	return out
}
