package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// DoctorOptions describe the connection to the server that is diagnosed.
type DoctorOptions struct {
	Address    string
	TLS, Token bool             // it uses TLS, it has a credential
	Now        func() time.Time // this machine's clock
}

// Finding is the result of one check. Its JSON form is stable.
type Finding struct {
	Check   string `json:"check"`
	Status  string `json:"status"` // ok, warning, problem, skipped
	Message string `json:"message"`
	Mend    string `json:"mend,omitempty"`
}

// diagnosis is the JSON output of `quartet doctor`.
type diagnosis struct {
	OK       bool      `json:"ok"` // there are no problems
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// Examine checks an installation and returns the findings. A check may have several, and one that another finding makes
// pointless has none.
type Examine func(ctx context.Context, conn grpc.ClientConnInterface, o DoctorOptions) []Finding

// DoctorCommand returns `quartet doctor`. servers are the servers' settings.
func DoctorCommand(s *session.Session, examine Examine, servers *pflag.FlagSet) *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find problems of an installation, and show how to fix them", Args: input.None,
		Long: `Check an installation in two ways: as a client of the server at --address
(connection, credential, clock, version, planes, store, events, journals), and on this machine with the same flags,
variables and file as "quartet dev" and "quartet serve" (settings, data directory,
disk, NATS, ports, certificates, identity provider). Nothing is changed. The exit
code is 1 if there is a problem; a warning is not a problem.`,
		Example: "  quartet doctor\n  quartet doctor --config quartet.yaml -o json\n  quartet doctor --address " +
			"quartet.example.com:7481 --tls",
	}
	cmd.Flags().AddFlagSet(servers)
	connected := s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		if examine == nil {
			return errors.New("this binary has no doctor")
		}
		d := diagnosis{
			Findings: examine(cmd.Context(), conn, DoctorOptions{
				Address: s.Address(), TLS: s.UsesTLS(),
				Token: s.HasToken(), Now: s.Now,
			}),
		}
		for _, f := range d.Findings {
			switch f.Status {
			case "problem":
				d.Problems++
			case "warning":
				d.Warnings++
			}
		}
		d.OK = d.Problems == 0
		if err := showDiagnosis(s, cmd, d); err != nil || d.OK {
			return err
		}
		return exit.Silently(exit.Failed)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// The servers' flags of these names hide the client's; for this command they set both.
		for _, name := range []string{"tls-ca-file", "tls-cert-file", "tls-key-file"} {
			if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
				if err := cmd.Root().PersistentFlags().Set(name, f.Value.String()); err != nil {
					return err
				}
			}
		}
		return connected(cmd, args)
	}
	return cmd
}

// showDiagnosis prints the findings and their number.
func showDiagnosis(s *session.Session, cmd *cobra.Command, d diagnosis) error {
	p := output.New(cmd.OutOrStdout())
	if s.JSON() {
		out, err := json.MarshalIndent(d, "", "  ")
		p.Printf("%s\n", out)
		return errors.Join(err, p.Err())
	}
	colours := map[string]string{
		"ok": terminal.Green, "warning": terminal.Yellow, "problem": terminal.Red,
		"skipped": terminal.Dim,
	}
	for _, f := range d.Findings {
		p.Printf("%s %-12s %s\n", p.Paint(colours[f.Status], fmt.Sprintf("%-8s", f.Status)), f.Check,
			terminal.Printable(f.Message))
		if f.Mend != "" {
			p.Printf("%-22s fix: %s\n", "", f.Mend)
		}
	}
	p.Printf("problems: %d, warnings: %d\n", d.Problems, d.Warnings)
	return p.Err()
}
