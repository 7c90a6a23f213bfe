// Package streamstore is archive.Store on NATS JetStream: a stream for each partition, in which each object is a
// message.
package streamstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/jetlog"
)

// prefix is the prefix of the names of the streams, and subjects that of their subjects.
const (
	prefix   = "quartet-archive-"
	subjects = "quartet.archive."
)

const (
	// closeTerm is how long the removal of a segment that was not stored completely may take.
	closeTerm = 5 * time.Second
	// draftTerm is how long after its last object a draft is taken for one whose process was killed.
	draftTerm = 10 * time.Minute
)

// Stream returns the name of the stream of a partition.
func Stream(plane string, partition int) string {
	return prefix + plane + "-" + strconv.Itoa(partition)
}

// Store keeps the archive of one partition. The objects of a segment have the subject frames.<name>, and once they are
// complete there is an empty message with the subject complete.<name>. The version of a catalog is the number of its
// message.
type Store struct {
	js       jetstream.JetStream
	name     string
	subject  string
	replicas int

	mu     sync.Mutex
	stream jetstream.Stream // nil until it was used
}

var _ archive.Store = (*Store)(nil)

// New returns the store of a partition. Its stream is created when something is stored.
func New(nc *nats.Conn, plane string, partition, replicas int) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("streamstore: %w", err)
	}
	return &Store{js: js, name: Stream(plane, partition), subject: subjects + plane + "." + strconv.Itoa(partition) +
		".", replicas: max(replicas, 1)}, nil
}

// find returns the stream, or ErrNoObject if there is none.
func (s *Store) find(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		return s.stream, nil
	}
	stream, err := jetlog.Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return s.js.Stream(ctx, s.name)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: there is no stream %s", archive.ErrNoObject, s.name)
	}
	if err != nil {
		return nil, s.failed(err)
	}
	s.stream = stream
	return stream, nil
}

// failed wraps err, which must not be nil, in an error that names the stream.
func (s *Store) failed(err error) error { return fmt.Errorf("streamstore: stream %s: %w", s.name, err) }

// create creates the stream if there is none.
func (s *Store) create(ctx context.Context) error {
	_, err := s.find(ctx)
	if !errors.Is(err, archive.ErrNoObject) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream, err = jetlog.Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return s.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: s.name, Description: "Quartet: archive of a partition's journal", Subjects: []string{s.subject + ">"},
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
			Replicas: s.replicas,
			MaxMsgs:  -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
		})
	})
	if err != nil {
		s.stream = nil
		return s.failed(err)
	}
	return nil
}

// put stores a message and returns its number.
func (s *Store) put(ctx context.Context, subject string, b []byte, opts ...jetstream.PublishOpt) (uint64, error) {
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: s.subject + subject, Data: b},
		append(opts, jetstream.WithExpectStream(s.name))...)
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // the stream was removed
		s.mu.Lock()
		s.stream = nil
		s.mu.Unlock()
	}
	if err != nil {
		return 0, s.failed(err)
	}
	return ack.Sequence, nil
}

// draft is a segment that is being stored.
type draft struct {
	store     *Store
	name      string
	committed bool // Commit succeeded: Close removes nothing
	added     bool // Add was called: there may be objects to remove
}

// Begin implements archive.Store. First it removes the drafts of processes that were killed: their frames are in no
// list of names, and may have lines that are erased by now.
func (s *Store) Begin(ctx context.Context, segment uint64) (archive.Draft, error) {
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	if err := s.sweep(ctx, draftTerm); err != nil {
		return nil, err
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	return &draft{store: s, name: strconv.FormatUint(segment, 10) + "-" + hex.EncodeToString(random[:])}, nil
}

// sweep removes the objects of segments that are not complete and got their last object longer ago than term.
func (s *Store) sweep(ctx context.Context, term time.Duration) error {
	drafts, now, err := s.named(ctx, "frames.")
	if err != nil {
		return err
	}
	complete, _, err := s.named(ctx, "complete.") // after the drafts, so it has those that were completed in between
	if err != nil {
		return err
	}
	for name := range drafts {
		if _, done := complete[name]; done {
			continue
		}
		m, err := s.last(ctx, "frames."+name)
		if errors.Is(err, archive.ErrNoObject) || err == nil && now.Sub(m.Time) <= term {
			continue
		}
		if err == nil {
			err = s.Remove(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Add implements archive.Draft.
func (d *draft) Add(ctx context.Context, object []byte) (uint64, error) {
	d.added = true
	return d.store.put(ctx, "frames."+d.name, object)
}

// Commit implements archive.Draft. It stores an empty message, without which Names does not have the segment. Close
// tries to remove the objects of a draft whose Commit failed or was not called.
func (d *draft) Commit(ctx context.Context) (string, error) {
	_, err := d.store.put(ctx, "complete."+d.name, nil)
	d.committed = err == nil
	return d.name, err
}

// Close implements archive.Draft.
func (d *draft) Close() {
	if d.committed || !d.added {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTerm)
	defer cancel()
	_ = d.store.Remove(ctx, d.name) // objects that stay only take room
}

// message returns the message that get reads from the archive's stream, or an error that wraps ErrNoObject if message
// or stream does not exist. It may call get several times, since jetlog.Patiently repeats requests.
func (s *Store) message(ctx context.Context, get func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg,
	error),
) (*jetstream.RawStreamMsg, error) {
	stream, err := s.find(ctx)
	if err != nil {
		return nil, err
	}
	m, err := jetlog.Patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return get(ctx, stream)
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("%w: stream %s: %w", archive.ErrNoObject, s.name, err)
	case err != nil:
		return nil, s.failed(err)
	}
	return m, nil
}

// Get implements archive.Store.
func (s *Store) Get(ctx context.Context, name string, at uint64, n int64) ([]byte, error) {
	m, err := s.message(ctx, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetMsg(ctx, at)
	})
	if err != nil {
		return nil, err
	}
	if m.Subject != s.subject+"frames."+name || int64(len(m.Data)) != n {
		return nil, fmt.Errorf("%w: stream %s: message %d is %s with %d bytes", archive.ErrNoObject, s.name, at,
			m.Subject, len(m.Data))
	}
	return m.Data, nil
}

// Last implements archive.Store.
func (s *Store) Last(ctx context.Context, name string) ([]byte, uint64, error) {
	m, err := s.last(ctx, "frames."+name)
	if err != nil {
		return nil, 0, err
	}
	return m.Data, m.Sequence, nil
}

// last returns the last message with a subject, given without the prefix s.subject. It returns
// ErrNoObject if there is no such message or no stream.
func (s *Store) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	return s.message(ctx, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetLastMsgForSubject(ctx, s.subject+subject)
	})
}

// Names implements archive.Store.
func (s *Store) Names(ctx context.Context) (map[string]uint64, error) {
	names, _, err := s.named(ctx, "complete.")
	return names, err
}

// named returns the names and numbers of the segments that have a message of a kind, and the time of that by the
// server's clock. Without a stream it returns none and the zero time.
func (s *Store) named(ctx context.Context, kind string) (names map[string]uint64, now time.Time, err error) {
	stream, err := s.find(ctx)
	if errors.Is(err, archive.ErrNoObject) {
		return nil, now, nil
	}
	if err != nil {
		return nil, now, err
	}
	info, err := jetlog.Patiently(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithSubjectFilter(s.subject+kind+"*"))
	})
	if err != nil {
		return nil, now, s.failed(err)
	}
	names = map[string]uint64{}
	for subject := range info.State.Subjects {
		name := strings.TrimPrefix(subject, s.subject+kind)
		number, _, _ := strings.Cut(name, "-")
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			names[name] = n
		}
	}
	return names, info.TimeStamp, nil
}

// Remove implements archive.Store. It overwrites the bytes of each message, since they may have to be erased.
func (s *Store) Remove(ctx context.Context, name string) error {
	stream, err := s.find(ctx)
	if errors.Is(err, archive.ErrNoObject) {
		return nil
	}
	if err != nil {
		return err
	}
	// Frames without the message that completes them are in no list of names, so that one goes last.
	for _, kind := range []string{"frames.", "complete."} {
		if err := jetlog.Overwrite(ctx, stream, s.subject+kind+name); err != nil {
			return s.failed(err)
		}
	}
	return nil
}

// Catalog implements archive.Store.
func (s *Store) Catalog(ctx context.Context) ([]byte, uint64, error) {
	m, err := s.last(ctx, "catalog")
	if errors.Is(err, archive.ErrNoObject) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return m.Data, m.Sequence, nil
}

// ReplaceCatalog implements archive.Store.
func (s *Store) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	_, err := s.put(ctx, "catalog", content, jetstream.WithExpectLastSequencePerSubject(version))
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return fmt.Errorf("%w: %w", archive.ErrReplaced, err)
	}
	if err != nil || version == 0 {
		return err
	}
	// The one before is not needed any more. If it stays, it takes room only.
	stream, err := s.find(ctx)
	if err == nil {
		_ = stream.DeleteMsg(ctx, version)
	}
	return nil
}
