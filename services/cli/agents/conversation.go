package agents

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// conversationCommand returns `quartet agent conversation`.
func conversationCommand(s *session.Session) *cobra.Command {
	req := &agentv1.ListConversationRequest{}
	var since, until string
	var full bool
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "conversation AGENT", Short: "Show what was said to an agent and what it answered",
		Args: input.Exactly("AGENT"),
		Long: `Show what operators, channels and a supervisor said to an agent and what it
answered, in chronological order. The first page has the newest part, each further
page an older one, back to the beginning. With --contains, --since or --until one
page searches 1000 utterances and may be empty although more follow.

Texts are shortened to a few lines unless --full is given; -o json prints everything,
the newest first. "agent rounds" also shows tool calls and their results.`,
		Example: `  quartet agent conversation keeper
  quartet agent conversation keeper --contains "staging database"
  quartet agent conversation keeper --item wi_01h455vb4pex5vsknk084sn02q --since 2026-03-01T00:00:00Z --full`,
	}
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only what was said about this work item")
	cmd.Flags().StringVar(&req.Contains, "contains", "", "Only what contains each of these words")
	cmd.Flags().StringVar(&since, "since", "", "Only what was said at this time or later, RFC 3339")
	cmd.Flags().StringVar(&until, "until", "", "Only what was said before this time, RFC 3339")
	cmd.Flags().BoolVar(&full, "full", false, "Print texts in full")
	pages.Flags(cmd)
	cmd.RunE = session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListConversation,
		func(args []string) (*agentv1.ListConversationRequest, error) {
			var err error
			if since != "" {
				if req.Since, err = input.Time("since", since, s.Zone()); err != nil {
					return nil, err
				}
			}
			if until != "" {
				if req.Until, err = input.Time("until", until, s.Zone()); err != nil {
					return nil, err
				}
			}
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.Size, pages.Token
			return req, nil
		},
		func(p *output.Printer, resp *agentv1.ListConversationResponse) {
			said := resp.GetUtterances()
			if resp.GetHistoryRemoved() {
				p.Printf("%s\n", removed("messages and texts"))
			}
			for i := len(said) - 1; i >= 0; i-- {
				u := said[i]
				about := strings.TrimRight(p.Time(u.GetCreatedAt())+"  "+cmp.Or(u.GetMessageId(), u.GetTurnId())+"  "+
					u.GetWorkItemId(), " ")
				p.Printf("%s  %s\n", p.Paint(terminal.Bold, pbjson.EnumText(u.GetSpeaker())),
					p.Paint(terminal.Dim, about))
				p.Block(roundIndent, u.GetText(), full, 6)
			}
			if len(said) == 0 && !resp.GetHistoryRemoved() {
				p.Printf("nothing was said here\n")
			}
			p.NextPage(resp.GetNextPageToken())
		})
	return cmd
}
