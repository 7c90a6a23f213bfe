package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/auditchain"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// auditPoll is how often `quartet audit -f` asks for new entries.
const auditPoll = time.Second

// AuditCommand returns `quartet audit`.
func AuditCommand(s *session.Session) *cobra.Command {
	req := &auditv1.ListAuditRequest{PageSize: 500}
	var follow, verify bool
	var since, until string
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who did what, from where, with which key", Args: input.None,
		Long: `Show the audit log, oldest entry first; -o json writes each entry as a line of
JSON. It has the life of API keys, reads of what only admins see, exports, what
stopped or ended work of others, and the credentials that were refused, counted
by source and minute. It takes the role admin, which sees its namespace, or
installation_admin.

--verify checks that the entries are one chain: that none was changed, removed or
inserted. Keep the last hash that it prints elsewhere, to notice later that
entries were cut off at the end.`,
		Example: `  quartet audit --since 1h
  quartet audit -f -o json | jq -r '.principal + " " + .method'
  quartet audit --verify`,
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "Follow new entries, until ^C")
	f.BoolVar(&verify, "verify", false, "Check the chain of all entries instead of showing them")
	f.StringVar(&since, "since", "", "Only entries since this time, or this long ago, such as 1h")
	f.StringVar(&until, "until", "", "Only entries before this time")
	f.StringVar(&req.Namespace, "namespace", "", "Only entries about this namespace")
	f.StringVar(&req.Principal, "principal", "", "Only entries of this caller")
	f.StringVar(&req.KeyId, "key", "", "Only entries of calls with this key, or about it")
	f.StringVar(&req.Method, "method", "", "Only entries of this method, such as RevokeKey")
	f.Int64Var(&req.After, "after", 0, "Only entries after this number")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		var err error
		if req.Since, err = past("since", since, s.Zone()); err != nil {
			return err
		}
		if req.Until, err = past("until", until, s.Zone()); err != nil {
			return err
		}
		if verify && (follow || since != "" || until != "" ||
			slices.ContainsFunc([]string{"namespace", "principal", "key", "method", "after"}, f.Changed)) {
			return exit.UsageError("--verify reads all entries; leave out the other flags")
		}
		client, p := auditv1.NewAuditServiceClient(conn), s.Printer(cmd)
		if verify {
			return verifyAudit(cmd, s, client, p, req)
		}
		return readAudit(cmd, client, req, follow, func(e *auditv1.AuditEntry) error {
			if s.JSON() {
				p.JSONLine(e)
			} else {
				writeAudit(p, e)
			}
			return p.Err()
		})
	})
	return cmd
}

// past reads a time as input.Time does. A duration, such as 1h, is the time that long before now.
func past(flag, text string, zone *time.Location) (*timestamppb.Timestamp, error) {
	if d, err := input.Duration(flag, text); err == nil && d != nil {
		return timestamppb.New(time.Now().Add(-d.AsDuration())), nil
	}
	return input.Time(flag, text, zone)
}

// readAudit calls each for the entries that req asks for, and with follow for new ones until the command ends.
func readAudit(cmd *cobra.Command, client auditv1.AuditServiceClient, req *auditv1.ListAuditRequest, follow bool,
	each func(e *auditv1.AuditEntry) error,
) error {
	for {
		resp, err := client.ListAudit(cmd.Context(), req)
		if err != nil {
			return err
		}
		for _, e := range resp.GetEntries() {
			if err := each(e); err != nil {
				return err
			}
		}
		switch {
		case resp.GetNextPageToken() != "":
			req.PageToken = resp.GetNextPageToken()
		case !follow:
			return nil
		default:
			req.PageToken, req.After = "", max(resp.GetLastNumber(), 1)
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(auditPoll):
			}
		}
	}
}

// verifyAudit checks the chain of all entries.
func verifyAudit(cmd *cobra.Command, s *session.Session, client auditv1.AuditServiceClient, p *output.Printer,
	req *auditv1.ListAuditRequest,
) error {
	var last *auditv1.AuditEntry
	err := readAudit(cmd, client, req, false, func(e *auditv1.AuditEntry) error {
		if err := auditchain.Check(last, e); err != nil {
			return fmt.Errorf("the audit log is damaged, or you do not see all of it (that takes the role "+
				"installation_admin): %w", err)
		}
		last = e
		return nil
	})
	switch {
	case err != nil:
		return err
	case s.JSON():
		p.JSONLine(last)
	default:
		p.Printf("%s one chain. Last hash: %s\n", terminal.Count(last.GetNumber(), "entry is", "entries are"),
			last.GetHash())
	}
	return p.Err()
}

// writeAudit writes an entry as one line: number, time, who, from where, what, about what, and how it
// ended.
func writeAudit(p *output.Printer, e *auditv1.AuditEntry) {
	text := output.Pad(fmt.Sprint(e.GetNumber()), 8) + p.Paint(terminal.Dim, p.Milliseconds(e.GetAt())) + "  "
	if e.GetKind() == auditv1.AuditKind_AUDIT_KIND_REFUSED_LOGINS {
		p.Printf("%s%d credentials refused from %s in the minute of %s\n", text, e.GetCount(), orServer(e.GetSource()),
			p.Minute(e.GetMinute()))
		return
	}
	_, method, _ := strings.Cut(e.GetMethod(), "/")
	who := e.GetNamespace() + "/" + e.GetPrincipal()
	if e.GetKeyId() != "" {
		who += " (" + e.GetKeyId() + ")"
	}
	ending := "begins"
	if e.GetKind() == auditv1.AuditKind_AUDIT_KIND_OUTCOME {
		if ending = e.GetCode(); e.GetReason() != "" {
			ending = e.GetReason()
		}
	}
	var about []string
	for name, value := range e.GetTarget() {
		about = append(about, name+"="+value)
	}
	slices.Sort(about)
	text += output.Pad(who, 24) + output.Pad(orServer(e.GetSource()), 16) +
		p.Paint(terminal.Bold, output.Pad(method, 24)) + output.Pad(ending, 20) + strings.Join(about, " ")
	p.Printf("%s\n", strings.TrimRight(text, " "))
}

// orServer returns the address source, or "the server" if that is empty because the call came from
// the server's own process.
func orServer(source string) string {
	if source == "" {
		return "the server"
	}
	return source
}
