package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"quartet/pkg/client"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// Whatever handlers return, each of their steps ends once, and the steps of other handlers of the
// same worker are not affected (SPEC B15, B15.1, B15.2).
func TestB15_WhatHandlersReturn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "")
	long := strings.Repeat("é", 20<<10)
	returns := map[string]func() (client.StepResult, error){
		"healthy": func() (client.StepResult, error) { return client.StepResult{Summary: "fine"}, nil },
		"stderr":  func() (client.StepResult, error) { return client.StepResult{}, errors.New("a\xff\xfeb\x00c") },
		"summary": func() (client.StepResult, error) { return client.StepResult{Summary: "a\xff\x00b"}, nil },
		"panics":  func() (client.StepResult, error) { panic("\xff\x00") },
		"long":    func() (client.StepResult, error) { return client.StepResult{Summary: long}, nil },
		"longwhy": func() (client.StepResult, error) { return client.StepResult{}, errors.New(long) },
		"artifacts": func() (client.StepResult, error) {
			return client.StepResult{ArtifactIDs: []string{"a\xffb"}},
				nil
		},
		"longid": func() (client.StepResult, error) {
			return client.StepResult{ArtifactIDs: []string{strings.Repeat("x", 257)}}, nil
		},
		"manyids": func() (client.StepResult, error) {
			return client.StepResult{ArtifactIDs: make([]string, 300)},
				nil
		},
		"hugeids": func() (client.StepResult, error) {
			ids := make([]string, 200)
			for i := range ids {
				ids[i] = strings.Repeat("x", 100_000)
			}
			return client.StepResult{ArtifactIDs: ids}, nil
		},
		"status": func() (client.StepResult, error) { return client.StepResult{Status: 77}, nil },
		"ready": func() (client.StepResult, error) {
			return client.StepResult{Status: boardv1.StepStatus_STEP_STATUS_READY}, nil
		},
	}
	var steps []*boardv1.StepInput
	for id := range returns {
		for i := range 4 {
			steps = append(steps, aStep(fmt.Sprintf("%s-%d", id, i)))
		}
	}
	r.lay("build", steps...)
	var mu sync.Mutex
	began := map[string]int{}
	r.workSteps(3, func(_ context.Context, a *boardv1.StepAssignment) (client.StepResult, error) {
		mu.Lock()
		began[a.GetStep().GetStepId()]++
		mu.Unlock()
		kind, _, _ := strings.Cut(a.GetStep().GetStepId(), "-")
		return returns[kind]()
	})
	r.eventually(func() bool {
		n := r.board("build").GetCounts()
		return int(n.GetCompleted()+n.GetFailed()) == len(steps)
	})
	for _, s := range r.board("build").GetSteps() {
		kind, _, _ := strings.Cut(s.GetStepId(), "-")
		require.Equal(t, 1, began[s.GetStepId()], s.GetStepId())
		require.True(t, utf8.ValidString(s.GetReason()+s.GetResultSummary()))
		want := map[string]string{
			"stderr": "a\uFFFDb\uFFFDc", "panics": "the handler panicked: \uFFFD\uFFFD", "longwhy": long[:16<<10],
			"longid":  "artifact_ids[0] has 257 chars",
			"manyids": "artifact_ids has 300 entries", "hugeids": "with its 200 artifacts, the limit is",
			"status": "status \"77\" must be", "ready": "must be running, blocked",
		}[kind]
		if want != "" {
			require.Equal(t, boardv1.StepStatus_STEP_STATUS_FAILED, s.GetStatus(), s.GetStepId())
			require.Contains(t, s.GetReason(), want)
			continue
		}
		require.Equal(t, boardv1.StepStatus_STEP_STATUS_COMPLETED, s.GetStatus(), s.GetStepId())
		switch kind {
		case "summary":
			require.Equal(t, "a\uFFFD\uFFFDb", s.GetResultSummary())
		case "long":
			require.Equal(t, long[:16<<10], s.GetResultSummary())
		case "artifacts":
			require.Equal(t, []string{"a\uFFFDb"}, s.GetArtifactIds())
		}
	}
}

// Results that together exceed the size of a message are sent in several: a worker that was
// without its server has many (SPEC B15.2).
func TestB15_ManyLargeResultsAfterALostConnection(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "")
	const n = 400 // of 16 KiB: 6.4 MB, and the server takes messages of 4 MiB
	var steps []*boardv1.StepInput
	for i := range n {
		steps = append(steps, aStep(fmt.Sprint("s", i)))
	}
	r.lay("build", steps...)
	release := make(chan struct{})
	var done sync.WaitGroup
	done.Add(n)
	r.workSteps(n, func(context.Context, *boardv1.StepAssignment) (client.StepResult, error) {
		defer done.Done()
		<-release
		return client.StepResult{Summary: strings.Repeat("x", 16<<10)}, nil
	})
	r.eventually(func() bool { return r.board("build").GetCounts().GetRunning() == n })
	r.Down()
	close(release)
	done.Wait()
	r.Up()
	r.eventually(func() bool { return r.board("build").GetCounts().GetCompleted() == n })
}
