package boards

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

const buildFile = `board: build
title: Build it
pool: go
steps:
  - id: release
    needs: [vet, test]
  - id: fetch
  - id: vet
    needs: [fetch]
    required: false
  - id: test
    title: Run the tests
    needs: [fetch]
    pool: slow
`

func TestBoardFile(t *testing.T) {
	f := must.Value(readBoardFile(buildFile))(t)
	require.Equal(t, "build", f.Wal)
	in := f.inputs()
	require.Len(t, in, 4)
	require.Equal(t, "release", in[0].GetTitle(), "the default title is the id")
	require.Equal(t, []string{"vet", "test"}, in[0].GetDependsOnStepIds())
	require.Nil(t, in[0].Required)
	require.False(t, *in[2].Required)

	for text, want := range map[string]string{
		"": "it is empty",
		"board: x\nsteps:\n - id: a\n   need: [b]": "line 4: field need not found",
		"board: [x]":                "line 1",
		"board: a\n---\nboard: b\n": "more than one document",
		"{":                         "cannot be read",
	} {
		must.Fail(readBoardFile(text))(t, want, text)
	}
}

func TestBoardFileChanges(t *testing.T) {
	f := must.Value(readBoardFile(buildFile))(t)
	texts := func(cs []change) (lines []string) {
		for _, c := range cs {
			lines = append(lines, c.text)
		}
		return lines
	}
	fresh := &boardv1.Board{Title: "Build it"}
	require.Equal(t, []string{"+ fetch", "+ vet", "+ test", "+ release"}, texts(f.changes(fresh, true)),
		"each after the steps that it needs")

	existing := &boardv1.Board{Title: "Build it", Steps: []*boardv1.Step{
		{StepId: "fetch", Title: "fetch", Required: true, WorkerPoolId: "go"},
		{StepId: "vet", Title: "vet", DependsOnStepIds: []string{"fetch"}, WorkerPoolId: "go"},
		{
			StepId: "test", Title: "Run the tests", DependsOnStepIds: []string{"fetch"}, Required: true,
			WorkerPoolId: "slow",
		},
		{
			StepId: "release", Title: "release", DependsOnStepIds: []string{"test", "vet"}, Required: true,
			WorkerPoolId: "go",
		},
	}}
	require.Empty(t, f.changes(existing, true), "applying the file again changes nothing")

	existing.Title = "Something else"
	existing.Steps[0].Summary = "to be emptied"
	existing.Steps[2].WorkerPoolId = "go"
	existing.Steps[2].Required = false
	existing.Steps[3].DependsOnStepIds = []string{"old-2"}
	existing.Steps = append(existing.Steps,
		&boardv1.Step{StepId: "old-1"}, &boardv1.Step{StepId: "old-2", DependsOnStepIds: []string{"old-1"}})
	kept := []string{"~ the board: title and summary", "~ fetch: summary", "~ test: required, pool", "~ release: needs"}
	require.Equal(t, kept, texts(f.changes(existing, false)))
	all := f.changes(existing, true)
	require.Equal(t, append(kept, "- old-2", "- old-1"), texts(all), "a step is deleted before the steps that it needs")
	require.Equal(t, []string{"vet", "test"}, all[3].op.GetFields().GetDependsOnStepIds().GetStepIds())
	require.Empty(t, all[1].op.GetFields().GetSummary())
	require.NotNil(t, all[1].op.GetFields().Summary)
}
