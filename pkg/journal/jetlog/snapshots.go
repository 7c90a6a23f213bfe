package jetlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/snapshot"
)

// SnapshotPrefix is the prefix of the names of the streams.
const SnapshotPrefix = "quartet-snapshot-"

// snapshotSubjects is what the subjects of the streams begin with.
const snapshotSubjects = "quartet.snapshot."

// SnapshotStream returns the name of the stream of a partition.
func SnapshotStream(plane string, partition int) string {
	return SnapshotPrefix + plane + "-" + strconv.Itoa(partition)
}

// SnapshotStreams returns the names of all streams of snapshots, in order.
func SnapshotStreams(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	return StreamNames(ctx, js, snapshotSubjects+">", SnapshotPrefix)
}

// StreamNames returns the names of the streams that have a subject, or subjects that match one with wildcards, and
// whose names begin with a prefix, in order.
func StreamNames(ctx context.Context, js jetstream.JetStream, subject, prefix string) ([]string, error) {
	return Patiently(ctx, func(ctx context.Context) (names []string, err error) {
		listed := js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
		for name := range listed.Name() {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, listed.Err()
	})
}

// SnapshotStore is snapshot.Store in a stream for each partition, from which messages can be removed. Each object is a
// message, and its number the message's sequence number.
type SnapshotStore struct {
	js       jetstream.JetStream
	name     string
	subject  string
	replicas int

	mu     sync.Mutex
	stream jetstream.Stream // nil until it was used
}

var _ snapshot.Store = (*SnapshotStore)(nil)

// NewSnapshotStore returns the store of a partition. Its stream is created when something is stored.
func NewSnapshotStore(nc *nats.Conn, plane string, partition, replicas int) (*SnapshotStore, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstore: %w", err)
	}
	return &SnapshotStore{
		js: js, name: SnapshotStream(plane, partition),
		subject:  snapshotSubjects + plane + "." + strconv.Itoa(partition),
		replicas: max(replicas, 1),
	}, nil
}

// find returns the stream, or ErrStreamNotFound.
func (s *SnapshotStore) find(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		return s.stream, nil
	}
	stream, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return s.js.Stream(ctx, s.name)
	})
	if err != nil {
		return nil, fmt.Errorf("jetstore: stream %s: %w", s.name, err)
	}
	s.stream = stream
	return stream, nil
}

// create creates the stream if there is none.
func (s *SnapshotStore) create(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		return nil
	}
	stream, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		cfg := s.config()
		if old, err := s.js.Stream(ctx, s.name); err == nil {
			cfg.FirstSeq = old.CachedInfo().Config.FirstSeq // RestoreSnapshots may have set it; it stays
		} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, err
		}
		return s.js.CreateOrUpdateStream(ctx, cfg)
	})
	if err != nil {
		return fmt.Errorf("jetstore: stream %s: %w", s.name, err)
	}
	s.stream = stream
	return nil
}

// config returns the configuration of the stream.
func (s *SnapshotStore) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: s.name, Description: "Quartet: snapshots of a partition", Subjects: []string{s.subject, s.subject + ".*"},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		Replicas: s.replicas,
		MaxMsgs:  -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1, DenyPurge: true,
	}
}

// ParseSnapshotStream returns the partition whose snapshots are in the stream of a name; ok is false if it is no such
// name.
func ParseSnapshotStream(name string) (plane string, partition int, ok bool) {
	rest, ok := strings.CutPrefix(name, SnapshotPrefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || i <= 0 {
		return "", 0, false
	}
	partition, err := strconv.Atoi(rest[i+1:])
	return rest[:i], partition, err == nil && partition >= 0
}

// RestoreSnapshots creates the stream of a partition for the objects of a backup, of which the first has the number
// first. It returns the subject of the messages that are to take the place of objects which the backup does not have;
// they may be empty, and the next snapshot removes them. It is an error if the stream exists and has messages.
func RestoreSnapshots(ctx context.Context, nc *nats.Conn, plane string, partition, replicas int, first uint64) (
	subject string, err error,
) {
	s, err := NewSnapshotStore(nc, plane, partition, replicas)
	if err != nil {
		return "", err
	}
	cfg := s.config()
	cfg.FirstSeq = first
	stream, err := s.js.CreateStream(ctx, cfg)
	if err != nil {
		return "", fmt.Errorf("jetstore: %s: %w", s.name, err)
	}
	if stream.CachedInfo().State.Msgs > 0 {
		return "", fmt.Errorf("jetstore: stream %s has messages already", s.name)
	}
	return s.subject, nil
}

// RestoredSnapshots returns the names of the streams that RestoreSnapshots has created, which alone have FirstSeq set,
// in order. The journals of their partitions may end before their snapshots do.
func RestoredSnapshots(ctx context.Context, js jetstream.JetStream) (names []string, err error) {
	all, err := SnapshotStreams(ctx, js)
	for _, name := range all {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("jetstore: %s: %w", name, err)
		}
		if s.CachedInfo().Config.FirstSeq > 0 {
			names = append(names, name)
		}
	}
	return names, err
}

// put stores an object under a subject and returns its number. If the stream was removed, put forgets it, so that the
// next create makes it again.
func (s *SnapshotStore) put(ctx context.Context, subject string, o []byte) (uint64, error) {
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: o}, jetstream.WithExpectStream(s.name))
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // the stream was removed
		s.mu.Lock()
		s.stream = nil
		s.mu.Unlock()
	}
	if err != nil {
		return 0, fmt.Errorf("jetstore: %s: %w", s.name, err)
	}
	return ack.Sequence, nil
}

// Put implements snapshot.Store.
func (s *SnapshotStore) Put(ctx context.Context, objects [][]byte) ([]uint64, error) {
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	numbers := make([]uint64, len(objects))
	for i, o := range objects {
		var err error
		if numbers[i], err = s.put(ctx, s.subject, o); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// PutManifest implements snapshot.Store.
func (s *SnapshotStore) PutManifest(ctx context.Context, slot int, manifest []byte) (uint64, error) {
	if err := s.create(ctx); err != nil {
		return 0, err
	}
	return s.put(ctx, s.subject+"."+strconv.Itoa(slot), manifest)
}

// message returns the message that get asks the stream for; snapshot.ErrNoObject if there is no such message or no
// stream.
func (s *SnapshotStore) message(ctx context.Context,
	get func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg, error),
) (*jetstream.RawStreamMsg, error) {
	stream, err := s.find(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, snapshot.ErrNoObject
	}
	if err != nil {
		return nil, err
	}
	m, err := Patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return get(ctx, stream)
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, snapshot.ErrNoObject
	case err != nil:
		return nil, fmt.Errorf("jetstore: %s: %w", s.name, err)
	}
	return m, nil
}

// Get implements snapshot.Store.
func (s *SnapshotStore) Get(ctx context.Context, number uint64) ([]byte, error) {
	m, err := s.message(ctx, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetMsg(ctx, number)
	})
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// Manifests implements snapshot.Store.
func (s *SnapshotStore) Manifests(ctx context.Context) (map[uint64][]byte, error) {
	all := map[uint64][]byte{}
	for slot := range snapshot.Slots {
		m, err := s.message(ctx, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
			return st.GetLastMsgForSubject(ctx, s.subject+"."+strconv.Itoa(slot))
		})
		if errors.Is(err, snapshot.ErrNoObject) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all[m.Sequence] = m.Data
	}
	return all, nil
}

// Numbers implements snapshot.Store. It returns an error if nothing was ever stored.
func (s *SnapshotStore) Numbers(ctx context.Context) ([]uint64, error) {
	stream, err := s.find(ctx)
	if err != nil {
		return nil, err
	}
	info, err := Patiently(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithDeletedDetails(true))
	})
	if err != nil {
		return nil, fmt.Errorf("jetstore: %s: %w", s.name, err)
	}
	removed := make(map[uint64]bool, len(info.State.Deleted))
	for _, seq := range info.State.Deleted {
		removed[seq] = true
	}
	var all []uint64
	for seq := info.State.FirstSeq; seq > 0 && seq <= info.State.LastSeq; seq++ {
		if !removed[seq] {
			all = append(all, seq)
		}
	}
	return all, nil
}

// Remove implements snapshot.Store. The bytes of the objects are overwritten: their owners may have been erased.
func (s *SnapshotStore) Remove(ctx context.Context, numbers []uint64) error {
	stream, err := s.find(ctx)
	if err != nil {
		return err
	}
	for _, seq := range numbers {
		if err := overwriteMessage(ctx, stream, seq); err != nil {
			return fmt.Errorf("jetstore: %s: remove %d: %w", s.name, seq, err)
		}
	}
	return nil
}
