package tests

import (
	"cmp"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/tests/load"
	"quartet/tests/proc"
)

type connection = grpc.ClientConn

// TestR5_BrokerFailures runs NATS as a process of its own and freezes and kills
// it at random moments under load. Callers with a request id repeat until they
// are answered; callers without ask once and take the server's word. Nothing
// may be applied twice, and nothing acknowledged may be missing (SPEC X1, X2,
// ARCHITECTURE R5).
func TestR5_BrokerFailures(t *testing.T) {
	t.Parallel() // most of it is waiting
	dir := t.TempDir()
	bin := binary(t)
	natsBin, err := proc.Build(dir, "github.com/nats-io/nats-server/v2", "nats-server")
	require.NoError(t, err)
	nats, url, err := proc.NewNATS(natsBin, filepath.Join(dir, "nats"))
	require.NoError(t, err)
	span := cmp.Or(*brokerTime, proc.Scale(12*time.Second, time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), span+10*time.Minute)
	defer cancel()
	require.NoError(t, nats.Start(ctx))
	t.Cleanup(func() { _ = nats.Thaw(); _ = nats.Kill() })
	srv, err := proc.NewQuartet(bin, filepath.Join(dir, "data"), url)
	require.NoError(t, err)
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })

	rng := random(t)
	w := newWorkload(t, ctx, srv.GRPC, rng, func(i int) bool { return i%2 == 0 })
	began := time.Now()
	freezes, killed := 0, 0
	stop := w.start()
	for time.Since(began) < span {
		<-time.After(time.Duration(100+rng.IntN(900)) * time.Millisecond)
		if rng.IntN(4) == 0 {
			require.NoError(t, nats.Kill())
			<-time.After(time.Duration(rng.IntN(500)) * time.Millisecond)
			require.NoError(t, nats.Start(ctx))
			killed++
			continue
		}
		require.NoError(t, nats.Freeze())
		// Longer than an append waits, now and then: its outcome is unknown then.
		<-time.After(time.Duration(10+rng.IntN(10)*rng.IntN(800)) * time.Millisecond)
		require.NoError(t, nats.Thaw())
		freezes++
	}
	stop()
	w.finish()
	unknown := 0
	for _, d := range w.drivers {
		require.NoError(t, d.Check(ctx, 1<<30))
		unknown += d.Unknown
	}
	require.NoError(t, load.Audit(ctx, w.conn, w.watcher, w.drivers))
	t.Logf("%d freezes, %d kills of the broker in %s: %d mutations answered, %d of unknown outcome, %d events: none "+
		"lost, none twice",
		freezes, killed, time.Since(began).Round(time.Second), w.answered(), unknown, len(w.watcher.Seen))
}
