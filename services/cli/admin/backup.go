package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"quartet/pkg/archive"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// restoreSettings are the names of the servers' settings that a restore needs.
var restoreSettings = []string{"config", "data-dir", "key-file", "max-store-mib", "replicas",
	"nats-url", "nats-user", "nats-password-file", "nats-creds-file", "nats-nkey-file",
	"nats-tls-ca-file", "nats-tls-cert-file", "nats-tls-key-file", "nats-tls-server-name"}

// BackupCommand returns `quartet backup`.
func BackupCommand(s *session.Session) *cobra.Command {
	req := &backupv1.ExportBackupRequest{}
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy an installation into a file, while it runs", Args: input.Exactly("FILE"),
		Long: `Copy an installation into FILE while it runs: the journals of all planes as of one
point in time, the stored output of commands, and the agents' homes. "-" is stdout.
FILE is created, or replaced, after the copy is complete and was checked. It takes
the role admin.

FILE does not contain the installation's key (--key-file of the server, by
default DATA-DIR/key). Keep a copy of the key elsewhere: without it a restored
installation accepts no earlier credential and no trigger's URL.`,
		Example: "  quartet backup quartet-$(date +%F).backup\n  quartet backup - | age -r KEY > quartet.backup.age",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			export := func(to io.Writer) error { return export(cmd, conn, req, to) }
			if args[0] == "-" {
				return export(cmd.OutOrStdout())
			}
			m, totals, err := backupTo(args[0], export)
			if err != nil {
				return err
			}
			return showArchive(s, cmd, args[0], m, totals)
		}),
	}
	cmd.Flags().BoolVar(&req.OmitOutput, "omit-output", false, "Omit the output of commands")
	return cmd
}

// export writes the stream of a backup to w, and shows its progress on a terminal.
func export(cmd *cobra.Command, conn *grpc.ClientConn, req *backupv1.ExportBackupRequest, w io.Writer) error {
	stream, err := backupv1.NewBackupServiceClient(conn).ExportBackup(cmd.Context(), req)
	if err != nil {
		return err
	}
	progress := newProgress(cmd.ErrOrStderr())
	defer progress.end()
	n := int64(0)
	return session.Receive(stream, func(m *backupv1.ExportBackupResponse) error {
		if _, err := w.Write(m.GetChunk()); err != nil {
			return err
		}
		n += int64(len(m.GetChunk()))
		progress.show(n)
		return nil
	})
}

// progress shows the number of bytes on one line of a terminal, and nothing elsewhere.
type progress struct {
	w    io.Writer // nil: not a terminal
	last time.Time
}

// newProgress returns the progress for w, which may be any writer.
func newProgress(w io.Writer) *progress {
	if !terminal.IsTerminal(w) {
		return &progress{}
	}
	return &progress{w: w}
}

// show writes n over the number before it, at most five times a second.
func (p *progress) show(n int64) {
	if p.w != nil && time.Since(p.last) > 200*time.Millisecond {
		p.last = time.Now()
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", output.Bytes(uint64(n)))
	}
}

// end clears the line.
func (p *progress) end() {
	if p.w != nil {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// backupTo writes a temporary file beside path, checks it, and renames it to path. After an
// error path is as it was.
func backupTo(path string, export func(io.Writer) error) (archive.Manifest, archive.Totals, error) {
	var m archive.Manifest
	var totals archive.Totals
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return m, totals, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has another name after a success
	defer f.Close()
	if err := export(f); err != nil {
		return m, totals, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return m, totals, err
	}
	if m, totals, err = archive.Read(f, archive.Visitor{}); err != nil {
		return m, totals, fmt.Errorf("the server sent an invalid backup: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return m, totals, err
	}
	return m, totals, os.Rename(f.Name(), path)
}

// showArchive prints what a backup contains.
func showArchive(s *session.Session, cmd *cobra.Command, path string, m archive.Manifest, t archive.Totals) error {
	if s.JSON() {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"file": path, "manifest": m, "totals": t})
	}
	p := output.New(cmd.OutOrStdout())
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(t.Streams)) {
		s := t.Streams[name]
		rows = append(rows, []string{name, fmt.Sprint(s.Messages), output.Bytes(s.Bytes)})
	}
	rows = append(rows, []string{"agents' homes", fmt.Sprintf("%d files", t.Files), ""})
	p.Printf("%s  as of %s, by quartet %s\n", terminal.Printable(path), m.CutAt.Local().Format("2006-01-02 15:04:05"), terminal.Printable(m.Version))
	p.Table("", []string{"WHAT", "MESSAGES", "SIZE"}, rows)
	return p.Err()
}

// Restore creates an installation from a backup file with the servers' settings
// in flags, and returns what the file contains.
type Restore func(ctx context.Context, flags *pflag.FlagSet, file string) (archive.Manifest, archive.Totals, error)

// RestoreCommand returns `quartet restore`. shared are the servers' settings, of
// which it has those that a restore needs.
func RestoreCommand(s *session.Session, restore Restore, shared *pflag.FlagSet) *cobra.Command {
	check := false
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Create an installation from a backup", Args: input.Exactly("FILE"),
		Long: `Create an installation from a backup in an empty data directory, or in a NATS
cluster without journals. All of FILE is checked before anything is written, and
what was written is read again and compared before the command succeeds.

The server must not run. First copy the installation's key to its place (--key-file,
by default DATA-DIR/key); the key of another installation is refused. After the
start, timers that are due fire once, commands that were running are reported as
lost, and changes made after the backup are missing.`,
		Example: "  quartet restore quartet-2026-03-04.backup --data-dir /var/lib/quartet\n  quartet restore --check quartet-2026-03-04.backup",
		RunE: func(cmd *cobra.Command, args []string) error {
			do := restore
			if check {
				do = checkArchive
			}
			if do == nil {
				return errors.New("this binary has no servers")
			}
			m, totals, err := do(cmd.Context(), shared, args[0])
			switch {
			case errors.Is(err, archive.ErrCut), errors.Is(err, archive.ErrDamaged), errors.Is(err, archive.ErrForeign):
				return fmt.Errorf("%s: %w; nothing was written", args[0], err)
			case err != nil:
				return err
			}
			return showArchive(s, cmd, args[0], m, totals)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "Only check FILE and print what it contains")
	for _, name := range restoreSettings {
		if f := shared.Lookup(name); f != nil {
			cmd.Flags().AddFlag(f)
		}
	}
	return cmd
}

// checkArchive is a Restore that only reads the backup.
func checkArchive(_ context.Context, _ *pflag.FlagSet, file string) (archive.Manifest, archive.Totals, error) {
	f, err := os.Open(file)
	if err != nil {
		return archive.Manifest{}, archive.Totals{}, err
	}
	defer f.Close()
	return archive.Read(f, archive.Visitor{})
}
