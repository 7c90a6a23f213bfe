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
	"path"
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
	"quartet/services/app/datadir"
	"quartet/services/app/repair"
	"quartet/services/backup"
	taskoutput "quartet/services/task/output"
)

const (
	// inFlight is how many messages of a restore may be unacknowledged at a time.
	inFlight = 256
	// ackTerm bounds each wait for acknowledgements, of up to inFlight messages.
	ackTerm = 30 * time.Second
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

// journalStreams returns the names of the streams that a backup must contain.
func journalStreams() []string {
	var names []string
	for _, p := range planes {
		names = append(names, jetlog.StreamName(p))
	}
	return names
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
	opened, err := archive.Open(f, keys)
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
	if keys.Identities, err = age.ParseIdentities(f); err != nil {
		return keys, fmt.Errorf("identity file %s is not as age-keygen writes it: it must have lines with AGE-SECRET-KEY-…", b.IdentityFile)
	}
	return keys, nil
}

// checkTarget refuses a data directory that contains journals or homes, and the key of
// another installation. That there is no key is not an error: a backup that was authenticated
// had one.
func checkTarget(cfg Config, m archive.Manifest) error {
	for _, dir := range []string{filepath.Join(cfg.DataDir, "nats"), cfg.HomeDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("data-dir %s contains an installation already; choose an empty one, or move %s away", cfg.DataDir, dir)
		}
	}
	if _, err := os.Stat(cfg.KeyFile); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ring, err := keyfile.Load(cfg.KeyFile)
	if err != nil {
		return err
	}
	if m.Key != "" && !slices.ContainsFunc(ring.Keys(), func(k keyfile.Key) bool { return m.Key == k.ID || m.Key == fingerprint(k.Secret) }) {
		return fmt.Errorf("%s is not the key of the installation in the backup; replace it by that key, or remove it", cfg.KeyFile)
	}
	return nil
}

// undo renames the directories back that an interrupted restore had begun to put into place,
// so that it can be repeated. The journals are put into place last, so that an installation
// has none until it is complete. If there are journals, undo changes nothing.
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
	if err := os.Rename(store+unfinished, store+finished); err != nil && !errors.Is(err, fs.ErrNotExist) { // with nats-url there is none
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
		embedded, err = natsd.Start(natsd.Config{StoreDir: store, MaxStore: int64(cfg.MaxStore) << 20, Port: natsd.InProcess, Logger: zap.NewNop(), Bulk: true})
		if err != nil {
			return err
		}
		closeBroker = embedded.Stop
		nc, err = embedded.Connect("quartet-restore")
	}
	if err == nil {
		err = refill(ctx, cfg, m, nc, homes, from, totals)
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

// refill creates the streams in nc, publishes the messages of the backup from and writes its
// files below homes, and compares the streams with totals. It is an error if a stream has
// messages already.
func refill(ctx context.Context, cfg Config, m archive.Manifest, nc *nats.Conn, homes *os.Root, from *archive.File, totals archive.Totals) error {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(inFlight))
	if err != nil {
		return err
	}
	for _, plane := range planes {
		n := max(m.Partitions[plane], 1)
		if got, err := jetlog.EnsureStream(ctx, nc, plane, cfg.Replicas, n); err != nil {
			return err
		} else if got != n {
			return fmt.Errorf("the journal of %s exists already and has %d partitions, that of the backup has %d; restore into a cluster without journals", plane, got, n)
		}
	}
	if _, err := js.CreateOrUpdateStream(ctx, taskoutput.StreamConfig(cfg.Replicas)); err != nil {
		return err
	}
	for name := range totals.Streams {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		if last := s.CachedInfo().State.LastSeq; last > 0 {
			return fmt.Errorf("stream %s of %s has messages already; a backup is restored into a cluster without any", name, natsd.Redact(cfg.NATSURL, cfg.NATSURL))
		}
	}
	p := &publishing{js: js, last: map[string]uint64{}}
	if _, _, err := from.Read(archive.Visitor{
		Message: func(m archive.Message) error { return p.publish(ctx, m) },
		File:    func(name string, mode, _ int64, body io.Reader) error { return putFile(homes, name, mode, body) },
	}); err != nil {
		return err
	}
	if err := p.drain(ctx, 0); err != nil {
		return err
	}
	for name, want := range totals.Streams {
		if name == taskoutput.StreamName { // its sequences differ, and old messages may have expired
			continue
		}
		if err := compare(ctx, js, name, want); err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	for _, plane := range planes {
		if err := repair.BeginRestored(ctx, nc, plane, max(m.Partitions[plane], 1), datadir.Witness(cfg.DataDir), time.Now(), id.New().New); err != nil {
			return err
		}
	}
	return nil
}

// publishing publishes messages without waiting for each acknowledgement.
type publishing struct {
	js    jetstream.JetStream
	waits []sent            // the messages without an acknowledgement, in order
	last  map[string]uint64 // the last sequence of each journal's stream
}

// sent is a message that was published and not acknowledged yet.
type sent struct {
	ack jetstream.PubAckFuture
	m   archive.Message
}

// publish publishes a message; it waits while too many are unacknowledged. It may return
// the error of an earlier message.
func (p *publishing) publish(ctx context.Context, m archive.Message) error {
	msg := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: m.Header}
	journal := m.Stream != taskoutput.StreamName
	if !journal {
		// A chunk's expected sequences are those of the old stream.
		msg.Header = nats.Header{}
		for k, v := range m.Header {
			if !strings.HasPrefix(k, "Nats-Expected-") {
				msg.Header[k] = v
			}
		}
	}
	for journal && p.last[m.Stream] < m.Seq-1 { // sequences that a new incarnation left out
		p.last[m.Stream]++
		if err := p.send(ctx, &nats.Msg{Subject: jetlog.Unused(m.Stream)}, archive.Message{Stream: m.Stream, Seq: p.last[m.Stream]}); err != nil {
			return err
		}
	}
	p.last[m.Stream] = m.Seq
	return p.send(ctx, msg, m)
}

// send publishes msg as m; see publish.
func (p *publishing) send(ctx context.Context, msg *nats.Msg, m archive.Message) error {
	ack, err := p.js.PublishMsgAsync(msg)
	if err != nil {
		return fmt.Errorf("publish %d of %s: %w", m.Seq, m.Stream, err)
	}
	m.Data = nil
	p.waits = append(p.waits, sent{ack, m})
	if len(p.waits) < inFlight {
		return nil
	}
	return p.drain(ctx, inFlight/2)
}

// drain waits until at most n messages are unacknowledged. A journal's message that got
// another sequence than in the backup is an error.
func (p *publishing) drain(ctx context.Context, n int) error {
	limit := time.NewTimer(ackTerm)
	defer limit.Stop()
	for len(p.waits) > n {
		w := p.waits[0]
		select {
		case ack := <-w.ack.Ok():
			// Planes refer to each other's messages by sequence, so these must not change.
			if ack.Stream != w.m.Stream || w.m.Stream != taskoutput.StreamName && ack.Sequence != w.m.Seq {
				return fmt.Errorf("message %d of %s became message %d of %s", w.m.Seq, w.m.Stream, ack.Sequence, ack.Stream)
			}
		case err := <-w.ack.Err():
			return fmt.Errorf("message %d of %s: %w", w.m.Seq, w.m.Stream, err)
		case <-limit.C:
			return fmt.Errorf("message %d of %s was not acknowledged within %s", w.m.Seq, w.m.Stream, ackTerm)
		case <-ctx.Done():
			return ctx.Err()
		}
		p.waits = p.waits[1:]
	}
	return nil
}

// compare reads a stream again, and returns an error unless it has the messages of the backup.
func compare(ctx context.Context, js jetstream.JetStream, name string, want archive.Sum) error {
	got := archive.NewDigest()
	if err := backup.Messages(ctx, js, name, func(m archive.Message, _ time.Time) (bool, error) {
		if m.Subject != jetlog.Unused(name) {
			got.Add(m)
		}
		return true, nil
	}); err != nil {
		return err
	}
	if sum := got.Sum(); sum != want {
		return fmt.Errorf("what was written differs from the backup: %d messages up to %d", sum.Messages, sum.Last)
	}
	return nil
}

// putFile writes one file of an agent's home, which must not exist, below root.
func putFile(root *os.Root, name string, mode int64, body io.Reader) error {
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(mode))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}
