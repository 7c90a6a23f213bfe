package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/archive"
	segments "quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/services/backup"
)

const (
	// inFlight is how many messages of a restore may be unacknowledged at a time.
	inFlight = 256
	// ackTerm bounds each wait for acknowledgements, of up to inFlight messages.
	ackTerm = 30 * time.Second
)

// RefillConfig says what is created.
type RefillConfig struct {
	Planes     []string
	Partitions map[string]int // of the planes in the backup that have more than one
	Streams    []string       // that the backup has
	Replicas   int
	Output     jetstream.StreamConfig // of the stream with the output of commands
	// WitnessDir has what was witnessed of the installation before; it need not exist.
	WitnessDir string
	// Archive returns the archive of a partition, which must be empty; nil: there is none.
	Archive func(plane string, partition int) (segments.Store, error)
	Servers string // the NATS servers, for errors
	Now     time.Time
	NewID   func(prefix string) string
}

// Refill creates the streams in nc, publishes the messages of the backup from and writes its
// files below homes, and compares the streams of journals with totals. It is an error if a
// stream has messages already.
func Refill(ctx context.Context, cfg RefillConfig, nc *nats.Conn, homes *os.Root, from *archive.File,
	totals archive.Totals,
) error {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(inFlight))
	if err != nil {
		return err
	}
	if err := cfg.checkEmpty(ctx, js); err != nil {
		return err
	}
	output, err := js.CreateOrUpdateStream(ctx, cfg.Output)
	if err != nil {
		return err
	}
	if output.CachedInfo().State.LastSeq > 0 {
		return cfg.hasMessages(cfg.Output.Name)
	}
	p := &publishing{
		js: js, output: cfg.Output.Name, last: map[string]uint64{}, unused: map[string]string{},
		create: func(name string, first uint64) (string, error) {
			if plane, partition, ok := jetlog.ParseSnapshotStream(name); ok {
				return jetlog.RestoreSnapshots(ctx, nc, plane, partition, cfg.Replicas, first)
			}
			of, segment := jetlog.ParseStream(name)
			if !segment {
				return "", fmt.Errorf("stream %s is not one of a journal", name)
			}
			if of.Shared || of.Segment == 0 {
				first = 1
			}
			return of.Unused(), jetlog.Create(ctx, nc, of, cfg.Replicas, max(cfg.Partitions[of.Plane], 1), first)
		},
	}
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
		// sequences of output differ, and old messages may have expired
		if name == cfg.Output.Name || want.Messages == 0 {
			continue
		}
		if _, _, ok := jetlog.ParseSnapshotStream(name); ok { // whoever reads a snapshot verifies it
			continue
		}
		if err := compare(ctx, js, name, want); err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	witnessed, err := witness.ReadBucket(ctx, nc)
	if err != nil {
		return err
	}
	for _, plane := range cfg.Planes {
		// partitions without a frame
		if _, err := jetlog.Ensure(ctx, nc, plane, cfg.Replicas, max(cfg.Partitions[plane], 1)); err != nil {
			return err
		}
		if err := BeginRestored(ctx, nc, plane, max(cfg.Partitions[plane], 1), cfg.WitnessDir, witnessed,
			cfg.Now, cfg.NewID); err != nil {
			return err
		}
	}
	// What was witnessed of the journals that were there before is not true of the restored ones.
	return witness.RemoveBucket(ctx, nc)
}

// checkEmpty refuses servers that have journals. Streams without a message may be there, of a server that was started.
func (cfg *RefillConfig) checkEmpty(ctx context.Context, js jetstream.JetStream) error {
	for _, plane := range cfg.Planes {
		places, err := jetlog.Places(ctx, js, plane)
		if err != nil {
			return err
		}
		for _, p := range places {
			s, err := js.Stream(ctx, p.Stream())
			if err != nil {
				return fmt.Errorf("stream %s: %w", p.Stream(), err)
			}
			if s.CachedInfo().State.Msgs > 0 {
				return cfg.hasMessages(p.Stream())
			}
			got, err := jetlog.Partitions(s.CachedInfo().Config)
			if n := max(cfg.Partitions[plane], 1); err != nil || got != n {
				return fmt.Errorf("the journal of %s exists already and has %d partitions, that of the backup has "+
					"%d; restore into a cluster without journals", plane, got, n)
			}
			if !slices.Contains(cfg.Streams, p.Stream()) {
				return fmt.Errorf("stream %s exists already, and the backup does not have it; restore into a cluster "+
					"without journals", p.Stream())
			}
		}
		if err := cfg.checkArchives(ctx, plane); err != nil {
			return err
		}
	}
	return nil
}

// checkArchives refuses archives that are not empty: the journals would lose the segments that a catalog names.
func (cfg *RefillConfig) checkArchives(ctx context.Context, plane string) error {
	if cfg.Archive == nil {
		return nil
	}
	for i := range max(cfg.Partitions[plane], 1) {
		store, err := cfg.Archive(plane, i)
		if err != nil {
			return err
		}
		_, version, err := store.Catalog(ctx)
		if err != nil {
			return err
		}
		names, err := store.Names(ctx)
		if err != nil {
			return err
		}
		if version > 0 || len(names) > 0 {
			return fmt.Errorf("the archive of %s has segments already; a backup is restored where there is neither a "+
				"journal nor an archive", framelog.PartitionName(plane, i))
		}
	}
	return nil
}

// hasMessages returns the error for a stream that is not empty.
func (cfg *RefillConfig) hasMessages(name string) error {
	return fmt.Errorf("stream %s of %s has messages already; a backup is restored into a cluster without any", name,
		cfg.Servers)
}

// publishing publishes the messages of a backup and waits for acknowledgements only where inFlight messages lack one.
// An error of a message is returned by a later publish or by drain; it is an error, too, if a message of a journal gets
// another sequence than in the backup.
type publishing struct {
	js     jetstream.JetStream
	output string
	waits  []sent            // the messages without an acknowledgement, in order
	last   map[string]uint64 // the last sequence of each stream but output
	unused map[string]string // the subject of what takes the place of messages that the backup does not have, by stream
	// create creates a stream of which the backup has a message at the sequence first, and returns its unused subject.
	create func(name string, first uint64) (unused string, err error)
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
	journal := m.Stream != p.output
	if !journal {
		// A chunk's expected sequences are those of the old stream.
		msg.Header = nats.Header{}
		for k, v := range m.Header {
			if !strings.HasPrefix(k, "Nats-Expected-") {
				msg.Header[k] = v
			}
		}
	}
	if _, created := p.last[m.Stream]; journal && !created {
		var err error
		if p.unused[m.Stream], err = p.create(m.Stream, m.Seq); err != nil {
			return err
		}
		p.last[m.Stream] = p.begins(m) - 1
	}
	// sequences that a new incarnation left out, and of objects of snapshots that were removed
	for journal && p.last[m.Stream] < m.Seq-1 {
		p.last[m.Stream]++
		if err := p.send(ctx, &nats.Msg{Subject: p.unused[m.Stream]},
			archive.Message{Stream: m.Stream, Seq: p.last[m.Stream]}); err != nil {
			return err
		}
	}
	p.last[m.Stream] = m.Seq
	return p.send(ctx, msg, m)
}

// begins returns the sequence at which a stream begins of which m is the first message in the backup.
func (p *publishing) begins(m archive.Message) uint64 {
	if of, segment := jetlog.ParseStream(m.Stream); segment && (of.Shared || of.Segment == 0) {
		return 1
	}
	return m.Seq
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
			if ack.Stream != w.m.Stream || w.m.Stream != p.output && ack.Sequence != w.m.Seq {
				return fmt.Errorf("message %d of %s became message %d of %s", w.m.Seq, w.m.Stream, ack.Sequence,
					ack.Stream)
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
		if !jetlog.IsUnused(m.Subject) {
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
