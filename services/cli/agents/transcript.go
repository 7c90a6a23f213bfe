package agents

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// briefsCommand returns `quartet agent briefs`.
func briefsCommand(s *session.Session) *cobra.Command {
	req := &agentv1.ListBriefsRequest{}
	var kind string
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "briefs AGENT", Short: "List an agent's briefs: acknowledgements, results and failures, newest first",
		Args: input.Exactly("AGENT"),
		Long: `List an agent's briefs, newest first. A brief is a short report for operators:
"ack" when a turn started for a message of yours, "result" with the report of a
completed work item or the final text of a turn, "failure" when a turn failed and
is not repeated. -o json prints the full texts; to follow new briefs use
"events -f --plane agent --type brief_written".`,
		Example: "  quartet agent briefs keeper\n  quartet agent briefs keeper --kind result --item " +
			"wi_01h455vb4pex5vsknk084sn02q\n  quartet agent briefs keeper --kind failure -o json",
	}
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only briefs about this work item")
	cmd.Flags().StringVar(&kind, "kind", "", "Only briefs of this kind: ack, result or failure")
	input.EnumChoices[agentv1.BriefKind](cmd, "kind")
	pages.Flags(cmd)
	cmd.RunE = session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListBriefs,
		func(args []string) (*agentv1.ListBriefsRequest, error) {
			var err error
			if req.Kind, err = input.Enum[agentv1.BriefKind]("kind", kind); err != nil {
				return nil, err
			}
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.Size, pages.Token
			return req, nil
		},
		func(p *output.Printer, resp *agentv1.ListBriefsResponse) {
			var rows [][]string
			for _, b := range resp.GetBriefs() {
				rows = append(rows, []string{
					pbjson.EnumText(b.GetKind()), p.Time(b.GetCreatedAt()), b.GetWorkItemId(),
					b.GetTurnId(), output.Flexible(b.GetText()),
				})
			}
			none := "no briefs"
			if resp.GetHistoryRemoved() {
				none = removed("briefs")
			}
			p.Table(none, []string{"KIND", "AT", "ITEM", "TURN", "TEXT"}, rows)
			if len(rows) > 0 && resp.GetHistoryRemoved() {
				p.Printf("%s\n", removed("briefs"))
			}
			p.NextPage(resp.GetNextPageToken())
		})
	return cmd
}

// removed returns the note of a list that ends early because older entries were removed.
func removed(what string) string {
	return "older " + what + " were removed: they are older than history is kept (history-days)"
}

// Indents of a round's text, and of the details of a call.
const (
	roundIndent = "  "
	callIndent  = "      "
)

// roundsCommand returns `quartet agent rounds`.
func roundsCommand(s *session.Session) *cobra.Command {
	req := &agentv1.ListRoundsRequest{}
	var full bool
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "rounds AGENT", Short: "Show the transcript: texts of the model, its tool calls and their results",
		Args: input.Exactly("AGENT"), Aliases: []string{"transcript"},
		Long: `Show an agent's transcript: for each round the text, the tool calls and their
results, in chronological order. The first page has the newest rounds, each further
page older ones, back to the agent's first. Texts are shortened to a few lines
unless --full is given; -o json prints everything, the newest round first.

Operators can read the rounds of a private child; its parent cannot.`,
		Example: `  quartet agent rounds keeper
  quartet agent rounds keeper --turn trn_01h455vb4pex5vsknk084sn02q --full
  quartet agent rounds keeper --item wi_01h455vb4pex5vsknk084sn02q -o json`,
	}
	cmd.Flags().StringVar(&req.TurnId, "turn", "", "Only the rounds of this turn; agent turns lists turns")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only the rounds that were bound to this work item")
	cmd.Flags().BoolVar(&full, "full", false, "Print texts, arguments and results in full")
	pages.Flags(cmd)
	cmd.RunE = session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListRounds,
		func(args []string) (*agentv1.ListRoundsRequest, error) {
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.Size, pages.Token
			return req, nil
		},
		func(p *output.Printer, resp *agentv1.ListRoundsResponse) {
			rounds := resp.GetRounds()
			if resp.GetHistoryRemoved() {
				p.Printf("%s\n", removed("rounds"))
			}
			for i := len(rounds) - 1; i >= 0; i-- {
				writeRound(p, rounds[i], full)
			}
			if len(rounds) == 0 && !resp.GetHistoryRemoved() {
				p.Printf("no rounds\n")
			}
			p.NextPage(resp.GetNextPageToken())
		})
	return cmd
}

// writeRound writes one round: a headline, its text, its calls.
func writeRound(p *output.Printer, r *agentv1.Round, full bool) {
	about := []string{p.Time(r.GetCreatedAt())}
	if r.GetWorkItemId() != "" {
		about = append(about, r.GetWorkItemId())
	}
	if u := r.GetUsage(); u.GetInputTokens()+u.GetOutputTokens() > 0 {
		about = append(about, output.Number(u.GetInputTokens())+" tokens in, "+output.Number(u.GetOutputTokens())+
			" out")
	}
	p.Printf("%s  %s\n", p.Paint(terminal.Bold, r.GetTurnId()+" round "+output.Number(r.GetIndex()+1)),
		p.Paint(terminal.Dim, strings.Join(about, "  ")))
	p.Block(roundIndent, r.GetText(), full, 6)
	if sum := r.GetConversationSummary(); sum != nil {
		about := "what was said before"
		if sum.GetThroughTurnId() != "" {
			about += ", through " + sum.GetThroughTurnId()
		}
		p.Printf("%s%s\n", roundIndent, p.Paint(terminal.Dim, "summary of "+about+":"))
		p.Block(callIndent, sum.GetText(), full, 2)
	}
	results := map[string]*agentv1.ToolResult{}
	for _, result := range r.GetToolResults() {
		results[result.GetCallId()] = result
	}
	local := map[string]*agentv1.ToolCall{}
	for _, c := range r.GetLocalToolCalls() {
		local[c.GetCallId()] = c
	}
	for _, result := range r.GetLocalToolResults() {
		writeCall(p, result.GetToolName(), "by the runner", local[result.GetCallId()].GetArguments(), result, full)
		delete(local, result.GetCallId())
	}
	for _, c := range r.GetLocalToolCalls() {
		if local[c.GetCallId()] != nil {
			writeCall(p, c.GetName(), "by the runner, outcome unknown", c.GetArguments(), nil, full)
		}
	}
	for _, c := range r.GetToolCalls() {
		writeCall(p, c.GetName(), "", c.GetArguments(), results[c.GetCallId()], full)
	}
}

// writeCall writes one tool call and its result. r is nil if there is no result, as while
// the call runs. note is printed behind the call.
func writeCall(p *output.Printer, name, note string, arguments *structpb.Struct, r *agentv1.ToolResult, full bool) {
	sign, colour := "✓", terminal.Green
	command, failed := client.CommandOf(r)
	switch {
	case r == nil:
		sign, colour = "…", terminal.Yellow // the round was submitted and this call has not ended
	case r.GetStatus() != agentv1.ToolStatus_TOOL_STATUS_SUCCESS, failed:
		sign, colour = "✗", terminal.Red
	}
	if !full && len(arguments.GetFields()) > 0 {
		note = strings.TrimSpace(output.Shorten(object(arguments, ""), 80) + " " + note)
	}
	p.Printf("%s\n", strings.TrimRight(roundIndent+p.Paint(colour, sign+" "+terminal.Printable(name))+" "+
		p.Paint(terminal.Dim, note), " "))
	if full {
		p.Block(callIndent, object(arguments, "  "), true, 0)
	}
	if e := r.GetError(); e != nil {
		p.Block(callIndent, e.GetKind()+": "+e.GetMessage(), full, 2)
		if e.GetRecoveryHint() != "" {
			p.Block(callIndent, "fix: "+e.GetRecoveryHint(), full, 2)
		}
	} else {
		p.Block(callIndent, cmp.Or(command, r.GetSummaryText()), full, 2)
	}
	if full {
		p.Block(callIndent, object(r.GetResult(), "  "), true, 0)
	}
}

// object formats s as JSON, each level indented; "" if s is empty.
func object(s *structpb.Struct, indent string) string {
	if len(s.GetFields()) == 0 {
		return ""
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if e.Encode(s.AsMap()) != nil {
		return ""
	}
	return b.String()
}

// contextCommand returns `quartet agent context`.
func contextCommand(s *session.Session) *cobra.Command {
	req := &agentv1.GetContextRequest{}
	var text bool
	cmd := &cobra.Command{
		Use: "context AGENT", Short: "Show the context that a model would get now", Args: input.Exactly("AGENT"),
		Long: `Show the context that a model would get if a turn started now, and how each
section fits into the budget of tokens: full, compact, truncated or omitted. The
work item in focus, its plan and its open todos are always included; a budget that
is too small for them is refused with BASELINE_OVER_BUDGET. --text prints only the
text, as the model gets it.`,
		Example: "  quartet agent context keeper\n  quartet agent context keeper --budget 1000\n  quartet agent " +
			"context keeper --text | less",
	}
	cmd.Flags().Int32Var(&req.BudgetTokens, "budget", 0, "Maximum size of the text in tokens, 512 to 200000; a token "+
		"is 4 bytes (default 4096)")
	cmd.Flags().BoolVar(&text, "text", false, "Print only the text")
	cmd.RunE = session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.GetContext,
		func(args []string) (*agentv1.GetContextRequest, error) {
			req.AgentId = args[0]
			return req, nil
		},
		func(p *output.Printer, resp *agentv1.GetContextResponse) {
			c := resp.GetContext()
			if !text {
				p.Fields("tokens", output.Number(c.GetTokens())+" of "+output.Number(c.GetBudgetTokens()))
				p.Printf("\n")
				var rows [][]string
				for _, section := range c.GetSections() {
					rows = append(rows, []string{
						terminal.Printable(section.GetName()),
						pbjson.EnumText(section.GetOutcome()), output.Number(section.GetTokens()),
						output.Number(section.GetRecords()),
					})
				}
				p.Table("no sections", []string{"SECTION", "SHOWN", "TOKENS", "RECORDS"}, rows)
				p.Printf("\n")
			}
			p.Block("", c.GetText(), true, 0)
		})
	return cmd
}

// toolsCommand returns `quartet agent tools`.
func toolsCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "tools AGENT [TOOL]", Short: "List the tools that an agent may call, or describe one",
		Long: `List the tools that an agent may call; they depend on its profile and on your
credential. A "*" marks tools that change something. With TOOL, show what a model
gets to know about it: when to use it, and the JSON Schema of its arguments.`,
		Example: "  quartet agent tools keeper\n  quartet agent tools keeper CompleteWorkItem\n  quartet agent tools " +
			"keeper -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return input.Exactly("AGENT", "TOOL")(cmd, args)
			}
			return input.Exactly("AGENT")(cmd, args)
		},
	}
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := agentv1.NewAgentServiceClient(conn).ListTools(cmd.Context(), &agentv1.ListToolsRequest{
			AgentId: args[0],
		})
		if err != nil {
			return err
		}
		if len(args) == 1 {
			return s.Show(cmd, resp, func(p *output.Printer) {
				var rows [][]string
				for _, tool := range resp.GetTools() {
					rows = append(rows, []string{
						tool.GetName(), output.Star(tool.GetMutates()),
						pbjson.EnumText(tool.GetFamily()), output.Flexible(tool.GetDescription()),
					})
				}
				p.Table("no tools", []string{"TOOL", "*", "FAMILY", "WHAT"}, rows)
			})
		}
		for _, tool := range resp.GetTools() {
			if strings.EqualFold(tool.GetName(), args[1]) {
				return s.Show(cmd, tool, func(p *output.Printer) {
					p.Fields("tool", tool.GetName(), "family", pbjson.EnumText(tool.GetFamily()), "changes",
						output.Yes(tool.GetMutates()))
					p.Printf("\n")
					p.Block("", tool.GetDescription(), true, 0)
					p.Printf("\n")
					p.Block("", object(tool.GetInputSchema(), "  "), true, 0)
				})
			}
		}
		return fault.NotFound.Newf("agent %q has no tool %q; list them with: quartet agent tools %s", args[0], args[1],
			args[0])
	})
	return cmd
}
