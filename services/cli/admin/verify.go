package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

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
	Partition string `json:"partition"`        // such as work/3
	Server    string `json:"server,omitempty"` // the NATS server whose replica it is; absent: there is one copy
	Frames    uint64 `json:"frames"`
	Events    uint64 `json:"events"`
	// How many segments and frames of these are in its archive; absent: none.
	ArchivedSegments int    `json:"archived_segments,omitempty"`
	ArchivedFrames   uint64 `json:"archived_frames,omitempty"`
	Erased           uint64 `json:"erased_events,omitempty"` // how many of the events were erased; absent: none
	// how many were removed because they were old, beside the events; absent: none
	Removed uint64   `json:"removed_events,omitempty"`
	End     string   `json:"end"` // hash of the last frame
	Damage  []string `json:"damage,omitempty"`
}

// VerifiedStream is what `quartet verify` found in a stream that is not a journal. Its JSON form is stable.
type VerifiedStream struct {
	Name      string   `json:"name"`             // EVENTS, quartet-output, or quartet-snapshot-<plane>-<partition>
	Server    string   `json:"server,omitempty"` // the NATS server whose replica it is; absent: there is one copy
	Messages  uint64   `json:"messages"`
	First     uint64   `json:"first,omitempty"` // sequence numbers; absent: it has no messages
	Last      uint64   `json:"last,omitempty"`
	Damage    []string `json:"damage,omitempty"`
	Again     bool     `json:"copied_again"`     // from the journals, once a damaged one was moved away
	Snapshots bool     `json:"snapshots"`        // whether it has the snapshots of a partition
	Remedy    string   `json:"remedy,omitempty"` // of the damage
}

// Verified is what `quartet verify` found. Its JSON form is stable.
type Verified struct {
	Journals []VerifiedJournal `json:"journals"`
	Streams  []VerifiedStream  `json:"streams"`
}

// damaged returns how many of the journals and of the streams are damaged.
func (v Verified) damaged() (journals, streams int) {
	for _, j := range v.Journals {
		journals += min(len(j.Damage), 1)
	}
	for _, s := range v.Streams {
		streams += min(len(s.Damage), 1)
	}
	return journals, streams
}

// Verify reads the streams of an installation with the servers' settings in flags.
type Verify func(ctx context.Context, flags *pflag.FlagSet) (Verified, error)

// VerifyCommand returns `quartet verify`. shared are the servers' settings.
func VerifyCommand(s *session.Session, verify Verify, shared *pflag.FlagSet) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that the journals and other streams are complete and unchanged", Args: input.None,
		Long: `Read every journal from its beginning to its end, and report what is missing or
was changed: each frame names the hash of the one before it, and a witness in the data
directory says how far each journal was written. Segments that are archived are read in
the archive. EVENTS, the output of commands and snapshots are
read as well; no plane stops because of damage there. Nothing is changed. The exit code
is 1 if a journal or another stream is damaged.

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
			if journals, streams := all.damaged(); journals+streams > 0 {
				return exit.Silently(exit.Failed)
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

// showVerified prints a line for each journal and each other stream, and what is wrong with it.
func showVerified(s *session.Session, cmd *cobra.Command, all Verified) error {
	p := output.New(cmd.OutOrStdout())
	if s.JSON() {
		out, err := json.MarshalIndent(all, "", "  ")
		p.Printf("%s\n", out)
		return errors.Join(err, p.Err())
	}
	show := func(name, server, text string, damage []string) {
		status, colour := "ok", terminal.Green
		if len(damage) > 0 {
			status, colour = "damaged", terminal.Red
		}
		if server != "" {
			name += " on " + server
		}
		p.Printf("%s %-12s %s\n", p.Paint(colour, status+"       "[:8-len(status)]), name, text)
		for _, line := range damage {
			p.Printf("         %s\n", terminal.Printable(line))
		}
	}
	for _, v := range all.Journals {
		text := fmt.Sprintf("%9d frames %9d events  %s", v.Frames, v.Events, v.End)
		if v.ArchivedSegments > 0 {
			text += "  archived: " + terminal.Count(v.ArchivedFrames, "frame", "frames") + ", " +
				terminal.Count(v.ArchivedSegments, "segment", "segments")
		}
		if v.Erased > 0 {
			text += "  erased: " + terminal.Count(v.Erased, "event", "events")
		}
		if v.Removed > 0 {
			text += "  removed: " + terminal.Count(v.Removed, "old event", "old events")
		}
		show(v.Partition, v.Server, text, v.Damage)
	}
	intact, messages := 0, uint64(0) // of snapshots
	for _, v := range all.Streams {
		if v.Snapshots && len(v.Damage) == 0 {
			intact, messages = intact+1, messages+v.Messages
			continue
		}
		show(v.Name, v.Server, fmt.Sprintf("%9d messages, %d to %d", v.Messages, v.First, v.Last), v.Damage)
		if len(v.Damage) > 0 {
			p.Printf("         fix: %s\n", terminal.Printable(v.Remedy))
		}
	}
	if intact > 0 {
		show("snapshots", "", fmt.Sprintf("%9d messages in %s", messages, terminal.Count(intact, "stream", "streams")),
			nil)
	}
	journals, streams := all.damaged()
	p.Printf("journals: %d, damaged: %d; other streams: %d, damaged: %d\n", len(all.Journals), journals,
		len(all.Streams), streams)
	return p.Err()
}
