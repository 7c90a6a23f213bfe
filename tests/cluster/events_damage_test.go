//go:build linux

package cluster

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/bus"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// TestR10_ADamagedReplicaOfEvents: what one server lost of EVENTS is named by quartet verify with the server; the
// others are in order, and nothing is refused.
func TestR10_ADamagedReplicaOfEvents(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	c := start(t, ctx, Config{})
	conn, err := c.Dial(c.Instances...)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	w, err := load.NewWorkload(ctx, conn, rand.New(rand.NewPCG(1, 1)), 4, func(i int) bool { return i%2 == 0 })
	require.NoError(t, err)
	stop := w.Start()
	require.NoError(t, c.Settled(ctx))
	require.Eventually(t, func() bool { return w.Answered() > 300 || w.Err() != nil }, time.Minute, 50*time.Millisecond)
	// While nothing is written: a replica that is far behind the others gets a copy of everything, and is in order.
	stop()
	require.NoError(t, c.Settled(ctx))
	s := c.NATS[0]
	require.NoError(t, s.Interrupt(ctx))
	flip(t, filepath.Join(s.Dir, "jetstream", "$G", "streams", bus.Stream), 0.3)
	require.NoError(t, s.Start(ctx))
	require.NoError(t, c.Settled(ctx))
	stop = w.Start()
	before := w.Answered()
	require.Eventually(t, func() bool { return w.Answered() > before+100 || w.Err() != nil }, time.Minute,
		50*time.Millisecond)
	require.NoError(t, w.Err())
	journals, streams, err := c.verifyAll(ctx)
	require.NoError(t, err)
	for _, j := range journals {
		require.Empty(t, j.Damage, j)
	}
	damaged := map[string][]string{}
	for _, v := range streams {
		if len(v.Damage) > 0 {
			damaged[v.Name+" on "+v.Server] = v.Damage
		}
	}
	require.Len(t, damaged, 1)
	require.NotEmpty(t, damaged[bus.Stream+" on "+s.Host], damaged)
	t.Log(damaged)
	stop()
	require.NoError(t, w.Audit(ctx))
}
