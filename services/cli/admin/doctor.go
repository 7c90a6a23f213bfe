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

	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// DoctorOptions is how the doctor reaches a server.
type DoctorOptions struct {
	Address    string
	TLS, Token bool
	Now        func() time.Time
}

// Finding is what the doctor says about one thing.
type Finding struct {
	Check   string `json:"check"`
	Status  string `json:"status"` // ok, warning, problem, skipped
	Message string `json:"message"`
	Mend    string `json:"mend,omitempty"`
}

// diagnosis is the doctor's answer as JSON.
type diagnosis struct {
	OK       bool      `json:"ok"` // there is no problem
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// Examine checks an installation and returns a finding for each check.
type Examine func(ctx context.Context, conn grpc.ClientConnInterface, o DoctorOptions) []Finding

// DoctorCommand returns `quartet doctor`. servers are the servers' settings.
func DoctorCommand(s *session.Session, examine Examine, servers *pflag.FlagSet) *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Say what is wrong with an installation, and how to mend it", Args: input.None,
		Long: `Look at an installation from both sides: as a client of the server at --address
(connection, credential, clock, version), and at what a server would find here
with the same flags, variables and file as "quartet dev" and "quartet serve"
(settings, data directory, disk, NATS, ports, certificates, identity provider).
Nothing is changed. The exit code is 1 if there is a problem; warnings are none.`,
		Example: "  quartet doctor\n  quartet doctor --config quartet.yaml -o json\n  quartet doctor --address quartet.example.com:7481 --tls",
	}
	cmd.Flags().AddFlagSet(servers)
	connected := s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		if examine == nil {
			return errors.New("this binary has no doctor")
		}
		d := diagnosis{Findings: examine(cmd.Context(), conn, DoctorOptions{Address: s.Address(), TLS: s.UsesTLS(), Token: s.HasToken(), Now: s.Now})}
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
		// The server's flags of these names hide the client's; here they mean both.
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

func showDiagnosis(s *session.Session, cmd *cobra.Command, d diagnosis) error {
	p := output.New(cmd.OutOrStdout())
	if s.JSON() {
		out, err := json.MarshalIndent(d, "", "  ")
		p.Printf("%s\n", out)
		return errors.Join(err, p.Err())
	}
	colours := map[string]string{"ok": output.Green, "warning": output.Yellow, "problem": output.Red, "skipped": output.Dim}
	for _, f := range d.Findings {
		p.Printf("%s %-12s %s\n", p.Paint(colours[f.Status], fmt.Sprintf("%-8s", f.Status)), f.Check, output.Printable(f.Message))
		if f.Mend != "" {
			p.Printf("%-22s mend: %s\n", "", f.Mend)
		}
	}
	p.Printf("problems: %d, warnings: %d\n", d.Problems, d.Warnings)
	return p.Err()
}
