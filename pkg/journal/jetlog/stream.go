package jetlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StreamConfig returns the configuration of the stream of a plane's journal (R6): on disk,
// without any removal of messages, and with reads by the leader only, because a follower may
// answer with old data after it was frozen.
func StreamConfig(plane string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              StreamName(plane),
		Description:       "Quartet: journal of the plane " + plane,
		Subjects:          []string{"quartet.journal." + plane + ".*"},
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
	}
}

// JetStream error codes for more replicas than there are servers.
const (
	codeNoPeers      = 10005
	codeNotClustered = 10074
)

// partitionsKey is the key of the stream's metadata with the number of partitions of its
// plane. The number is fixed when the stream is created, because agents are assigned to
// partitions by it.
const partitionsKey = "quartet-partitions"

// EnsureStream creates the stream of a plane's journal with the given number of partitions, or
// verifies that the existing one has the required settings. It returns the number of
// partitions that the plane has, which is that of the existing stream, whatever was given.
func EnsureStream(ctx context.Context, nc *nats.Conn, plane string, replicas, partitions int) (int, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("jetlog: %w", err)
	}
	want := StreamConfig(plane, replicas)
	want.Metadata = map[string]string{partitionsKey: strconv.Itoa(max(partitions, 1))}
	s, err := patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		s, err := js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return js.Stream(ctx, want.Name)
		}
		return s, err
	})
	var refused *jetstream.APIError
	if errors.As(err, &refused) && (refused.ErrorCode == codeNoPeers || refused.ErrorCode == codeNotClustered) {
		return 0, fmt.Errorf("jetlog: stream %s: replicas is %d, and there are not so many NATS servers in one cluster that have JetStream: start them, or lower replicas: %w", want.Name, want.Replicas, err)
	}
	if err != nil {
		return 0, fmt.Errorf("jetlog: stream %s: %w", want.Name, err)
	}
	got := s.CachedInfo().Config
	if err := verify(want, got); err != nil {
		return 0, err
	}
	n, err := Partitions(got)
	if err != nil {
		return 0, fmt.Errorf("jetlog: stream %s: %w", want.Name, err)
	}
	return n, nil
}

// Partitions returns the number of partitions in a stream's metadata, or 1 if it has none.
func Partitions(stream jetstream.StreamConfig) (int, error) { return PartitionsIn(stream.Metadata) }

// PartitionsIn returns the number of partitions in the metadata of a stream, or 1 if it has none.
func PartitionsIn(metadata map[string]string) (int, error) {
	text, said := metadata[partitionsKey]
	if !said {
		return 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("its metadata %s is %q; it must be a number from 1 on", partitionsKey, text)
	}
	return n, nil
}

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
		{"subjects must be " + want.Subjects[0], len(got.Subjects) != 1 || got.Subjects[0] != want.Subjects[0]},
		{"it must not be a mirror or have sources", got.Mirror != nil || len(got.Sources) > 0},
	} {
		if c.bad {
			return fmt.Errorf("jetlog: stream %s: %s", want.Name, c.setting)
		}
	}
	return nil
}
