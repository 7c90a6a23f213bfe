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

// boardFile is a board as a person writes it.
type boardFile struct {
	Board   string     `yaml:"board"`   // board_id
	Wal     string     `yaml:"wal"`     // wal_name; default: the board's id
	Title   string     `yaml:"title"`   // of the board
	Summary string     `yaml:"summary"` // what it is for
	Pool    string     `yaml:"pool"`    // where steps go that name none
	Steps   []stepFile `yaml:"steps"`
}

type stepFile struct {
	ID       string   `yaml:"id"`
	Title    string   `yaml:"title"` // default: the id
	Summary  string   `yaml:"summary"`
	Needs    []string `yaml:"needs"`
	Pool     string   `yaml:"pool"`
	Required *bool    `yaml:"required"` // default: true
}

// readBoardFile reads one board and lets no unknown field pass: a misspelt
// "need:" would make a step that starts too early.
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

func (f *boardFile) inputs() []*boardv1.StepInput {
	var in []*boardv1.StepInput
	for _, s := range f.Steps {
		in = append(in, s.input())
	}
	return in
}

func (s stepFile) input() *boardv1.StepInput {
	return &boardv1.StepInput{
		StepId: s.ID, Title: s.Title, Summary: s.Summary, DependsOnStepIds: s.Needs, Required: s.Required, WorkerPoolId: s.Pool,
	}
}

// change is an operation with what is said of it.
type change struct {
	op   *boardv1.Operation
	says string
}

// changes are what makes a board what the file says. Steps that the file does
// not have stay, unless prune is set; what was done stays in any case. New
// steps come first, since others may come to need them, and gone ones last.
func (f *boardFile) changes(b *boardv1.Board, prune bool) []change {
	var out []change
	if f.Title != b.GetTitle() || f.Summary != b.GetSummary() {
		out = append(out, change{&boardv1.Operation{
			Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK, Task: &boardv1.UpdateTask{Title: &f.Title, Summary: &f.Summary},
		}, "~ the board: title and summary"})
	}
	there := map[string]*boardv1.Step{}
	for _, s := range b.GetSteps() {
		there[s.GetStepId()] = s
	}
	var changed []change
	named := map[string]bool{}
	for _, s := range f.inOrder() {
		named[s.ID] = true
		old := there[s.ID]
		if old == nil {
			out = append(out, change{&boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: s.input()}, "+ " + s.ID})
			continue
		}
		if fields, what := s.fields(old, f.Pool); what != "" {
			changed = append(changed, change{&boardv1.Operation{
				Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP, StepId: s.ID, Fields: fields,
			}, fmt.Sprintf("~ %s: %s", s.ID, what)})
		}
	}
	out = append(out, changed...)
	if !prune {
		return out
	}
	for _, s := range slices.Backward(byNeed(b.GetSteps())) {
		if !named[s.GetStepId()] {
			out = append(out, change{&boardv1.Operation{
				Op: boardv1.OperationKind_OPERATION_KIND_DELETE_STEP, StepId: s.GetStepId(), Reason: "not in the applied file",
			}, "- " + s.GetStepId()})
		}
	}
	return out
}

// fields are what differs, and its names.
func (s stepFile) fields(old *boardv1.Step, pool string) (*boardv1.StepFields, string) {
	f, what := &boardv1.StepFields{}, ""
	differs := func(name string, is bool) bool {
		if is && what != "" {
			what += ", "
		}
		if is {
			what += name
		}
		return is
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
	return f, what
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// inOrder gives the file's steps so that each comes after what it needs; those
// of a cycle, which the server will refuse by name, come last.
func (f *boardFile) inOrder() []stepFile {
	nodes := make([]node, len(f.Steps))
	for i, s := range f.Steps {
		nodes[i] = node{s.ID, s.Needs}
	}
	return layered(f.Steps, nodes)
}

func byNeed(steps []*boardv1.Step) []*boardv1.Step {
	nodes := make([]node, len(steps))
	for i, s := range steps {
		nodes[i] = node{s.GetStepId(), s.GetDependsOnStepIds()}
	}
	return layered(steps, nodes)
}

func layered[S any](steps []S, nodes []node) []S {
	index := map[string]int{}
	for i, n := range nodes {
		index[n.id] = i
	}
	var out []S
	taken := make([]bool, len(steps))
	for _, i := range inOrder(nodes, index) {
		out, taken[i] = append(out, steps[i]), true
	}
	for i, s := range steps {
		if !taken[i] {
			out = append(out, s)
		}
	}
	return out
}
