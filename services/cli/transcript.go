package cli

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
)

func (ss *session) agentBriefs() *cobra.Command {
	req := &agentv1.ListBriefsRequest{}
	var kind string
	var pages paging
	cmd := &cobra.Command{
		Use: "briefs AGENT", Short: "List what an agent took up, reported and failed, newest first", Args: exactly("AGENT"),
		Long: `List an agent's briefs, newest first: short notices for people. "ack" says that a
message of yours was taken up, "result" is the report of a completed item or the
last word of a turn, "failure" a turn that failed for good. -o json has the texts
whole; "events -f --plane agent --type brief_written" tells of new ones.`,
		Example: "  quartet agent briefs keeper\n  quartet agent briefs keeper --kind result --item wi_01h455vb4pex5vsknk084sn02q\n  quartet agent briefs keeper --kind failure -o json",
	}
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only those of this item")
	cmd.Flags().StringVar(&kind, "kind", "", "Only ack, result or failure")
	pages.flags(cmd)
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		var err error
		if req.Kind, err = enum[agentv1.BriefKind]("kind", kind); err != nil {
			return err
		}
		req.AgentId, req.PageSize, req.PageToken = args[0], pages.size, pages.token
		resp, err := agentv1.NewAgentServiceClient(conn).ListBriefs(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			var rows [][]string
			for _, b := range resp.GetBriefs() {
				rows = append(rows, []string{short(b.GetKind()), when(b.GetCreatedAt()), b.GetWorkItemId(), b.GetTurnId(), brief(b.GetText(), 80)})
			}
			p.table("no briefs", []string{"KIND", "AT", "ITEM", "TURN", "TEXT"}, rows)
			p.next(resp.GetNextPageToken())
		})
	})
	return cmd
}

// Where a round's text and what belongs to a call stand.
const (
	roundIndent = "  "
	callIndent  = "      "
)

func (ss *session) agentRounds() *cobra.Command {
	req := &agentv1.ListRoundsRequest{}
	var whole bool
	var pages paging
	cmd := &cobra.Command{
		Use: "rounds AGENT", Short: "Show the transcript: what the model said and called, and what came of it", Args: exactly("AGENT"), Aliases: []string{"transcript"},
		Long: `Show an agent's transcript: of each round the text, the tool calls and their
results, in the order in which they happened. A page has the newest rounds; the
one after it those before. Nothing is ever too old for it. Texts are cut to a few
lines unless --full is given; -o json has everything, the newest round first.

A private child's rounds are shown to operators, never to its parent.`,
		Example: `  quartet agent rounds keeper
  quartet agent rounds keeper --turn trn_01h455vb4pex5vsknk084sn02q --full
  quartet agent rounds keeper --item wi_01h455vb4pex5vsknk084sn02q -o json`,
	}
	cmd.Flags().StringVar(&req.TurnId, "turn", "", "Only the rounds of this turn; agent turns lists them")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only the rounds that this item was bound to")
	cmd.Flags().BoolVar(&whole, "full", false, "Texts, arguments and results in full")
	pages.flags(cmd)
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.PageSize, req.PageToken = args[0], pages.size, pages.token
		resp, err := agentv1.NewAgentServiceClient(conn).ListRounds(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			rounds := resp.GetRounds()
			for i := len(rounds) - 1; i >= 0; i-- {
				p.round(rounds[i], whole)
			}
			if len(rounds) == 0 {
				p.printf("no rounds\n")
			}
			p.next(resp.GetNextPageToken())
		})
	})
	return cmd
}

// round writes one round: a line about it, its text, its calls.
func (p *printer) round(r *agentv1.Round, whole bool) {
	about := []string{when(r.GetCreatedAt())}
	if r.GetWorkItemId() != "" {
		about = append(about, r.GetWorkItemId())
	}
	if u := r.GetUsage(); u.GetInputTokens()+u.GetOutputTokens() > 0 {
		about = append(about, number(u.GetInputTokens())+" tokens in, "+number(u.GetOutputTokens())+" out")
	}
	p.printf("%s  %s\n", p.paint(bold, r.GetTurnId()+" round "+number(r.GetIndex()+1)), p.paint(dim, strings.Join(about, "  ")))
	p.block(roundIndent, r.GetText(), whole, 6)
	results := map[string]*agentv1.ToolResult{}
	for _, result := range r.GetToolResults() {
		results[result.GetCallId()] = result
	}
	for _, result := range r.GetLocalToolResults() {
		p.call(result.GetToolName(), "by the runner", nil, result, whole)
	}
	for _, c := range r.GetToolCalls() {
		p.call(c.GetName(), "", c.GetArguments(), results[c.GetCallId()], whole)
	}
}

// call writes one call and what came of it.
func (p *printer) call(name, whose string, arguments *structpb.Struct, r *agentv1.ToolResult, whole bool) {
	sign, colour := "✓", green
	command, failed := client.CommandOf(r)
	switch {
	case r == nil:
		sign, colour = "…", yellow // the round was submitted, and this has not ended yet
	case r.GetStatus() != agentv1.ToolStatus_TOOL_STATUS_SUCCESS, failed:
		sign, colour = "✗", red
	}
	if !whole && len(arguments.GetFields()) > 0 {
		whose = brief(object(arguments, ""), 80)
	}
	p.printf("%s\n", strings.TrimRight(roundIndent+p.paint(colour, sign+" "+printable(name))+" "+p.paint(dim, whose), " "))
	if whole {
		p.block(callIndent, object(arguments, "  "), true, 0)
	}
	if e := r.GetError(); e != nil {
		p.block(callIndent, e.GetKind()+": "+e.GetMessage(), whole, 2)
		if e.GetRecoveryHint() != "" {
			p.block(callIndent, "mend: "+e.GetRecoveryHint(), whole, 2)
		}
	} else {
		p.block(callIndent, cmp.Or(command, r.GetSummaryText()), whole, 2)
	}
	if whole {
		p.block(callIndent, object(r.GetResult(), "  "), true, 0)
	}
}

// block writes text behind an indent: whole as it stands, or folded to at most
// lines.
func (p *printer) block(indent, text string, whole bool, lines int) {
	text = strings.TrimRight(printable(text), "\n")
	if text == "" {
		return
	}
	out := strings.Split(text, "\n")
	if !whole {
		out = fold(text, p.columns()-len(indent), lines)
	}
	for _, l := range out {
		p.printf("%s\n", strings.TrimRight(indent+l, " "))
	}
}

// object is JSON for eyes, each level behind an indent; "" if it has nothing in
// it.
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

func (ss *session) agentContext() *cobra.Command {
	req := &agentv1.GetContextRequest{}
	var text bool
	cmd := &cobra.Command{
		Use: "context AGENT", Short: "Show what the model would be told now", Args: exactly("AGENT"),
		Long: `Show what a model would be told if a turn began now, and how its parts fare within
the budget: full, compact, truncated or omitted. The item in focus, its plan and
its open todos survive any budget; what does not even hold them is refused with
BASELINE_OVER_BUDGET. --text prints the text alone, as the model gets it.`,
		Example: "  quartet agent context keeper\n  quartet agent context keeper --budget 1000\n  quartet agent context keeper --text | less",
	}
	cmd.Flags().Int32Var(&req.BudgetTokens, "budget", 0, "Tokens that the text may take, 512 to 200000; 4 bytes are one (default 4096)")
	cmd.Flags().BoolVar(&text, "text", false, "Print the text alone")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId = args[0]
		resp, err := agentv1.NewAgentServiceClient(conn).GetContext(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			c := resp.GetContext()
			if !text {
				p.fields("tokens", number(c.GetTokens())+" of "+number(c.GetBudgetTokens()))
				p.printf("\n")
				var rows [][]string
				for _, s := range c.GetSections() {
					rows = append(rows, []string{printable(s.GetName()), short(s.GetOutcome()), number(s.GetTokens()), number(s.GetRecords())})
				}
				p.table("no sections", []string{"SECTION", "SHOWN", "TOKENS", "RECORDS"}, rows)
				p.printf("\n")
			}
			p.block("", c.GetText(), true, 0)
		})
	})
	return cmd
}

func (ss *session) agentTools() *cobra.Command {
	cmd := &cobra.Command{
		Use: "tools AGENT [TOOL]", Short: "List the tools that an agent may call, or describe one",
		Long: `List the tools that an agent may call, by its profile and your credential; a "*"
marks those that change something. With TOOL, show all that a model is told of
it: when to use it, and the JSON Schema of its arguments.`,
		Example: "  quartet agent tools keeper\n  quartet agent tools keeper CompleteWorkItem\n  quartet agent tools keeper -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("AGENT", "TOOL")(cmd, args)
			}
			return exactly("AGENT")(cmd, args)
		},
	}
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := agentv1.NewAgentServiceClient(conn).ListTools(cmd.Context(), &agentv1.ListToolsRequest{AgentId: args[0]})
		if err != nil {
			return err
		}
		if len(args) == 1 {
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, s := range resp.GetTools() {
					rows = append(rows, []string{s.GetName(), mark(s.GetMutates()), short(s.GetFamily()), brief(s.GetDescription(), 70)})
				}
				p.table("no tools", []string{"TOOL", "*", "FAMILY", "WHAT"}, rows)
			})
		}
		for _, s := range resp.GetTools() {
			if strings.EqualFold(s.GetName(), args[1]) {
				return ss.show(cmd, s, func(p *printer) {
					p.fields("tool", s.GetName(), "family", short(s.GetFamily()), "changes", yes(s.GetMutates()))
					p.printf("\n")
					p.block("", s.GetDescription(), true, 0)
					p.printf("\n")
					p.block("", object(s.GetInputSchema(), "  "), true, 0)
				})
			}
		}
		return fault.NotFound.Newf("agent %q has no tool %q; list them with: quartet agent tools %s", args[0], args[1], args[0])
	})
	return cmd
}
