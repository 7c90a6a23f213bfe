package admin

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// VerifiedJournal is what `quartet verify` found in the journal of one partition. Its JSON form is stable.
type VerifiedJournal struct {
	Partition string   `json:"partition"`        // such as work/3
	Server    string   `json:"server,omitempty"` // the NATS server whose replica it is; absent: there is one copy
	Frames    uint64   `json:"frames"`
	Events    uint64   `json:"events"`
	End       string   `json:"end"` // hash of the last frame
	Damage    []string `json:"damage,omitempty"`
}

// Verify reads the journals of an installation with the servers' settings in flags.
type Verify func(ctx context.Context, flags *pflag.FlagSet) ([]VerifiedJournal, error)

// VerifyCommand returns `quartet verify`. shared are the servers' settings.
func VerifyCommand(s *session.Session, verify Verify, shared *pflag.FlagSet) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that the journals are complete and unchanged", Args: input.None,
		Long: `Read every journal from its beginning to its end, and report what is missing or
was changed: each frame names the hash of the one before it, and a witness in the data
directory says how far each journal was written. Nothing is changed. The exit code is 1
if a journal is damaged.

The journals of an embedded NATS server are read in a copy in the data directory, which
is removed afterwards: the server must not run, and there must be room for the copy.
With --nats-url servers may run, and in a cluster each replica is read.`,
		Example: "  quartet verify --data-dir /var/lib/quartet\n  quartet verify --nats-url nats://nats:4222 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if verify == nil {
				return errors.New("this binary has no servers")
			}
			all, err := verify(cmd.Context(), shared)
			if err != nil {
				return err
			}
			if err := showVerified(s, cmd, all); err != nil {
				return err
			}
			for _, v := range all {
				if len(v.Damage) > 0 {
					return exit.Silently(exit.Failed)
				}
			}
			return nil
		},
	}
	for _, name := range restoreSettings {
		if f := shared.Lookup(name); f != nil && name != "key-file" && name != "max-store-mib" && name != "replicas" {
			cmd.Flags().AddFlag(f)
		}
	}
	return cmd
}

// showVerified prints a line for each journal, and what is wrong with it.
func showVerified(s *session.Session, cmd *cobra.Command, all []VerifiedJournal) error {
	p := output.New(cmd.OutOrStdout())
	if s.JSON() {
		out, err := json.MarshalIndent(map[string][]VerifiedJournal{"journals": all}, "", "  ")
		p.Printf("%s\n", out)
		return errors.Join(err, p.Err())
	}
	damaged := 0
	for _, v := range all {
		status, colour := "ok", terminal.Green
		if len(v.Damage) > 0 {
			status, colour = "damaged", terminal.Red
			damaged++
		}
		name := v.Partition
		if v.Server != "" {
			name += " on " + v.Server
		}
		p.Printf("%s %-12s %9s frames %9s events  %s\n", p.Paint(colour, status+"       "[:8-len(status)]), name, strconv.FormatUint(v.Frames, 10), strconv.FormatUint(v.Events, 10), v.End)
		for _, text := range v.Damage {
			p.Printf("         %s\n", terminal.Printable(text))
		}
	}
	p.Printf("journals: %d, damaged: %d\n", len(all), damaged)
	return p.Err()
}
