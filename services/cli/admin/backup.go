package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/archive"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// restoreSettings are the names of the servers' settings that a restore needs.
var restoreSettings = []string{
	"config", "data-dir", "key-file", "max-store-mib", "replicas",
	"nats-url", "nats-user", "nats-password-file", "nats-creds-file", "nats-nkey-file",
	"nats-tls-ca-file", "nats-tls-cert-file", "nats-tls-key-file", "nats-tls-server-name",
	"archive", "archive-credentials-file", "archive-ca-file",
}

// BackupCommand returns `quartet backup`.
func BackupCommand(s *session.Session) *cobra.Command {
	req := &backupv1.ExportBackupRequest{}
	recipientsFile, replace := "", false
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy an installation into a file, while it runs", Args: input.Exactly("FILE"),
		Long: `Copy an installation into FILE while it runs: the journals of all planes as of one
point in time, the stored output of commands, and the agents' homes. "-" is stdout.
FILE is created after the copy is complete and was checked; a file that exists is kept
unless --replace is given. It takes the role installation_admin.

The server encrypts FILE with the installation's key, or for the recipients that are
given (age1…, as age-keygen prints them), and authenticates it with the installation's
key. FILE does not contain the key file (--key-file of the server, by default
DATA-DIR/key): keep a copy of it elsewhere. Without it the backup cannot be restored.`,
		Example: "  quartet backup quartet-$(date +%F).backup\n  quartet backup - --recipient age1… | ssh vault 'cat " +
			"> quartet.backup'",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			if recipientsFile != "" {
				more, err := readRecipients(recipientsFile)
				if err != nil {
					return err
				}
				req.Recipients = append(req.Recipients, more...)
			}
			if _, err := archive.ParseRecipients(req.GetRecipients()); err != nil {
				return exit.UsageError("recipients: " + err.Error())
			}
			export := func(to io.Writer) (*backupv1.BackupContents, error) { return export(cmd, conn, req, to) }
			if args[0] == "-" {
				_, err := export(cmd.OutOrStdout())
				return err
			}
			if err := checkAbsent(args[0], replace); err != nil {
				return err
			}
			contents, err := backupTo(args[0], replace, export)
			if err != nil {
				return err
			}
			return showArchive(s, cmd, args[0], contents)
		}),
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "Replace FILE if it exists")
	cmd.Flags().BoolVar(&req.OmitOutput, "omit-output", false, "Omit the output of commands")
	cmd.Flags().StringArrayVar(&req.Recipients, "recipient", nil, "Encrypt for this recipient of age instead of for "+
		"the installation's key; may be repeated")
	cmd.Flags().StringVar(&recipientsFile, "recipients-file", "",
		"Encrypt for the recipients in this file, one in a line")
	return cmd
}

// readRecipients returns the lines of a file that are neither empty nor a comment. A file without any is a
// usage error.
func readRecipients(path string) ([]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	if len(all) == 0 {
		return nil, exit.UsageError("--recipients-file " + path + " has no recipient")
	}
	return all, nil
}

// export writes the stream of a backup to w, shows its progress on a terminal, and returns what
// the backup contains.
func export(cmd *cobra.Command, conn *grpc.ClientConn, req *backupv1.ExportBackupRequest, w io.Writer) (
	*backupv1.BackupContents, error,
) {
	stream, err := backupv1.NewBackupServiceClient(conn).ExportBackup(cmd.Context(), req)
	if err != nil {
		return nil, err
	}
	progress := newProgress(cmd.ErrOrStderr())
	defer progress.end()
	n := int64(0)
	var contents *backupv1.BackupContents
	err = session.Receive(stream, func(m *backupv1.ExportBackupResponse) error {
		if m.GetContents() != nil {
			contents = m.GetContents()
		}
		if _, err := w.Write(m.GetChunk()); err != nil {
			return err
		}
		n += int64(len(m.GetChunk()))
		progress.copied(n, m.GetDone())
		return nil
	})
	if err == nil && contents == nil {
		err = errors.New("the server sent a backup that is not encrypted, because it is of an earlier version; " +
			"update the server")
	}
	return contents, err
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
func (p *progress) show(n int64) { p.write(output.Bytes(uint64(n))) }

// write writes text over the one before it, at most five times a second.
func (p *progress) write(text string) {
	if p.w != nil && time.Since(p.last) > 200*time.Millisecond {
		p.last = time.Now()
		_, _ = fmt.Fprint(p.w, "\r\x1b[K"+text)
	}
}

// copied shows the number n of bytes and, unless done is 0, the part done, 0 to 1, as a percentage.
func (p *progress) copied(n int64, done float64) {
	if done == 0 {
		p.show(n)
		return
	}
	p.write(fmt.Sprintf("%.0f %%  %s", 100*min(done, 1), output.Bytes(uint64(n))))
}

// part shows the part done, 0 to 1, as a percentage.
func (p *progress) part(done float64) {
	p.write(fmt.Sprintf("%.0f %%", 100*min(done, 1)))
}

// end clears the line.
func (p *progress) end() {
	if p.w != nil {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// checkAbsent refuses a path at which something exists, unless it may be replaced.
func checkAbsent(path string, replace bool) error {
	if _, err := os.Lstat(path); err == nil && !replace {
		return exists(path)
	}
	return nil
}

// exists returns the usage error for a path at which something exists that may not be replaced.
func exists(path string) error {
	return exit.UsageError(path + " exists and is kept; name another file, or replace it with --replace")
}

// backupTo writes a temporary file beside path, compares it with its checksum, and gives it the name
// path. After an error path is as it was, also if it was created meanwhile and may not be replaced.
func backupTo(path string, replace bool, export func(io.Writer) (*backupv1.BackupContents, error)) (
	*backupv1.BackupContents, error,
) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has another name after a success
	defer f.Close()
	contents, err := export(f)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != contents.GetSha256() {
		return nil, fmt.Errorf("what was written differs from what the server sent: its SHA-256 is %s instead of %s; "+
			"check the disk and try again", got, contents.GetSha256())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if replace {
		return contents, os.Rename(f.Name(), path)
	}
	// Unlike a rename, a link never replaces a file. Some file systems have none.
	switch err := os.Link(f.Name(), path); {
	case err == nil:
		return contents, nil
	case errors.Is(err, os.ErrExist):
		return nil, exists(path)
	}
	if err := checkAbsent(path, false); err != nil {
		return nil, err
	}
	return contents, os.Rename(f.Name(), path)
}

// showArchive prints what a backup contains.
func showArchive(s *session.Session, cmd *cobra.Command, path string, c *backupv1.BackupContents) error {
	return s.Show(cmd, c, func(p *output.Printer) {
		var rows [][]string
		for _, s := range c.GetStreams() {
			rows = append(rows, []string{
				s.GetName(), fmt.Sprint(s.GetMessages()),
				output.Bytes(uint64(max(s.GetBytes(), 0))),
			})
		}
		rows = append(rows, []string{"agents' homes", terminal.Count(c.GetFiles(), "file", "files"), ""})
		p.Printf("%s  as of %s, by quartet %s, needs key %s\n", terminal.Printable(path), p.Time(c.GetCutAt()),
			terminal.Printable(c.GetVersion()), terminal.Printable(c.GetInstallationKeyId()))
		p.Table("", []string{"WHAT", "MESSAGES", "SIZE"}, rows)
	})
}

// contentsOf describes a backup that was read.
func contentsOf(r Restored) *backupv1.BackupContents {
	c := &backupv1.BackupContents{
		Version: r.Manifest.Version, CutAt: timestamppb.New(r.Manifest.CutAt),
		InstallationKeyId: r.Manifest.Key, Files: int64(r.Totals.Files),
	}
	for _, name := range slices.Sorted(maps.Keys(r.Totals.Streams)) {
		s := r.Totals.Streams[name]
		c.Streams = append(c.Streams, &backupv1.BackupStream{
			Name: name, Messages: int64(s.Messages),
			Bytes: int64(s.Bytes),
		})
	}
	return c
}

// Backup names a backup and how it may be read.
type Backup struct {
	// File is its path.
	File string
	// IdentityFile has identities of age. Optional.
	IdentityFile string
	// Unauthenticated accepts a backup that cannot be authenticated.
	Unauthenticated bool
	// Check only reads the backup.
	Check bool
	// Progress, if set, is called with the part of the input that was read so far, 0 to 1.
	Progress func(done float64)
}

// Restored is what a backup contains.
type Restored struct {
	Manifest archive.Manifest
	Totals   archive.Totals
	// Authenticated is false for a backup that was accepted although it is not authenticated.
	Authenticated bool
}

// Restore creates an installation from a backup with the servers' settings in flags, and returns
// what the backup contains.
type Restore func(ctx context.Context, flags *pflag.FlagSet, b Backup) (Restored, error)

// refusals are the errors which say that a file is not an unchanged backup of this installation.
var refusals = []error{
	archive.ErrCut, archive.ErrDamaged, archive.ErrForeign, archive.ErrKey,
	archive.ErrUnauthenticated, archive.ErrIdentity,
}

// RestoreCommand returns `quartet restore`. shared are the servers' settings, of
// which it has those that a restore needs.
func RestoreCommand(s *session.Session, restore Restore, shared *pflag.FlagSet) *cobra.Command {
	var b Backup
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Create an installation from a backup", Args: input.Exactly("FILE"),
		Long: `Create an installation from a backup in an empty data directory, or in a NATS
cluster without journals. FILE is authenticated with the installation's key before
anything in it is interpreted, and all of it is checked before anything is written.
What was written is read again and compared before the command succeeds.

The server must not run. First copy the installation's key file to its place
(--key-file, by default DATA-DIR/key); it may have newer keys too. A backup for
recipients also needs an identity of one of them (--identity-file). After the start,
timers that are due fire once, commands that were running are reported as lost, and
changes made after the backup are missing.

--unauthenticated accepts a backup that cannot be authenticated: one of a version that
did not authenticate backups, or one for recipients when the key file is lost. Whoever
made such a file decides what is in it, API keys of admins included.`,
		Example: "  quartet restore quartet-2026-03-04.backup --data-dir /var/lib/quartet\n  quartet restore --check " +
			"quartet-2026-03-04.backup --key-file key.copy",
		RunE: func(cmd *cobra.Command, args []string) error {
			if restore == nil {
				return errors.New("this binary has no servers")
			}
			b.File = args[0]
			progress := newProgress(cmd.ErrOrStderr())
			b.Progress = progress.part
			r, err := restore(cmd.Context(), shared, b)
			progress.end()
			switch {
			case slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) }):
				return fmt.Errorf("%s: %w; nothing was restored", args[0], err)
			case err != nil:
				return err
			}
			if !r.Authenticated {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s is not authenticated. Check its API keys (quartet "+
					"key list) before you let anybody in.\n", args[0])
			}
			return showArchive(s, cmd, args[0], contentsOf(r))
		},
	}
	cmd.Flags().BoolVar(&b.Check, "check", false, "Only check FILE and print what it contains")
	cmd.Flags().StringVar(&b.IdentityFile, "identity-file", "", "File with identities of age, for a backup for "+
		"recipients; mode 0600 or stricter")
	cmd.Flags().BoolVar(&b.Unauthenticated, "unauthenticated", false, "Accept a backup that cannot be authenticated")
	for _, name := range restoreSettings {
		if f := shared.Lookup(name); f != nil {
			cmd.Flags().AddFlag(f)
		}
	}
	return cmd
}
