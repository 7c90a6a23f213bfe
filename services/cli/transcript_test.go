package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func (p *planes) ListBriefs(ctx context.Context, r *agentv1.ListBriefsRequest) (*agentv1.ListBriefsResponse, error) {
	resp := &agentv1.ListBriefsResponse{NextPageToken: "abc", Briefs: []*agentv1.Brief{
		{
			BriefId: "brf_2", Kind: agentv1.BriefKind_BRIEF_KIND_RESULT, CreatedAt: at, WorkItemId: "wi_1",
			TurnId: "trn_1", Text: "Release 1.4 is out.\nNothing is left.\x1b[2J",
		},
		{
			BriefId: "brf_1", Kind: agentv1.BriefKind_BRIEF_KIND_ACK, CreatedAt: at, TurnId: "trn_1",
			Text: strings.Repeat("Prepare the release ", 10),
		},
	}}
	if r.GetKind() != agentv1.BriefKind_BRIEF_KIND_UNSPECIFIED {
		resp = &agentv1.ListBriefsResponse{}
	}
	if r.GetPageToken() == removedToken {
		resp = &agentv1.ListBriefsResponse{HistoryRemoved: true}
	}
	return resp, p.record(ctx, r)
}

func (p *planes) ListRounds(ctx context.Context, r *agentv1.ListRoundsRequest) (*agentv1.ListRoundsResponse, error) {
	if r.GetPageToken() != "" {
		return &agentv1.ListRoundsResponse{HistoryRemoved: r.GetPageToken() == removedToken}, p.record(ctx, r)
	}
	args := func(m map[string]any) *structpb.Struct {
		s, _ := structpb.NewStruct(m)
		return s
	}
	long := strings.Repeat("The tests run on every machine that we promise to support. ", 12)
	return &agentv1.ListRoundsResponse{NextPageToken: "abc", Rounds: []*agentv1.Round{
		{
			TurnId: "trn_1", Index: 2, CreatedAt: at, WorkItemId: "wi_1", Text: long + "\nリリース is out. \x1b[31m",
			ToolCalls: []*agentv1.ToolCall{
				{CallId: "c3", Name: "CompleteWorkItem", Arguments: args(map[string]any{"work_item_id": "wi_1"})},
			},
		},
		{
			TurnId: "trn_1", Index: 1, CreatedAt: at, WorkItemId: "wi_1", Usage: &agentv1.TokenUsage{
				InputTokens: 25, OutputTokens: 15,
			},
			LocalToolCalls: []*agentv1.ToolCall{
				{
					CallId: "l1", Name: "WorkspaceWrite",
					Arguments: args(map[string]any{"path": "notes.md", "text": "a"}),
				},
				{CallId: "l2", Name: "WorkspaceEdit", Arguments: args(map[string]any{"path": "lost.md"})},
			},
			LocalToolResults: []*agentv1.ToolResult{
				{
					CallId: "l1", ToolName: "WorkspaceWrite", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS,
					SummaryText: "WorkspaceWrite succeeded: notes.md",
				},
			},
			ToolCalls: []*agentv1.ToolCall{
				{CallId: "c1", Name: "ExecCommand", Arguments: args(map[string]any{"cmd": "make <all> && echo " +
					"\x1b]0;x\a"})},
				{CallId: "c2", Name: "Fly"},
			},
			ToolResults: []*agentv1.ToolResult{
				{
					CallId: "c1", ToolName: "ExecCommand", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS,
					SummaryText: "ExecCommand succeeded: tsk_1",
					Result: args(map[string]any{"output": "oh\n", "task": map[string]any{
						"task_id": "tsk_1",
						"state":   "failed", "end_message": "exit code 2",
					}}),
				},
				{CallId: "c2", ToolName: "Fly", Status: agentv1.ToolStatus_TOOL_STATUS_ERROR, Error: &agentv1.ToolError{
					Kind: "tool_not_available", Message: `there is no tool "Fly"`,
					RecoveryHint: "use one of ListTools",
				}},
			},
		},
		{TurnId: "trn_1", CreatedAt: at, Text: "I look first.", ConversationSummary: &agentv1.ConversationSummary{
			Text: "They agreed\x1b[31m on Monday.", ThroughTurnId: "trn_0",
		}},
	}}, p.record(ctx, r)
}

func (p *planes) ListConversation(ctx context.Context, r *agentv1.ListConversationRequest) (
	*agentv1.ListConversationResponse, error,
) {
	if r.GetPageToken() != "" {
		return &agentv1.ListConversationResponse{HistoryRemoved: r.GetPageToken() == removedToken}, p.record(ctx, r)
	}
	return &agentv1.ListConversationResponse{NextPageToken: "abc", Utterances: []*agentv1.Utterance{
		{
			Speaker: agentv1.Speaker_SPEAKER_AGENT, Text: "Teal, you said.\n\x1b[31m", TurnId: "trn_1",
			WorkItemId: "wi_1", CreatedAt: at,
		},
		{
			Speaker: agentv1.Speaker_SPEAKER_OPERATOR, Text: "My favourite colour is teal.", MessageId: "msg_1",
			CreatedAt: at,
		},
	}}, p.record(ctx, r)
}

func (p *planes) GetContext(ctx context.Context, r *agentv1.GetContextRequest) (*agentv1.GetContextResponse, error) {
	return &agentv1.GetContextResponse{Context: &agentv1.ContextProjection{
		Text: "# Your work\n\n  the objective\x1b[2J names it\n", Tokens: 900, BudgetTokens: max(r.GetBudgetTokens(),
			1000),
		Sections: []*agentv1.ContextSection{
			{Name: "current_item", Outcome: agentv1.SectionOutcome_SECTION_OUTCOME_FULL, Tokens: 800, Records: 1},
			{Name: "queued", Outcome: agentv1.SectionOutcome_SECTION_OUTCOME_COMPACT, Tokens: 100, Records: 12},
			{Name: "completed", Outcome: agentv1.SectionOutcome_SECTION_OUTCOME_OMITTED, Records: 3},
		},
	}}, p.record(ctx, r)
}

func (p *planes) ListTools(ctx context.Context, r *agentv1.ListToolsRequest) (*agentv1.ListToolsResponse, error) {
	schema, _ := structpb.NewStruct(map[string]any{"type": "object", "properties": map[string]any{
		"work_item_id": map[string]any{"type": "string"},
	}})
	return &agentv1.ListToolsResponse{Tools: []*agentv1.ToolSpec{
		{
			Name: "CompleteWorkItem", Mutates: true, Family: agentv1.ToolFamily_TOOL_FAMILY_CORE, InputSchema: schema,
			Description: "Complete an item. Only when nothing is left to do: the text beside the call becomes its " +
				"report, and a report never changes.",
		},
		{
			Name: "ExecCommand", Mutates: true, Family: agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT,
			Description: "Run a command.",
		},
		{Name: "ListWorkItems", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE, Description: "List items."},
	}}, p.record(ctx, r)
}

// SPEC C1 to C4: the flags of the transcript commands reach the requests.
func TestC3_TranscriptRequests(t *testing.T) {
	r := newHarness(t)
	require.Zero(t, r.run("agent", "briefs", "keeper", "--kind", "result", "--item", "wi_1", "--page-size", "7",
		"--page-token", "p").code)
	briefs, ok := r.planes.last.(*agentv1.ListBriefsRequest)
	require.True(t, ok)
	require.Equal(t, "keeper wi_1 BRIEF_KIND_RESULT p",
		strings.Join([]string{
			briefs.GetAgentId(), briefs.GetWorkItemId(), briefs.GetKind().String(),
			briefs.GetPageToken(),
		}, " "))
	require.EqualValues(t, 7, briefs.GetPageSize())

	require.Zero(t, r.run("agent", "rounds", "keeper", "--turn", "trn_1", "--item", "wi_1", "--page-size", "3").code)
	rounds, ok := r.planes.last.(*agentv1.ListRoundsRequest)
	require.True(t, ok)
	require.Equal(t, "keeper trn_1 wi_1",
		strings.Join([]string{rounds.GetAgentId(), rounds.GetTurnId(), rounds.GetWorkItemId()}, " "))
	require.EqualValues(t, 3, rounds.GetPageSize())

	require.Zero(t, r.run("agent", "context", "keeper", "--budget", "2000").code)
	budget, ok := r.planes.last.(*agentv1.GetContextRequest)
	require.True(t, ok)
	require.EqualValues(t, 2000, budget.GetBudgetTokens())
}
