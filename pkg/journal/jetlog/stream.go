package jetlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config returns the configuration of the segment's stream (R6): on disk, without any removal of
// messages, and with reads by the leader only, because a follower may answer with old data after it was frozen.
// partitions is how many the plane has, which is fixed, because agents are assigned to partitions by it.
func (p Place) Config(replicas, partitions int) jetstream.StreamConfig {
	subjects, description := []string{p.Subject(), p.Unused()}, fmt.Sprintf("Quartet: journal of %s/%d, segment %d",
		p.Plane, p.Partition, p.Segment)
	if p.Shared {
		subjects, description = []string{SubjectPrefix(p.Plane) + "*"}, "Quartet: journal of the plane "+p.Plane
	}
	return jetstream.StreamConfig{
		Name:              p.Stream(),
		Description:       description,
		Subjects:          subjects,
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		Replicas:          max(replicas, 1),
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		DenyDelete:        true,
		DenyPurge:         true,
		Metadata:          map[string]string{partitionsKey: strconv.Itoa(max(partitions, 1))},
	}
}

// JetStream error codes for more replicas than there are servers.
const (
	codeNoPeers      = 10005
	codeNotClustered = 10074
)

// partitionsKey is the key of a stream's metadata with the number of partitions of its plane.
const partitionsKey = "quartet-partitions"

// Ensure creates the first segments of a plane's journal with the given number of partitions, or
// verifies that the existing ones have the required settings. It returns the number of partitions
// that the plane has; an existing journal keeps the number with which it was created.
func Ensure(ctx context.Context, nc *nats.Conn, plane string, replicas, partitions int) (int, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("jetlog: %w", err)
	}
	places, err := Places(ctx, js, plane)
	if err != nil {
		return 0, fmt.Errorf("jetlog: streams of the plane %s: %w", plane, err)
	}

	// Verify the streams that exist. They say how many partitions the plane has.
	n, exists := partitions, map[int]bool{}
	for _, p := range places {
		got, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
			return js.Stream(ctx, p.Stream())
		})
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			exists[p.Partition] = true // it was removed since, and there is one behind it
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("jetlog: stream %s: %w", p.Stream(), err)
		}
		if n, err = verifyExisting(p, replicas, got); err != nil {
			return 0, err
		}
		if p.Shared {
			for i := range n {
				exists[i] = true
			}
		}
		exists[p.Partition] = true
	}

	// Create the missing ones. If another process created the first one meanwhile, its number of partitions counts.
	for i := 0; i == 0 || i < n; i++ { // at least one, even if partitions is 0
		if exists[i] {
			continue
		}
		p := Place{Plane: plane, Partition: i}
		s, err := create(ctx, js, p.Config(replicas, n))
		if err != nil {
			return 0, err
		}
		if n, err = verifyExisting(p, replicas, s); err != nil {
			return 0, err
		}
	}
	return max(n, 1), nil
}

// verifyExisting verifies a stream and returns how many partitions its plane has.
func verifyExisting(p Place, replicas int, s jetstream.Stream) (int, error) {
	got := s.CachedInfo().Config
	want := p.Config(replicas, 1) // verify does not look at the number of partitions
	n, err := Partitions(got)
	if err != nil {
		return 0, fmt.Errorf("jetlog: stream %s: %w", want.Name, err)
	}
	if p.Shared && len(got.Subjects) > 1 { // newer segments exist
		want.Subjects = narrowed(p.Plane, n)
	}
	return n, verify(want, got)
}

// create creates a stream, or returns the one that has its name.
func create(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		s, err := js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return js.Stream(ctx, want.Name)
		}
		return s, err
	})
	var refused *jetstream.APIError
	if errors.As(err, &refused) && (refused.ErrorCode == codeNoPeers || refused.ErrorCode == codeNotClustered) {
		return nil, fmt.Errorf("jetlog: stream %s: replicas is %d, and there are not so many NATS servers in one "+
			"cluster that have JetStream: start them, or lower replicas: %w", want.Name, want.Replicas, err)
	}
	if err != nil {
		return nil, fmt.Errorf("jetlog: stream %s: %w", want.Name, err)
	}
	return s, nil
}

// narrow replaces the wildcard subject of a shared stream by the subjects that the plane's partitions have in it, and
// that of the empty messages that fill gaps (see Place.Unused). Streams of newer segments, which have other subjects,
// can then exist beside it.
func narrow(ctx context.Context, js jetstream.JetStream, shared jetstream.StreamConfig, partitions int) error {
	p, _ := ParseStream(shared.Name)
	shared.Subjects = narrowed(p.Plane, partitions)
	_, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return js.UpdateStream(ctx, shared)
	})
	return err
}

// narrowed returns the subjects that a shared stream has after narrow.
func narrowed(plane string, partitions int) []string {
	subjects := []string{Place{Plane: plane, Shared: true}.Unused()}
	for i := range partitions {
		subjects = append(subjects, Place{Plane: plane, Partition: i, Shared: true}.Subject())
	}
	return subjects
}

// Count returns how many partitions a plane has; 0 if it has no journal.
func Count(ctx context.Context, js jetstream.JetStream, plane string) (int, error) {
	places, err := Places(ctx, js, plane)
	if err != nil || len(places) == 0 {
		return 0, err
	}
	s, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return js.Stream(ctx, places[len(places)-1].Stream()) // older ones may be removed
	})
	if err != nil {
		return 0, err
	}
	return Partitions(s.CachedInfo().Config)
}

// Create creates the empty stream of a segment that begins at the sequence number first. A shared one has the
// subjects that narrowed returns. A stream that exists already is an error if it has messages, begins elsewhere, or
// has settings that verify refuses.
func Create(ctx context.Context, nc *nats.Conn, p Place, replicas, partitions int, first uint64) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("jetlog: %w", err)
	}
	want := p.Config(replicas, partitions)
	want.FirstSeq = first
	if p.Shared {
		want.Subjects = narrowed(p.Plane, partitions)
	}
	s, err := create(ctx, js, want)
	if err != nil {
		return err
	}
	got := s.CachedInfo()
	switch {
	case got.State.Msgs > 0:
		return fmt.Errorf("jetlog: stream %s has messages already", want.Name)
	case max(got.Config.FirstSeq, 1) != max(first, 1):
		return fmt.Errorf("jetlog: stream %s exists already and begins at %d, not at %d", want.Name,
			got.Config.FirstSeq, first)
	default:
		return verify(want, got.Config)
	}
}

// Partitions returns the number of partitions in a stream's metadata, or 1 if it has none.
func Partitions(stream jetstream.StreamConfig) (int, error) { return PartitionsIn(stream.Metadata) }

// PartitionsIn returns the number of partitions in the metadata of a stream, or 1 if it has none.
func PartitionsIn(metadata map[string]string) (int, error) {
	text, ok := metadata[partitionsKey]
	if !ok {
		return 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("its metadata %s is %q; it must be a number from 1 on", partitionsKey, text)
	}
	return n, nil
}

// verify returns an error if a stream has settings with which it could lose frames, or subjects that differ from those
// of want.
func verify(want, got jetstream.StreamConfig) error {
	for _, c := range []struct {
		setting string
		bad     bool
	}{
		{"storage must be file", got.Storage != jetstream.FileStorage},
		{fmt.Sprintf("replicas must be at least %d", want.Replicas), got.Replicas < want.Replicas},
		{"allow_direct must be off", got.AllowDirect},
		{"deny_delete must be on", !got.DenyDelete},
		{"deny_purge must be on", !got.DenyPurge},
		{"allow_rollup_hdrs must be off", got.AllowRollup},
		{"retention must be limits", got.Retention != jetstream.LimitsPolicy},
		{"max_msgs must be unlimited", got.MaxMsgs > 0},
		{"max_bytes must be unlimited", got.MaxBytes > 0},
		{"max_age must be unlimited", got.MaxAge != 0},
		{"max_msgs_per_subject must be unlimited", got.MaxMsgsPerSubject > 0},
		{"persist_mode must be default", got.PersistMode != jetstream.DefaultPersistMode},
		{"subjects must be " + strings.Join(want.Subjects, ", "), !slices.Equal(got.Subjects, want.Subjects)},
		{"it must not be a mirror or have sources", got.Mirror != nil || len(got.Sources) > 0},
	} {
		if c.bad {
			return fmt.Errorf("jetlog: stream %s: %s", want.Name, c.setting)
		}
	}
	return nil
}
