package jetlog_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// A journal without its durability settings is refused, not repaired.
func TestR6_StreamIsVerified(t *testing.T) {
	nc := natsdtest.Connect(t)
	js := must.Value(jetstream.New(nc))(t)
	for plane, spoil := range map[string]func(*jetstream.StreamConfig){
		"memory": func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"direct": func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"delete": func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"purge":  func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		"age":    func(c *jetstream.StreamConfig) { c.MaxAge = 1e12 },
		"bytes":  func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 },
		"async":  func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
	} {
		cfg := jetlog.Place{Plane: plane}.Config(1, 1)
		spoil(&cfg)
		must.Value(js.CreateStream(t.Context(), cfg))(t, plane)
		require.Error(t, must.Err(jetlog.Ensure(t.Context(), nc, plane, 1, 1)), plane)
	}
	must.Value(jetlog.Ensure(t.Context(), nc, "good", 1, 1))(t)
}

// How many partitions a plane has is settled with its stream: what is in it is
// spread by that number.
func TestR6_PartitionsAreSettledOnce(t *testing.T) {
	nc := natsdtest.Connect(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	for i, asked := range []int{6, 3, 6} {
		n := must.Value(jetlog.Ensure(t.Context(), nc, "split", 1, asked))(t, i)
		require.Equal(t, 6, n)
	}
	silent := jetlog.Place{Plane: "silent", Shared: true}.Config(1, 1)
	silent.Metadata = nil
	must.Value(js.CreateStream(t.Context(), silent))(t)
	n := must.Value(jetlog.Ensure(t.Context(), nc, "silent", 1, 6))(t)
	require.Equal(t, 1, n, "a stream that says nothing has one")
	for _, text := range []string{"0", "-1", "six", ""} {
		_, err = jetlog.Partitions(jetstream.StreamConfig{Metadata: map[string]string{"quartet-partitions": text}})
		require.Error(t, err, text)
	}
}

// TestR6_MoreReplicasThanServers: the error names the setting.
func TestR6_MoreReplicasThanServers(t *testing.T) {
	_, err := jetlog.Ensure(t.Context(), natsdtest.Connect(t), "work", 3, 1)
	require.ErrorContains(t, err, "replicas is 3")
	require.ErrorContains(t, err, "lower replicas")
}
