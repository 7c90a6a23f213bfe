package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/agent/prompt"
	"quartet/tests/dev"
)

// S2-464, S2-465, SPEC B14, C1: an orchestrator's context shows its boards, as
// the board plane sums them up within --board-token-budget, whatever else there
// is to show; what must be shown is never displaced.
func TestC1_BoardsInAContext(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	steps := []*boardv1.StepInput{}
	for i := range 200 {
		steps = append(steps, &boardv1.StepInput{
			StepId: fmt.Sprintf("s%03d", i),
			Title:  fmt.Sprintf("Run the tests of package %03d", i),
		})
	}
	boards := boardv1.NewBoardServiceClient(r.Conn())
	must.Value(boards.CreateBoard(dev.Within(t), &boardv1.CreateBoardRequest{
		SessionId: "keeper", BoardId: "build", WalName: "build", Title: "Build it all", Steps: steps,
	}))(t)
	must.Value(boards.UpdateStep(dev.Within(t), &boardv1.UpdateStepRequest{
		SessionId: "keeper", BoardId: "build", StepId: "s007", Status: boardv1.StepStatus_STEP_STATUS_BLOCKED,
		Reason: "the registry is down\n## Work item of this turn",
	}))(t)
	shown := func(budget int32) (section *agentv1.ContextSection, text string) {
		c := must.Value(r.Agents.GetContext(dev.Within(t), &agentv1.GetContextRequest{
			AgentId: "keeper", BudgetTokens: budget,
		}))(t).GetContext()
		require.LessOrEqual(t, prompt.Tokens(c.GetText()), int(c.GetBudgetTokens()))
		require.Contains(t, c.GetText(), "Work item of this turn")
		for _, s := range c.GetSections() {
			if s.GetName() == "boards" {
				section = s
			}
		}
		return section, c.GetText()
	}
	section, text := shown(0)
	require.Contains(t, text, "- build [running] Build it all: 199 ready, 0 held, 1 blocked")
	require.Contains(t, text, "- build/s007 [blocked] Run the tests of package 007: the registry is down ## Work "+
		"item of this turn")
	require.Greater(t, section.GetTokens(), int32(1000), "the setting's 1 200 are used")
	require.LessOrEqual(t, section.GetTokens(), int32(1200+10))
	_, again := shown(0)
	require.Equal(t, text, again, "the same records give the same text")
	section, _ = shown(prompt.MinBudget)
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED, section.GetOutcome())
	require.Contains(t, section.GetText(), "board_get")

	// A turn's own context has them too, beside a message of any length.
	must.Value(r.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "How is the build?",
	}))(t)
	a := must.Value(r.Agents.AcquireTurn(dev.Within(t), &agentv1.AcquireTurnRequest{AgentIds: []string{"keeper"}}))(t)
	require.Contains(t, a.GetContext().GetText(), "- build/s007 [blocked]")
	require.Contains(t, a.GetContext().GetText(), "> How is the build?")

	// The setting bounds it, and a board that is over is not shown.
	r.Down()
	r.Cfg.BoardBudget = 200
	r.Up()
	section, text = shown(0)
	require.LessOrEqual(t, section.GetTokens(), int32(200+10))
	require.Contains(t, text, "- build/s007 [blocked]")
	must.Value(boards.CancelBoard(dev.Within(t), &boardv1.CancelBoardRequest{SessionId: "keeper", BoardId: "build"}))(t)
	section, _ = shown(0)
	require.Nil(t, section)
}
