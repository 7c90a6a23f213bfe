package app

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"quartet/pkg/archive"
	"quartet/pkg/id"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/keyfile"
	"quartet/pkg/natsd"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/repair"
	taskoutput "quartet/services/task/output"
)

const (
	// unfinished is the suffix of the directories of a restore that is not complete, and
	// finished that of the journals while the directories are put into place.
	unfinished = ".restoring"
	finished   = ".restored"
)

// fingerprint returns the value by which backups of the older format name the installation's key.
func fingerprint(key []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("fingerprint"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// journalStreams returns the names of the streams that a backup must contain: all segments of all journals.
func journalStreams(ctx context.Context, js jetstream.JetStream) (names []string, err error) {
	for _, plane := range planes {
		places, err := jetlog.Places(ctx, js, plane)
		if err != nil {
			return nil, err
		}
		if len(places) == 0 {
			return nil, fmt.Errorf("the journal of %s has no stream", plane)
		}
		for _, p := range places {
			names = append(names, p.Stream())
		}
	}
	return names, nil
}

// Backup names a backup and how it may be read.
type Backup struct {
	// File is its path.
	File string
	// IdentityFile has identities of age, for a backup for recipients. Optional.
	IdentityFile string
	// Unauthenticated accepts a backup that cannot be authenticated (see archive.Keys).
	Unauthenticated bool
	// Check only reads the backup.
	Check bool
	// Progress, if set, is called with how much of all that is read was read, 0 to 1.
	Progress func(done float64)
}

// passes is how often a backup is read: to authenticate it, to check it, and to restore it.
const passes = 3

// readings counts what is read of a file.
type readings struct {
	*os.File
	read, all int64
	progress  func(done float64)
}

// reading returns the file of a backup, which reports how much of it was read.
func (b Backup) reading(f *os.File) (io.ReadSeeker, error) {
	info, err := f.Stat()
	if err != nil || b.Progress == nil || info.Size() == 0 {
		return f, err
	}
	times := int64(passes)
	if b.Check {
		times--
	}
	return &readings{File: f, all: times * info.Size(), progress: b.Progress}, nil
}

// Read implements io.Reader.
func (r *readings) Read(p []byte) (int, error) {
	n, err := r.File.Read(p)
	r.read += int64(n)
	r.progress(float64(r.read) / float64(r.all))
	return n, err
}

// Restored is what a backup contains.
type Restored struct {
	Manifest archive.Manifest
	Totals   archive.Totals
	// Authenticated is false for a backup that was accepted although it is not authenticated.
	Authenticated bool
}

// Restore creates an installation from a backup (see `quartet restore --help`). The file
// is authenticated before anything in it is interpreted, and then read twice, so that nothing
// is written if it is incomplete or damaged, and nothing becomes visible if it was changed
// meanwhile. After any other error the servers of nats-url may have part of it.
func Restore(ctx context.Context, cfg Config, b Backup) (Restored, error) {
	var out Restored
	if err := cfg.Complete(); err != nil {
		return out, err
	}
	keys, err := b.keys(cfg)
	if err != nil {
		return out, err
	}
	f, err := os.Open(b.File)
	if err != nil {
		return out, err
	}
	defer f.Close()
	from, err := b.reading(f)
	if err != nil {
		return out, err
	}
	opened, err := archive.Open(from, keys)
	if err != nil {
		return out, err
	}
	out.Authenticated = opened.Authenticated()
	if out.Manifest, out.Totals, err = opened.Read(archive.Visitor{}); err != nil || b.Check {
		return out, err
	}
	unlock, err := datadir.Lock(cfg.DataDir)
	if err != nil {
		return out, err
	}
	defer func() { _ = unlock() }()
	if err := undo(cfg); err != nil {
		return out, err
	}
	if err := checkTarget(cfg, out.Manifest); err != nil {
		return out, err
	}
	return out, restore(ctx, cfg, out.Manifest, opened, out.Totals)
}

// keys reads what the backup is opened with. That there is no key file is not an error yet.
func (b Backup) keys(cfg Config) (archive.Keys, error) {
	keys := archive.Keys{Unauthenticated: b.Unauthenticated}
	var err error
	if keys.Ring, err = keyfile.Load(cfg.KeyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	if b.IdentityFile == "" {
		return keys, nil
	}
	f, err := os.Open(b.IdentityFile)
	if err != nil {
		return keys, fmt.Errorf("identity file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return keys, fmt.Errorf("identity file: %w", err)
	}
	// a pipe of a shell has no file that others could open
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&0o077 != 0 {
		return keys, fmt.Errorf("identity file %s has mode %04o, so other users may read or change it; it must be "+
			"0600 or stricter: chmod 600 %[1]s", b.IdentityFile, mode.Perm())
	}
	if keys.Identities, err = age.ParseIdentities(f); err != nil {
		return keys, fmt.Errorf("identity file %s is not as age-keygen writes it: it must have lines with "+
			"AGE-SECRET-KEY-…", b.IdentityFile)
	}
	return keys, nil
}

// places returns where the archives of the partitions are.
func (c *Config) places() archives.Places {
	return archives.Places{DataDir: c.DataDir, Remote: c.NATSURL != "", Bucket: c.bucket, Dir: c.Archive.Dir()}
}

// checkArchive returns an error if something is to be removed from the archive, and there is none.
func (c *Config) checkArchive() error {
	kept, err := archives.ParseHistory(c.HistoryDays, c.NamespaceHistoryDays, c.Day)
	if err != nil || c.places().Kept() {
		return err
	}
	var removing []string
	if c.EraseAfter > 0 {
		removing = append(removing, "erase-after "+c.EraseAfter.String())
	}
	if kept.Shortest() > 0 {
		removing = append(removing, "history-days or namespace-history-days")
	}
	if len(removing) == 0 {
		return nil
	}
	return fmt.Errorf("with nats-url, %s removes events from the archive, and there is none: give archive, a "+
		"directory "+
		"that all processes share, as /srv/quartet/archive, or a bucket, as %s. To run without an archive, where "+
		"everything stays in NATS and nothing is ever removed, give erase-after 0 and no history-days",
		strings.Join(removing, " and "), archives.LocationExample)
}

// checkTarget refuses a data directory that contains journals, their archives or homes, and the key of
// another installation. That there is no key is not an error: a backup that was authenticated
// had one.
func checkTarget(cfg Config, m archive.Manifest) error {
	for _, dir := range []string{filepath.Join(cfg.DataDir, "nats"), datadir.Archive(cfg.DataDir), cfg.HomeDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("data-dir %s contains an installation already; choose an empty one, or move %s away",
				cfg.DataDir, dir)
		}
	}
	if _, err := os.Stat(cfg.KeyFile); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ring, err := keyfile.Load(cfg.KeyFile)
	if err != nil {
		return err
	}
	if m.Key != "" && !slices.ContainsFunc(ring.Keys(), func(k keyfile.Key) bool {
		return m.Key == k.ID ||
			m.Key == fingerprint(k.Secret)
	}) {
		return fmt.Errorf("%s is not the key of the installation in the backup; replace it by that key, or remove it",
			cfg.KeyFile)
	}
	return nil
}

// undo renames the directories back that an interrupted restore had begun to rename to their places (see place), so
// that the restore can be repeated. If the journals are in their place, undo changes nothing: place renames them
// last, so the restore was complete, or a server was started since.
func undo(cfg Config) error {
	store, home := filepath.Join(cfg.DataDir, "nats"), cfg.HomeDir
	if _, err := os.Lstat(store); err == nil {
		return nil // a server was started meanwhile
	}
	if _, err := os.Lstat(store + finished); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if _, err := os.Lstat(home + unfinished); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(home, home+unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := datadir.Sync(filepath.Dir(home)); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return os.Rename(store+finished, store+unfinished)
}

// place renames the directories of a restore to their places, durably. If it is interrupted,
// undo reverts it.
func place(store, home string) error {
	// home may be on another file system.
	for _, dir := range []string{filepath.Dir(store), home + unfinished} {
		if err := datadir.Sync(dir); err != nil {
			return err
		}
	}
	// with nats-url there is none
	if err := os.Rename(store+unfinished, store+finished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := datadir.Sync(filepath.Dir(store)); err != nil {
		return err
	}
	if err := os.Rename(home+unfinished, home); err != nil {
		return err
	}
	if err := datadir.Sync(filepath.Dir(home)); err != nil {
		return err
	}
	if err := os.Rename(store+finished, store); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return datadir.Sync(filepath.Dir(store))
}

// restore writes the backup into directories with the suffix unfinished, and renames
// them when all is on disk. With nats-url the journals are written to its servers at once.
func restore(ctx context.Context, cfg Config, m archive.Manifest, from *archive.File, totals archive.Totals) error {
	store, home := filepath.Join(cfg.DataDir, "nats"+unfinished), cfg.HomeDir+unfinished
	for _, dir := range []string{store, home} { // left by a restore that was interrupted
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	homes, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer homes.Close()

	var nc *nats.Conn
	closeBroker := func() {}
	if cfg.NATSURL != "" {
		nc, err = cfg.remote().Connect(ctx, "quartet-restore", nil)
	} else {
		var embedded *natsd.Server
		embedded, err = natsd.Start(natsd.Config{
			StoreDir: store, MaxStore: int64(cfg.MaxStore) << 20,
			Port: natsd.InProcess, Logger: zap.NewNop(), Bulk: true,
		})
		if err != nil {
			return err
		}
		closeBroker = embedded.Stop
		nc, err = embedded.Connect("quartet-restore")
	}
	if err == nil && cfg.NATSURL != "" {
		err = archives.CheckMoved(ctx, nc)
	}
	if err == nil {
		err = repair.Refill(ctx, repair.RefillConfig{
			Archive: cfg.places().Store, Planes: planes, Partitions: m.Partitions, Streams: m.Streams,
			Replicas: cfg.Replicas, Output: taskoutput.StreamConfig(cfg.Replicas, cfg.keepOutput()),
			WitnessDir: datadir.Witness(cfg.DataDir), Servers: natsd.Redact(cfg.NATSURL, cfg.NATSURL), Now: time.Now(),
			NewID: id.New().New,
		}, nc, homes, from, totals)
		nc.Close()
	}
	closeBroker()
	if err == nil {
		// What was witnessed of the journals that were here before is not true of the restored ones.
		err = os.RemoveAll(datadir.Witness(cfg.DataDir))
	}
	if err != nil {
		return err
	}
	return place(filepath.Join(cfg.DataDir, "nats"), cfg.HomeDir)
}
