package tests

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// refusals counts, by code, the answers of a connection's calls that were errors.
type refusals struct {
	mu sync.Mutex
	by map[codes.Code]int
}

// watch is an interceptor that counts.
func (r *refusals) watch(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil && ctx.Err() == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.by[status.Code(err)]++
	}
	return err
}

// counts returns what was counted.
func (r *refusals) counts() map[codes.Code]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[codes.Code]int{}
	for code, n := range r.by {
		out[code] = n
	}
	return out
}

// TestR6_ARollingUpgradeLosesNothing replaces the program of three instances under load, one after the other, by
// another build with the same data format, as docs/guides/upgrade.md says, and then goes back in the same way. The load
// enters at the first instance, which is replaced too. Everything that was answered is there once, and callers see
// UNAVAILABLE at most.
func TestR6_ARollingUpgradeLosesNothing(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const revision = "0123456789abcdef0123456789abcdef01234567"
	next, err := proc.Build(t.TempDir(), "quartet/cmd/quartet", "quartet",
		"-ldflags=-w -X quartet/pkg/version.revision="+revision)
	require.NoError(t, err)
	in := startInstances(t, ctx, 3)
	seen := &refusals{by: map[codes.Code]int{}}
	w := newWorkload(t, ctx, in.all[0].GRPC, random(t), func(i int) bool { return i%2 == 0 },
		grpc.WithChainUnaryInterceptor(seen.watch))
	stop := w.start()
	progress := func() {
		t.Helper()
		before := w.answered()
		require.Eventually(t, func() bool { return w.answered() >= before+50 || w.Err() != nil }, 2*time.Minute,
			20*time.Millisecond, "the load goes on")
		require.NoError(t, w.Err())
	}
	progress()
	for _, binary := range []string{next, in.all[0].Binary} {
		for _, q := range in.all {
			require.NoError(t, q.Interrupt(ctx))
			q.Binary = binary
			require.NoError(t, q.Start(ctx)) // returns when it is ready
			progress()
		}
		requireRevision(t, ctx, in, strings.Contains(binary, filepath.Dir(next)), revision[:12])
	}
	stop()
	for _, d := range w.drivers {
		require.NoError(t, d.Check(ctx, 1<<30))
	}
	w.finish()
	require.NoError(t, load.Audit(ctx, w.conn, w.watcher, w.drivers))
	errors := seen.counts()
	for code := range errors {
		require.Equal(t, codes.Unavailable, code, "%v", errors)
	}
	t.Logf("6 replacements, %d mutations answered, %d events: none lost, none twice; refused: %v", w.answered(),
		len(w.watcher.Seen), errors)
}

// requireRevision waits until the installation lists all instances with the program of the revision, or with another
// one.
func requireRevision(t *testing.T, ctx context.Context, in *instances, is bool, revision string) {
	t.Helper()
	conn, err := load.Dial(in.all[0].GRPC)
	require.NoError(t, err)
	defer conn.Close()
	versions := map[string]bool{}
	require.Eventually(t, func() bool {
		resp, err := identityv1.NewIdentityServiceClient(conn).ListProcesses(ctx, &identityv1.ListProcessesRequest{})
		if err != nil {
			return false
		}
		clear(versions)
		for _, p := range resp.GetProcesses() {
			versions[p.GetAddress()] = strings.HasSuffix(p.GetVersion(), "-"+revision)
		}
		for _, q := range in.all {
			if now, listed := versions[q.GRPC]; !listed || now != is {
				return false
			}
		}
		return true
	}, time.Minute, 50*time.Millisecond, "%v", versions)
}
