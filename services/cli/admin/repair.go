package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// RepairOptions say from what and how `quartet repair` repairs.
type RepairOptions struct {
	// From is a backup to take frames from; there is none if its File is "".
	From       Backup
	Stores     []string // directories with other copies of the journals
	AcceptLoss []string // partitions of whose journals the loss is accepted
	Apply      bool     // write the repaired journals
}

// RepairedJournal is the journal of one partition. Its JSON form is stable.
type RepairedJournal struct {
	Partition string         `json:"partition"` // such as work/3
	Status    string         `json:"status"`    // intact, repairable, lost or accepted
	Damage    []string       `json:"damage,omitempty"`
	Copies    map[string]int `json:"copies,omitempty"` // frames from elsewhere, by place
	Loss      *JournalLoss   `json:"loss,omitempty"`
	// BeginsSeq and BeginsWalSeq are where the journal goes on, if its loss is accepted.
	BeginsSeq    uint64 `json:"begins_seq,omitempty"`
	BeginsWalSeq uint64 `json:"begins_wal_seq,omitempty"`
	// Archive is the journal's archive if that is damaged.
	Archive *RepairedArchive `json:"archive,omitempty"`
}

// RepairedArchive is the archive of a partition's journal that is damaged. Its JSON form is stable.
type RepairedArchive struct {
	Status string         `json:"status"` // repairable or lost
	Damage []string       `json:"damage"`
	Copies map[string]int `json:"copies,omitempty"` // frames from elsewhere than from the archive, by place
	Lost   []LostFrames   `json:"lost,omitempty"`
}

// LostFrames are frames of which there is no copy, between sequence numbers.
type LostFrames struct {
	First       uint64 `json:"first_seq"`
	Last        uint64 `json:"last_seq"`
	FirstWalSeq uint64 `json:"first_wal_seq"`
	LastWalSeq  uint64 `json:"last_wal_seq"`
}

// JournalLoss is what is known of the events that a journal does not have.
type JournalLoss struct {
	First     uint64   `json:"first_wal_seq"`
	Last      uint64   `json:"last_wal_seq"`
	Known     int      `json:"known_events"`
	Types     []string `json:"event_types,omitempty"`
	Agents    []string `json:"agents,omitempty"`
	WorkItems []string `json:"work_items,omitempty"`
	Sessions  []string `json:"sessions,omitempty"`
	File      string   `json:"file,omitempty"` // has the known events
}

// Repaired is what `quartet repair` found and did. Its JSON form is stable.
type Repaired struct {
	Journals []RepairedJournal `json:"journals"`
	Streams  []DamagedStream   `json:"streams,omitempty"`  // that are not journals
	Replaced string            `json:"replaced,omitempty"` // the directory with the damaged streams
}

// DamagedStream is a stream that is not a journal and is damaged: EVENTS, or the output of commands.
type DamagedStream struct {
	Name   string   `json:"name"`
	Damage []string `json:"damage"`
	Again  bool     `json:"copied_again"` // from the journals, by the next start
}

// Repair repairs the journals of an installation with the servers' settings in flags.
type Repair func(ctx context.Context, flags *pflag.FlagSet, o RepairOptions) (Repaired, error)

// RepairCommand returns `quartet repair`. shared are the servers' settings.
func RepairCommand(s *session.Session, repair Repair, shared *pflag.FlagSet) *cobra.Command {
	var o RepairOptions
	cmd := &cobra.Command{
		Use: "repair", Short: "Restore damaged journals from intact copies of their frames", Args: input.None,
		Long: `Find intact copies of the frames that damaged journals lack, say what would be done,
and with --apply do it. The journals are those of an embedded NATS server, which must
not run. Copies are taken from

  DATA-DIR/salvage   blocks that a start of the server found damaged and copied aside
  corrected bits     a record in which one bit was changed; its hash proves what it was
  --from-store       the directory of another NATS server, or an older data directory
  --from-backup      a backup; frames that were written after it are kept

Archived segments of the journals, in DATA-DIR/archive, are examined and written anew in
the same way. A damaged catalog of an archive is replaced by one of the segments that are
there. What is lost of an archive is only reported: the journal goes on without it.

The hashes that chain the frames, and the witness, decide what belongs to a journal. The
repaired stream is opened by a server and read before it takes the place of the damaged
one, which is kept in DATA-DIR/replaced. An interruption leaves one or the other.

EVENTS, if it is damaged, is moved away too, and copied again from the journals. Damaged
output of commands is only reported.

Of frames without a copy, what other places tell is printed. --accept-loss PARTITION lets
the partition go on without them, above every sequence number that anybody recorded; the
events that are known are written to DATA-DIR/lost. The exit code is 1 if a journal stays
damaged.`,
		Example: "  quartet repair --data-dir /var/lib/quartet\n" +
			"  quartet repair --data-dir /var/lib/quartet --from-backup quartet.backup --apply\n" +
			"  quartet repair --data-dir /var/lib/quartet --accept-loss work/0 --apply",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if repair == nil {
				return errors.New("this binary has no servers")
			}
			r, err := repair(cmd.Context(), shared, o)
			if slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) }) {
				return fmt.Errorf("%s: %w; nothing was changed", o.From.File, err)
			}
			if err != nil {
				return err
			}
			if err := showRepaired(s, cmd, r, o.Apply); err != nil {
				return err
			}
			if slices.ContainsFunc(r.Journals, func(j RepairedJournal) bool {
				return j.Status == "lost" || j.Status != "intact" && !o.Apply || j.Archive != nil &&
					(j.Archive.Status == "lost" || !o.Apply)
			}) || !o.Apply && slices.ContainsFunc(r.Streams, func(d DamagedStream) bool { return d.Again }) {
				return exit.Silently(exit.Failed)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.Apply, "apply", false, "Write the repaired journals; without it nothing is changed")
	cmd.Flags().StringVar(&o.From.File, "from-backup", "", "Backup to take frames from")
	cmd.Flags().StringVar(&o.From.IdentityFile, "identity-file", "", "File with identities of age, for a backup for "+
		"recipients; mode 0600 or stricter")
	cmd.Flags().StringArrayVar(&o.Stores, "from-store", nil, "Directory of a NATS server, or data directory, to take "+
		"frames from; may be repeated")
	cmd.Flags().StringArrayVar(&o.AcceptLoss, "accept-loss", nil, "Let this partition, such as work/0, go on without "+
		"what cannot be found; may be repeated")
	for _, name := range restoreSettings {
		if f := shared.Lookup(name); f != nil && name != "max-store-mib" && name != "replicas" {
			cmd.Flags().AddFlag(f)
		}
	}
	return cmd
}

// showRepaired prints what was found and done.
func showRepaired(s *session.Session, cmd *cobra.Command, r Repaired, applied bool) error {
	p := output.New(cmd.OutOrStdout())
	if s.JSON() {
		out, err := json.MarshalIndent(r, "", "  ")
		p.Printf("%s\n", out)
		return errors.Join(err, p.Err())
	}
	colours := map[string]string{
		"intact": terminal.Green, "repairable": terminal.Yellow, "accepted": terminal.Yellow,
		"lost": terminal.Red,
	}
	again := false
	for _, j := range r.Journals {
		p.Printf("%s %s\n", p.Paint(colours[j.Status], fmt.Sprintf("%-10s", j.status(applied))), j.Partition)
		for _, text := range j.Damage {
			p.Printf("           %s\n", terminal.Printable(text))
		}
		for _, place := range slices.Sorted(maps.Keys(j.Copies)) {
			p.Printf("           copies from %s: %d\n", place, j.Copies[place])
		}
		if j.Loss != nil {
			j.Loss.show(p)
		}
		if j.Status == "lost" {
			p.Printf("           give --from-backup or --from-store with an intact copy, or --accept-loss %s\n",
				j.Partition)
		}
		if j.BeginsSeq > 0 {
			p.Printf("           a new incarnation begins at frame %d and goes on behind wal_seq %d\n", j.BeginsSeq,
				j.BeginsWalSeq)
		}
		if j.Archive != nil {
			j.Archive.show(p, applied)
			again = again || !applied && j.Archive.Status == "repairable"
		}
		again = again || !applied && (j.Status == "repairable" || j.Status == "accepted")
	}
	for _, d := range r.Streams {
		p.Printf("%s %s\n", p.Paint(terminal.Yellow, "damaged   "), d.Name)
		for _, text := range d.Damage {
			p.Printf("           %s\n", terminal.Printable(text))
		}
		if d.Again {
			p.Printf(
				"           the server copies it again from the journals at its next start, once it is moved away\n")
			again = again || !applied
		} else {
			p.Printf("           what cannot be read is gone; what a backup has of it comes back with a restore only\n")
		}
	}
	if r.Replaced != "" {
		p.Printf("The damaged streams are in %s. Run quartet verify, then start the server.\n",
			terminal.Printable(r.Replaced))
	}
	if again {
		p.Printf("Nothing was changed. Run the same with --apply to repair.\n")
	}
	return p.Err()
}

// status returns the word for a journal's status.
func (j RepairedJournal) status(applied bool) string {
	if applied && j.Status == "repairable" {
		return "repaired"
	}
	return j.Status
}

// show prints what is wrong with an archive, and what becomes of it.
func (a *RepairedArchive) show(p *output.Printer, applied bool) {
	status := a.Status
	if applied && status == "repairable" {
		status = "repaired"
	}
	p.Printf("           its archive is damaged: %s\n", status)
	for _, text := range a.Damage {
		p.Printf("           %s\n", terminal.Printable(text))
	}
	for _, place := range slices.Sorted(maps.Keys(a.Copies)) {
		p.Printf("           copies of archived frames from %s: %d\n", place, a.Copies[place])
	}
	for _, l := range a.Lost {
		p.Printf("           archived frames %d to %d, wal_seq %d to %d, have no intact copy\n", l.First, l.Last,
			l.FirstWalSeq, l.LastWalSeq)
	}
	if len(a.Lost) > 0 {
		p.Printf(
			"           give --from-backup or --from-store with an intact copy; the journal goes on without them\n")
	}
}

// show prints what is known of a loss.
func (l *JournalLoss) show(p *output.Printer) {
	p.Printf("           wal_seq %d to %d, as far as is known, have no intact copy; known of these: %s\n", l.First,
		l.Last, terminal.Count(l.Known, "event", "events"))
	for _, row := range []struct {
		name   string
		values []string
	}{{"events", l.Types}, {"agents", l.Agents}, {"work items", l.WorkItems}, {"boards of", l.Sessions}} {
		if len(row.values) > 0 {
			p.Printf("           %s: %s\n", row.name, terminal.Printable(shorten(row.values)))
		}
	}
	if l.File != "" {
		p.Printf("           the known events are in %s\n", terminal.Printable(l.File))
	}
}

// maxNamed is how many values of a kind are printed for people.
const maxNamed = 20

// shorten joins values, of which it leaves out those that are too many.
func shorten(values []string) string {
	if len(values) <= maxNamed {
		return strings.Join(values, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(values[:maxNamed], ", "), len(values)-maxNamed)
}
