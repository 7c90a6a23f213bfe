package jetlog_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd"
)

// A journal without its durability settings is refused, not repaired.
func TestR6_StreamIsVerified(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: natsd.InProcess})
	require.NoError(t, err)
	defer srv.Stop()
	nc, err := srv.Connect("test")
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	for plane, spoil := range map[string]func(*jetstream.StreamConfig){
		"memory": func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"direct": func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"delete": func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"purge":  func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		"age":    func(c *jetstream.StreamConfig) { c.MaxAge = 1e12 },
		"bytes":  func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 },
		"async":  func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
	} {
		cfg := jetlog.StreamConfig(plane, 1)
		spoil(&cfg)
		_, err := js.CreateStream(t.Context(), cfg)
		require.NoError(t, err, plane)
		require.Error(t, jetlog.EnsureStream(t.Context(), nc, plane, 1), plane)
	}
	require.NoError(t, jetlog.EnsureStream(t.Context(), nc, "good", 1))
}
