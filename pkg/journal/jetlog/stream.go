package jetlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StreamConfig is the stream of a plane's journal (R6): on disk, nothing ever
// leaves it, and only its leader answers, since a follower that was frozen
// answered with old data.
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

// EnsureStream creates the stream of a plane's journal, or verifies the one
// that is there: a service that finds it without its durability settings must
// not become ready.
func EnsureStream(ctx context.Context, nc *nats.Conn, plane string, replicas int) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("jetlog: %w", err)
	}
	want := StreamConfig(plane, replicas)
	s, err := patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		s, err := js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return js.Stream(ctx, want.Name)
		}
		return s, err
	})
	if err != nil {
		return fmt.Errorf("jetlog: stream %s: %w", want.Name, err)
	}
	return verify(want, s.CachedInfo().Config)
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
