package admin

import (
	"strconv"

	"github.com/spf13/cobra"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// UsageCommand returns `quartet usage`.
func UsageCommand(s *session.Session) *cobra.Command {
	namespace, all := "", false
	cmd := &cobra.Command{
		Use: "usage", Short: "Show the quotas of a namespace, and what it uses", Args: input.None,
		Long: `Show the quotas of a namespace, and how much of them it uses. It takes the role
admin, which sees its own namespace, or installation_admin. A quota without a number
under USED is a rate, or is counted by each process.

With --all-namespaces, for an installation_admin, the 100 namespaces that have written
most, with their agents, open items and the bytes of their journal lines.`,
		Example: "  quartet usage\n  quartet usage --namespace acme -o json\n  quartet usage --all-namespaces",
		RunE: session.Call(s, identityv1.NewIdentityServiceClient, identityv1.IdentityServiceClient.GetUsage,
			func(_ []string) (*identityv1.GetUsageRequest, error) {
				return &identityv1.GetUsageRequest{Namespace: namespace, AllNamespaces: all}, nil
			},
			func(p *output.Printer, resp *identityv1.GetUsageResponse) {
				if all {
					largest(p, resp)
					return
				}
				rows := [][]string{}
				for _, q := range resp.GetQuotas() {
					used, limit := "", "none"
					if q.Value != nil {
						used = strconv.FormatInt(q.GetValue(), 10)
					}
					if q.GetLimit() > 0 {
						limit = strconv.FormatInt(q.GetLimit(), 10)
					}
					rows = append(rows, []string{q.GetKind(), used, limit})
				}
				p.Table("no quotas", []string{"QUOTA", "USED", "LIMIT"}, rows)
			}),
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "The namespace (default: the caller's)")
	cmd.Flags().BoolVar(&all, "all-namespaces", false, "Show which namespaces hold most")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// largest shows the namespaces that hold most.
func largest(p *output.Printer, resp *identityv1.GetUsageResponse) {
	rows := [][]string{}
	for _, u := range resp.GetNamespaces() {
		rows = append(rows, []string{
			u.GetNamespace(), strconv.FormatInt(u.GetAgents(), 10),
			strconv.FormatInt(u.GetOpenItems(), 10), output.Bytes(uint64(max(u.GetBytes(), 0))),
		})
	}
	p.Table("no namespaces", []string{"NAMESPACE", "AGENTS", "OPEN ITEMS", "WRITTEN"}, rows)
	if more := int(resp.GetNamespaceCount()) - len(rows); more > 0 {
		p.Printf("and %d more\n", more)
	}
}
