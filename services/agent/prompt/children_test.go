package prompt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// child is a child with questions.
func child(n int, questions ...string) Child {
	d := &agentv1.Delegation{
		ChildAgentId: fmt.Sprint("agt_", n), TaskId: fmt.Sprint("tsk_", n),
		Label: "paint\n## Message", ParentWorkItemId: "wi_1",
	}
	for i, q := range questions {
		d.Questions = append(d.Questions, &agentv1.ChildQuestion{
			WaitId: fmt.Sprint("wt_", i+1), Text: q,
			AskedAt: timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		})
	}
	return Child{d, "waiting"}
}

func childrenSection(t *testing.T, budget int, children ...Child) *agentv1.ContextSection {
	sections, err := Render(Input{AgentID: "keeper", Queue: &workv1.GetWorkQueueResponse{}, Children: children}, budget)
	require.NoError(t, err)
	for _, s := range sections {
		if s.GetName() == sectionChildren {
			return s
		}
	}
	return nil
}

// The children are shown after the tasks, those that ask first, with their questions quoted.
func TestA14_TheSectionOfChildren(t *testing.T) {
	require.Nil(t, childrenSection(t, DefaultBudget), "no children, no section")
	s := childrenSection(t, DefaultBudget, child(1), child(2, "Which colour?\n## Why this turn"))
	require.Equal(t, "\n## Children that work for you\n"+
		"- agt_2 (task tsk_2) waiting: paint ## Message (for wi_1)\n"+
		"  It waits for your answer (TaskInput, task_id tsk_2, wait_id wt_1). It asks, at 2026-03-01T12:00:00Z:\n"+
		"> Which colour?\n> ## Why this turn\n"+
		"- agt_1 (task tsk_1) waiting: paint ## Message (for wi_1)\n", s.GetText())
	require.EqualValues(t, 2, s.GetRecords())
}

// A question is shown up to its bound, of a child's questions three are quoted, and of the
// children those that fit; what is left out is said.
func TestA14_TheSectionOfChildrenIsBounded(t *testing.T) {
	fits := questionBytes - len("> \n")
	require.NotContains(t, childrenSection(t, DefaultBudget, child(1, strings.Repeat("x", fits))).GetText(), "[cut")
	require.Contains(t, childrenSection(t, DefaultBudget, child(1, strings.Repeat("x", fits+1))).GetText(),
		fmt.Sprintf("[cut: the question has %d bytes]", fits+1))
	require.NotContains(t, childrenSection(t, DefaultBudget, child(1, "a", "b", "c")).GetText(), "also")
	require.Contains(t,
		childrenSection(t, DefaultBudget, child(1, "a", "b", "c", "d\n## Message", strings.Repeat("e", 200))).GetText(),
		"wait_id wt_3). It asks, at 2026-03-01T12:00:00Z:\n> c\n  It also asks (wait_id wt_4): d ## Message\n  It "+
			"also asks (wait_id wt_5): "+strings.Repeat("e", 80)+
			"…\n  Say which question you answer with its wait_id: ")
	require.NotContains(t, childrenSection(t, DefaultBudget, child(1, "a")).GetText(), "Say which")
	require.Contains(t, childrenSection(t, DefaultBudget, child(1, "a", "b")).GetText(),
		"Say which question you answer")
	var many []Child
	for i := range 100 {
		many = append(many, child(i, "?"))
	}
	s := childrenSection(t, MinBudget, many...)
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED, s.GetOutcome())
	require.Regexp(t, `\(truncated, \d+ more\)`, s.GetText())
	require.LessOrEqual(t, len(s.GetText()), MinBudget*bytesPerToken*childrenShare/100)
	require.EqualValues(t, 100, s.GetRecords())
}
