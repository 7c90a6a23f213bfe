package cli

import (
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	workv1 "quartet/pkg/pb/quartet/work/v1"
)

func (ss *session) workHistory() *cobra.Command {
	var pages paging
	var oldest bool
	cmd := &cobra.Command{
		Use: "history AGENT ITEM", Short: "Show who changed a work item, when and how", Args: exactly("AGENT", "ITEM"), Aliases: []string{"log"},
		Long: `Show every mutation of a work item, the last one first: who, when, in which
run, and each field before and after. Nothing is ever too old for it.`,
		Example: `  quartet work history keeper wi_01h455vb4pex5vsknk084sn02q
  quartet work history keeper wi_01h455vb4pex5vsknk084sn02q --oldest-first -o json`,
	}
	cmd.Flags().BoolVar(&oldest, "oldest-first", false, "Begin with the creation")
	pages.flags(cmd)
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := workv1.NewWorkServiceClient(conn).ListWorkItemHistory(cmd.Context(), &workv1.ListWorkItemHistoryRequest{
			AgentId: args[0], WorkItemId: args[1], PageSize: pages.size, PageToken: pages.token, NewestFirst: !oldest,
		})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			for _, m := range resp.GetMutations() {
				mutation(p, m)
			}
			if len(resp.GetMutations()) == 0 {
				p.printf("nothing more\n")
			}
			p.next(resp.GetNextPageToken())
		})
	})
	return cmd
}

// mutation is one line, and one below it for each field.
func mutation(p *printer, m *workv1.WorkItemMutation) {
	who := []string{printable(m.GetPrincipal())}
	if m.GetTurnId() != "" {
		who = append(who, m.GetTurnId())
	}
	if m.GetReason() != "" {
		who = append(who, brief(m.GetReason(), 60))
	}
	p.printf("%s  %s  %s  rev %d  %s\n", p.paint(bold, number(m.GetNumber())), when(m.GetAt()), m.GetEventType(), m.GetRevision(), strings.Join(who, ", "))
	for _, c := range m.GetChanges() {
		p.printf("    %s: %s -> %s\n", c.GetField(), plain(c.GetFrom()), plain(c.GetTo()))
	}
}

// plain is a JSON value on one line; "-" is none.
func plain(v *structpb.Value) string {
	switch k := v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return "-"
	case *structpb.Value_StringValue:
		return brief(k.StringValue, 80)
	}
	b, err := json.Marshal(v.AsInterface())
	if err != nil {
		return "?"
	}
	return brief(string(b), 80)
}
