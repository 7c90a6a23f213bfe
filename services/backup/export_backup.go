package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"filippo.io/age"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/archive"
	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
)

const (
	// chunkBytes is how many bytes of the backup one message of the response has at most.
	chunkBytes = 256 << 10
	// readBytes bounds the messages, in bytes, that the broker has sent and the backup has not processed yet.
	readBytes = 16 << 20
	// stallTerm is how long the broker may send nothing before the backup fails.
	stallTerm = 30 * time.Second
	// wholeFile is the size up to which a file is read as a whole before it is written to
	// the archive, so that a program may shorten it meanwhile. If a larger file is
	// shortened while it is copied, the backup fails.
	wholeFile = 8 << 20
)

// ExportBackup streams a backup: the journals and, unless omit_output is set, the output of
// commands, as of one moment during the call, and the files of the homes as they are when they are
// read. It encrypts and authenticates the file before the file leaves the process. It returns STORAGE
// if it could not complete the backup; the client must discard what it received.
func (s *Service) ExportBackup(req *backupv1.ExportBackupRequest,
	out grpc.ServerStreamingServer[backupv1.ExportBackupResponse],
) (failure error) {
	ctx := out.Context()
	if s.deps.Record != nil {
		ended, err := s.deps.Record(ctx, backupv1.BackupService_ExportBackup_FullMethodName, req)
		if err != nil {
			return err
		}
		defer func() { ended(failure) }()
	}
	recipients, err := archive.ParseRecipients(req.GetRecipients())
	if err != nil {
		return fault.InvalidArgument.New("recipients: "+err.Error(), "field", "recipients").
			WithField("recipients", "must be recipients of age")
	}
	began, sum := time.Now(), sha256.New()
	to := &sender{out: out}
	m, totals, err := s.export(ctx, req.GetOmitOutput(), recipients, to, sum)
	if err == nil {
		err = out.Send(&backupv1.ExportBackupResponse{
			Contents: contentsOf(m, totals, hex.EncodeToString(sum.Sum(nil))),
		})
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		s.deps.Logger.Warn("backup failed", zap.Error(err))
		return fault.Storage.Newf("the backup could not be made: %s; try again", err)
	}
	messages := uint64(0)
	for _, sum := range totals.Streams {
		messages += sum.Messages
	}
	s.deps.Logger.Info("backup made", zap.Uint64("messages", messages), zap.Uint64("files", totals.Files),
		zap.Duration("took", time.Since(began)))
	return nil
}

// contentsOf returns the description of a backup, for the last message of the response. sum is the backup's SHA-256
// in hex.
func contentsOf(m archive.Manifest, t archive.Totals, sum string) *backupv1.BackupContents {
	c := &backupv1.BackupContents{
		Version: m.Version, CutAt: timestamppb.New(m.CutAt), InstallationKeyId: m.Key,
		Sha256: sum, Files: int64(t.Files),
	}
	for _, name := range slices.Sorted(maps.Keys(t.Streams)) {
		s := t.Streams[name]
		c.Streams = append(c.Streams, &backupv1.BackupStream{
			Name: name, Messages: int64(s.Messages),
			Bytes: int64(s.Bytes),
		})
	}
	return c
}

// export sends the backup, encrypted and authenticated as archive.Seal does, to the client, and writes the same bytes
// to sum. After an error, the bytes that were sent are no complete backup, and manifest and totals may be incomplete.
func (s *Service) export(ctx context.Context, omitOutput bool, recipients []age.Recipient, to *sender, sum io.Writer) (
	archive.Manifest, archive.Totals, error,
) {
	key := s.cfg.Key()
	js, err := jetstream.New(s.deps.Conn())
	if err != nil {
		return archive.Manifest{}, archive.Totals{}, err
	}
	m := archive.Manifest{Version: s.cfg.Version, Key: key.ID}
	if s.deps.Partitions != nil {
		m.Partitions = s.deps.Partitions()
	}
	streams, archives, moment, err := s.streams(ctx, js, omitOutput)
	if err != nil {
		return m, archive.Totals{}, err
	}
	m.Streams, m.CutAt = streams, moment.at.UTC()
	to.progress = newProgress(m.Streams, moment, archives, s.cfg.Home)
	buffered := bufio.NewWriterSize(io.MultiWriter(to, sum), chunkBytes)
	seal, err := archive.Seal(buffered, key, recipients)
	if err != nil {
		return m, archive.Totals{}, err
	}
	w, err := archive.NewWriter(seal, m)
	if err != nil {
		return m, archive.Totals{}, err
	}
	totals, err := s.fill(ctx, js, m, archives, moment, w, to.progress)
	if err != nil {
		w.Abandon()
		return m, totals, err
	}
	if err := seal.Close(); err != nil {
		return m, totals, err
	}
	return m, totals, buffered.Flush()
}

// streams returns the streams of a backup, the archived segments by the streams that they had, and the moment up to
// which the backup has messages. One moment is consistent for all streams: the broker gives each message its time
// when it stores it, and what follows from a message is stored after it.
func (s *Service) streams(ctx context.Context, js jetstream.JetStream, omitOutput bool) (names []string,
	archives map[string][]archived, moment cut, err error,
) {
	var output []string
	if s.cfg.Output != "" && !omitOutput {
		switch _, err := js.Stream(ctx, s.cfg.Output); {
		case err == nil:
			output = []string{s.cfg.Output}
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, nil, cut{}, fmt.Errorf("stream %s: %w", s.cfg.Output, err)
		}
	}
	for {
		journals, err := s.cfg.Journals(ctx, js)
		if err != nil {
			return nil, nil, cut{}, err
		}
		// After the streams were listed, so that a segment that is archived meanwhile is in the list or in an
		// archive.
		if archives, err = s.archives(ctx, journals); err != nil {
			return nil, nil, cut{}, err
		}
		for _, name := range moment.gone {
			if slices.Contains(journals, name) && len(archives[name]) == 0 {
				return nil, nil, cut{}, fmt.Errorf("stream %s: %w", name, jetstream.ErrStreamNotFound)
			}
		}
		// Snapshots are copied first, because newer ones replace them in time.
		snapshots, err := shortened(ctx, js, archives)
		if err != nil {
			return nil, nil, cut{}, err
		}
		all := slices.Concat(snapshots, complete(journals, archives), output)
		// The moment is valid only if the streams are those for which it was chosen: a segment that began since may
		// have messages of before the moment.
		if slices.Equal(all, names) {
			return names, archives, moment, nil
		}
		if moment, err = chooseCut(ctx, js, slices.Concat(snapshots, journals, output)); err != nil {
			return nil, nil, cut{}, err
		}
		if names = all; s.deps.Archive == nil {
			continue
		}
		switch err := moment.seal(ctx, js); {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			names = nil // choose another moment
		case err != nil:
			return nil, nil, cut{}, err
		}
	}
}

// fill writes the streams of the manifest and the homes, and completes the archive.
func (s *Service) fill(ctx context.Context, js jetstream.JetStream, m archive.Manifest, archives map[string][]archived,
	moment cut, w *archive.Writer, p *progress,
) (archive.Totals, error) {
	write := func(m archive.Message) error {
		p.message(m.Stream)
		return w.Message(m)
	}
	c := &copying{
		Service: s, js: js, moment: moment, write: write, ends: map[string]framelog.End{},
		seen: map[string]bool{},
	}
	for _, name := range m.Streams {
		if err := c.stream(ctx, name, archives); err != nil {
			return archive.Totals{}, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	if err := copyHome(s.cfg.Home, w, p); err != nil {
		return archive.Totals{}, fmt.Errorf("agents' homes: %w", err)
	}
	return w.Close()
}

// copyStream calls fn with the messages of a stream that were stored up to the moment, without those that jetlog
// marked as unused. It returns an error if a message has a time that contradicts the order (see cut.includes).
func copyStream(ctx context.Context, js jetstream.JetStream, name string, moment cut,
	fn func(archive.Message) error,
) error {
	return Messages(ctx, js, name, func(m archive.Message, stored time.Time) (bool, error) {
		in, err := moment.includes(name, m.Seq, stored)
		if err != nil || !in {
			return false, err
		}
		if jetlog.IsUnused(m.Subject) {
			return true, nil
		}
		return true, fn(m)
	})
}

// Messages calls fn with the messages that a stream holds, in order, until there are no
// more, fn returns false, or fn returns an error, which Messages returns. stored is the broker's time of a message.
func Messages(ctx context.Context, js jetstream.JetStream, name string, fn func(m archive.Message, stored time.Time) (
	more bool, err error),
) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	if stream.CachedInfo().State.Msgs == 0 {
		return nil
	}
	cons, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: time.Minute,
		// otherwise the client tries without end to read a stream that was removed, as of a segment that was archived
		MaxResetAttempts: 3,
	})
	if err != nil {
		return err
	}
	msgs, err := cons.Messages(jetstream.PullMaxBytes(readBytes))
	if err != nil {
		return err
	}
	defer msgs.Stop()
	for {
		next, cancel := context.WithTimeout(ctx, stallTerm)
		msg, err := msgs.Next(jetstream.NextContext(next))
		cancel()
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		more, err := fn(archive.Message{
			Stream: name, Subject: msg.Subject(), Seq: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(),
		}, meta.Timestamp)
		if err != nil || !more || meta.NumPending == 0 {
			return err
		}
	}
}

// copyHome writes all regular files of a directory and of those below it. It leaves symbolic links out,
// since what they point to need not belong to the agents. A directory that does not exist has no files.
func copyHome(dir string, w *archive.Writer, p *progress) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			return nil
		case err != nil:
			return err
		case !d.Type().IsRegular():
			return nil
		}
		return copyFile(root, path, w, p)
	})
}

// copyFile writes one file. If the file does not exist any more, it writes nothing and returns nil.
func copyFile(root *os.Root, path string, w *archive.Writer, p *progress) error {
	f, err := root.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > wholeFile {
		return w.File(path, int64(info.Mode().Perm()), info.Size(), p.file(f))
	}
	text, err := io.ReadAll(io.LimitReader(p.file(f), wholeFile))
	if err != nil {
		return err
	}
	return w.File(path, int64(info.Mode().Perm()), int64(len(text)), bytes.NewReader(text))
}

// sender is an io.Writer that sends what is written in messages of at most chunkBytes, each with the progress.
type sender struct {
	out      grpc.ServerStreamingServer[backupv1.ExportBackupResponse]
	progress *progress
}

// Write implements io.Writer. It returns how many bytes were sent, and the error of the call's stream.
func (s *sender) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		piece := b[n:min(n+chunkBytes, len(b))]
		if err := s.out.Send(&backupv1.ExportBackupResponse{Chunk: piece, Done: s.progress.part()}); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}
