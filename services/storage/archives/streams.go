package archives

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/retry"
)

// Earlier versions kept the archives of an installation with nats-url in streams of its NATS servers, one for each
// partition. An object is a message with the subject quartet.archive.<plane>.<partition>.frames.<segment>, and where
// it is, its sequence number. The last message with the subject quartet.archive.<plane>.<partition>.catalog is the
// catalog.
const (
	streamPrefix   = "quartet-archive-"
	streamSubjects = "quartet.archive."
)

// streamStore reads an archive in a stream.
type streamStore struct {
	archive.Store // nil: nothing is stored in a stream any more
	stream        jetstream.Stream
	subject       string
}

func streamName(plane string, partition int) string {
	return streamPrefix + plane + "-" + strconv.Itoa(partition)
}

// message returns the message that get reads; archive.ErrNoObject if there is none.
func (s streamStore) message(ctx context.Context, get func(context.Context) (*jetstream.RawStreamMsg, error)) (
	*jetstream.RawStreamMsg, error,
) {
	m, err := jetlog.Patiently(ctx, get)
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %w", archive.ErrNoObject, err)
	}
	return m, err
}

// Get implements archive.Store. The caller compares the hash of what it returns.
func (s streamStore) Get(ctx context.Context, _ string, at uint64, _ int64) ([]byte, error) {
	m, err := s.message(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.stream.GetMsg(ctx, at)
	})
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// Catalog implements archive.Store.
func (s streamStore) Catalog(ctx context.Context) ([]byte, uint64, error) {
	m, err := s.message(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.stream.GetLastMsgForSubject(ctx, s.subject+"catalog")
	})
	if errors.Is(err, archive.ErrNoObject) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return m.Data, m.Sequence, nil
}

// Unmoved returns the names of the streams in which an earlier version kept archives, in order.
func Unmoved(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	return jetlog.StreamNames(ctx, js, streamSubjects+">", streamPrefix)
}

// CheckMoved returns an error that names the streams in which an earlier version kept archives, if there are any.
func CheckMoved(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	names, err := Unmoved(ctx, js)
	if err != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("an earlier version kept the archives of this installation in NATS, in %s, where archives are "+
		"not kept any more: stop all processes, and start them with the setting archive, a directory that they share, "+
		"as /srv/quartet/archive, or a bucket, as %s; the first start moves what the streams have to it",
		strings.Join(names, ", "), LocationExample)
}

// beginRemote moves archives that are in streams. It returns an error if there are some and nothing is archived, or if
// a journal begins behind what the archive has: then the archive is elsewhere.
func (p Places) beginRemote(ctx context.Context, in Installation) error {
	js, err := jetstream.New(in.Conn)
	if err != nil {
		return err
	}
	names, err := Unmoved(ctx, js)
	if err != nil {
		return err
	}
	if len(names) > 0 && !p.Kept() {
		return CheckMoved(ctx, in.Conn)
	}
	for _, plane := range in.Planes {
		places, err := jetlog.Places(ctx, js, plane)
		if err != nil {
			return err
		}
		for i := range in.Partitions(plane) {
			if slices.Contains(names, streamName(plane, i)) {
				if err := p.move(ctx, js, plane, i, in.Logger); err != nil {
					return err
				}
			}
			if p.Bucket == nil { // a bucket may not answer
				if err := p.checkBeginning(ctx, places, plane, i); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkBeginning returns an error if the journal of a partition does not begin with its first segment, and nothing of
// it is archived. places are the segments of the plane, in order.
func (p Places) checkBeginning(ctx context.Context, places []jetlog.Place, plane string, partition int) error {
	first := slices.IndexFunc(places, func(of jetlog.Place) bool { return of.Shared || of.Partition == partition })
	if first < 0 || places[first].Shared || places[first].Segment == 0 {
		return nil
	}
	store, err := p.Store(plane, partition)
	if err != nil {
		return err
	}
	_, version, err := store.Catalog(ctx)
	if err != nil || version > 0 {
		return err
	}
	where := "and no archive is named: give the setting archive that the other processes have"
	if p.Dir != "" {
		where = "and " + p.Dir + " has no archive of it: see whether the volume is mounted, and give all processes " +
			"the same setting archive"
	}
	return fmt.Errorf("the journal of %s begins with segment %d, %s", framelog.PartitionName(plane, partition),
		places[first].Segment, where)
}

// moves is how often move begins again after an error: another process may be sealing or deleting the stream.
const moves = 5

// move copies what an archive in a stream has to the store of the partition, and deletes the stream. Several processes
// may do so at the same time: a segment counts as moved once it is in the new catalog.
func (p Places) move(ctx context.Context, js jetstream.JetStream, plane string, partition int,
	logger *zap.Logger,
) error {
	name := streamName(plane, partition)
	pacer := retry.New(20*time.Millisecond, time.Second)
	for failed := 0; ; {
		err := p.moveStream(ctx, js, plane, partition, logger)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, archive.ErrReplaced): // by another process, which moves it too
		case failed < moves && pacer.Wait(ctx) == nil:
			failed++
		default:
			return fmt.Errorf("the archive in the stream %s was not moved: %w", name, err)
		}
	}
}

func (p Places) moveStream(ctx context.Context, js jetstream.JetStream, plane string, partition int,
	logger *zap.Logger,
) error {
	stream, err := js.Stream(ctx, streamName(plane, partition))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // another process has moved it
	}
	if err != nil {
		return err
	}
	// Seal the stream, so that a process of an earlier version that still runs drops nothing because it put it there.
	if sealed := stream.CachedInfo().Config; !sealed.Sealed {
		sealed.Sealed = true
		if _, err := js.UpdateStream(ctx, sealed); err != nil {
			return err // also if another process is sealing it
		}
	}
	from := streamStore{stream: stream, subject: streamSubjects + plane + "." + strconv.Itoa(partition) + "."}
	store, err := p.Store(plane, partition)
	if err != nil {
		return err
	}
	old, err := archive.Read(ctx, from, framelog.PartitionName(plane, partition))
	if err != nil {
		return err
	}
	c, err := archive.Read(ctx, store, old.Partition)
	if err != nil {
		return err
	}
	for _, s := range old.Segments {
		if c.Has(s.GetNumber()) {
			continue
		}
		if c, err = c.Copy(ctx, store, s, from); err != nil {
			return err
		}
	}
	if err := c.Clean(ctx, store); err != nil {
		return err
	}
	err = js.DeleteStream(ctx, streamName(plane, partition))
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	logger.Info("an archive was moved out of a stream", zap.String("stream", streamName(plane, partition)),
		zap.Int("segments", len(old.Segments)))
	return nil
}
