package work

import (
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// historyCommand returns `quartet work history`.
func historyCommand(s *session.Session) *cobra.Command {
	var pages input.Paging
	var oldest bool
	cmd := &cobra.Command{
		Use: "history AGENT ITEM", Short: "Show who changed a work item, when and how",
		Args: input.Exactly("AGENT", "ITEM"), Aliases: []string{"log"},
		Long: `Show every change of a work item since its creation, the newest first: who made
it, when, in which run, and each field before and after.`,
		Example: `  quartet work history keeper wi_01h455vb4pex5vsknk084sn02q
  quartet work history keeper wi_01h455vb4pex5vsknk084sn02q --oldest-first -o json`,
	}
	cmd.Flags().BoolVar(&oldest, "oldest-first", false, "Start with the creation")
	pages.Flags(cmd)
	cmd.RunE = session.Call(s, workv1.NewWorkServiceClient, workv1.WorkServiceClient.ListWorkItemHistory,
		func(args []string) (*workv1.ListWorkItemHistoryRequest, error) {
			return &workv1.ListWorkItemHistoryRequest{
				AgentId: args[0], WorkItemId: args[1], PageSize: pages.Size, PageToken: pages.Token,
				NewestFirst: !oldest,
			}, nil
		},
		func(p *output.Printer, resp *workv1.ListWorkItemHistoryResponse) {
			for _, m := range resp.GetMutations() {
				writeMutation(p, m)
			}
			switch {
			case resp.GetHistoryRemoved():
				p.Printf("changes whose numbers are missing were removed: they are older than history is kept " +
					"(history-days)\n")
			case len(resp.GetMutations()) == 0:
				p.Printf("nothing more\n")
			}
			p.NextPage(resp.GetNextPageToken())
		})
	return cmd
}

// writeMutation writes a mutation as one line, and a line for each changed field.
func writeMutation(p *output.Printer, m *workv1.WorkItemMutation) {
	who := []string{terminal.Printable(m.GetPrincipal())}
	if m.GetTurnId() != "" {
		who = append(who, m.GetTurnId())
	}
	if m.GetReason() != "" {
		who = append(who, output.Shorten(m.GetReason(), 60))
	}
	p.Printf("%s  %s  %s  rev %d  %s\n", p.Paint(terminal.Bold, output.Number(m.GetNumber())), p.Time(m.GetAt()),
		m.GetEventType(), m.GetRevision(), strings.Join(who, ", "))
	for _, c := range m.GetChanges() {
		p.Printf("    %s: %s -> %s\n", c.GetField(), oneLine(c.GetFrom()), oneLine(c.GetTo()))
	}
}

// oneLine formats a JSON value on one line; "-" stands for no value.
func oneLine(v *structpb.Value) string {
	switch k := v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return "-"
	case *structpb.Value_StringValue:
		return output.Shorten(k.StringValue, 80)
	}
	b, err := json.Marshal(v.AsInterface())
	if err != nil {
		return "?"
	}
	return output.Shorten(string(b), 80)
}
