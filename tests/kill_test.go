package tests

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"quartet/pkg/must"
	"quartet/tests/load"
	"quartet/tests/proc"
)

var (
	killsFlag = flag.Int("kills", 0, "how often the server is killed, and the broker lost half as often; 0: a number "+
		"for this form of the test")
	seed = flag.Uint64("seed", 0, "of the random moments; 0: a new one each time")
)

const drivers = 8

// loss is a row of TestX1_NothingAnsweredIsLost: what is killed, frozen or replaced under load, and how often.
type loss struct {
	name string
	args []string // of each server
	// servers is how many there are beside each other, over NATS as a process of its own; 0 is one with NATS inside.
	servers int
	// asksOnce makes half of the callers send no request ids: they ask once and take the server's word.
	asksOnce bool
	large    bool // writes are as large as they may be, so that journals fill their segments
	rounds   int
	harm     func(h *site, round int) // while the load goes on
	rest     func(h *site, round int) // after each round, while the load rests
	after    func(h *site)            // after the last one, when the books were compared
}

// losses are what can happen to the processes of an installation. Each row's books must be right whatever that is.
func losses() []loss {
	kills := cmp.Or(*killsFlag, proc.Scale(10, 50))
	return []loss{
		{
			name: "the server is killed", args: []string{"--snapshot-mib", "1"}, rounds: kills,
			harm: func(h *site, _ int) {
				h.pause(20, 400)
				h.restart(h.all[0])
			},
		},
		{
			// Longer than an append waits, now and then: its outcome is unknown then.
			name: "the broker is frozen and killed", servers: 1, asksOnce: true, rounds: 5,
			harm: func(h *site, _ int) {
				for range max(1, kills/10) {
					h.pause(100, 1000)
					if h.rng.IntN(4) == 0 {
						require.NoError(h.t, h.nats.Kill())
						h.pause(0, 500)
						require.NoError(h.t, h.nats.Start(h.ctx))
						continue
					}
					h.freeze(h.nats, time.Duration(10+h.rng.IntN(10)*h.rng.IntN(800))*time.Millisecond)
				}
			},
		},
		{
			name: "instances come and go", servers: 3, asksOnce: true, rounds: proc.Scale(2, 4),
			harm: comeAndGo, rest: (*site).sleeper,
		},
		{
			name: "the program is replaced", servers: 3, asksOnce: true, rounds: 2,
			harm: replaceProgram, after: (*site).onlyUnavailable,
		},
		{
			name: "segments are closed", args: []string{"--segment-mib", "1"}, large: true, rounds: proc.Scale(3, 6),
			harm: func(h *site, _ int) {
				h.changed(h.damageable().segmentCount)
				h.restart(h.all[0])
			},
			after: func(h *site) { h.damageable().killedAndVerified() },
		},
		{
			name: "snapshots are written", large: true, rounds: proc.Scale(3, 6),
			args: []string{"--segment-mib", "1", "--snapshot-mib", "1", "--log-level", "debug"},
			harm: func(h *site, _ int) {
				h.changed(h.damageable().snapshotBytes)
				h.restart(h.all[0])
			},
			after: func(h *site) {
				d := h.damageable()
				d.killedAndVerified()
				require.NotZero(h.t, d.startLoaded().Snapshot, "it begins at a snapshot")
			},
		},
		{
			name: "segments are archived", args: []string{"--segment-mib", "1", "--snapshot-mib", "1"}, large: true,
			rounds: proc.Scale(3, 6),
			harm: func(h *site, _ int) {
				h.changed(h.damageable().archivedBytes)
				h.restart(h.all[0])
			},
			after: func(h *site) {
				d := h.damageable()
				require.NotEmpty(h.t, d.archived().Segments)
				d.killedAndVerified()
			},
		},
	}
}

// TestX1_NothingAnsweredIsLost loses processes of real installations under load. After each round the books are
// compared with what the servers say, and requests that were answered are repeated; at the end every item and every
// event is compared: what was answered is there, once, and repeated requests have their first answers (SPEC X1, X2,
// X10, X14, R5, R6).
func TestX1_NothingAnsweredIsLost(t *testing.T) {
	for _, row := range losses() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			h := startSite(t, ctx, row.servers, row.args...)
			h.rng = random(t)
			h.load(row)
			for round := range row.rounds {
				stop := h.start()
				row.harm(h, round)
				stop()
				require.NoError(t, h.Check(ctx, 40), "round %d", round)
				if row.rest != nil {
					row.rest(h, round)
				}
			}
			require.NoError(t, h.Audit(ctx))
			if row.after != nil {
				row.after(h)
			}
			t.Logf("%d rounds, %d mutations answered, %d of unknown outcome, %d events, %d turns: none lost, none "+
				"twice", row.rounds, h.Answered(), h.Unknown(), len(h.Watcher.Seen), h.Runner.Turns)
		})
	}
}

// site is the processes of an installation, and the load on it.
type site struct {
	*workload
	t    *testing.T
	ctx  context.Context //nolint:containedctx // of the test
	rng  *rand.Rand
	nats *proc.Process // nil if it is inside of the server
	all  []*proc.Quartet
	next string // the binary of another build
	seen *refusals
}

// startSite starts servers beside each other, over NATS as a process of its own, or with 0 one with NATS inside.
func startSite(t *testing.T, ctx context.Context, servers int, args ...string) *site {
	dir, bin := t.TempDir(), binary(t)
	h := &site{t: t, ctx: ctx, seen: &refusals{by: map[codes.Code]int{}}}
	url := ""
	if servers > 0 {
		natsBin, err := proc.Build(dir, "github.com/nats-io/nats-server/v2", "nats-server")
		require.NoError(t, err)
		h.nats, url, err = proc.NewNATS(natsBin, filepath.Join(dir, "nats"))
		require.NoError(t, err)
		require.NoError(t, h.nats.Start(ctx))
		t.Cleanup(func() { _ = h.nats.Thaw(); _ = h.nats.Kill() })
	}
	for i := range max(1, servers) {
		more := args
		if servers > 1 {
			more = slices.Concat(args, []string{
				"--key-file", filepath.Join(dir, "key"), "--home-dir", filepath.Join(dir, "home"), "--worker-id",
				fmt.Sprint("w", i), "--partition-lease", partitionLease.String(), "--log-level", "info",
			})
		}
		q := must.Value(proc.NewQuartet(bin, filepath.Join(dir, fmt.Sprint(i)), url, more...))(t)
		require.NoError(t, q.Start(ctx))
		t.Cleanup(func() { _ = q.Thaw(); _ = q.Kill() })
		h.all = append(h.all, q)
	}
	return h
}

// load prepares the callers of a row, who call the first server.
func (h *site) load(row loss) {
	h.workload = newWorkload(h.t, h.ctx, h.all[0].GRPC, h.rng, func(i int) bool { return !row.asksOnce || i%2 == 0 },
		grpc.WithChainUnaryInterceptor(h.seen.watch))
	for _, d := range h.Drivers {
		d.Large = row.large
	}
}

// damageable returns the first server as one whose files are looked at.
func (h *site) damageable() *damageable { return &damageable{t: h.t, ctx: h.ctx, srv: h.all[0]} }

// killedAndVerified kills the server and requires that its journals are whole.
func (d *damageable) killedAndVerified() {
	d.t.Helper()
	require.NoError(d.t, d.srv.Kill())
	d.verified()
}

// pause waits for a random time, in milliseconds.
func (h *site) pause(least, most int) {
	<-time.After(time.Duration(least+h.rng.IntN(most-least)) * time.Millisecond)
}

// restart kills a process and starts it again.
func (h *site) restart(q *proc.Quartet) {
	h.t.Helper()
	require.NoError(h.t, q.Kill())
	require.NoError(h.t, q.Start(h.ctx))
}

// freeze suspends a process for some time.
func (h *site) freeze(p interface{ Freeze() error }, term time.Duration) {
	h.t.Helper()
	require.NoError(h.t, p.Freeze())
	<-time.After(term)
	require.NoError(h.t, p.(interface{ Thaw() error }).Thaw())
}

// eventually waits until something is so, and requires that the load goes on.
func (h *site) eventually(what string, is func() bool) {
	h.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() && h.Err() == nil && h.ctx.Err() == nil {
		<-tick.C
	}
	require.NoError(h.t, h.Err())
	require.NoError(h.t, h.ctx.Err(), what)
}

// answered waits until so many more mutations were answered.
func (h *site) answered(n int) {
	h.t.Helper()
	before := h.Answered()
	h.eventually("the load goes on", func() bool { return h.Answered() >= before+n })
}

// changed waits until a measure changes by which something can be seen to be written.
func (h *site) changed(measure func() int64) {
	h.t.Helper()
	before := measure()
	h.eventually("it is written", func() bool { return measure() != before })
}

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
	// A server may notice the end of the caller's time a moment before the caller does.
	deadline, bounded := ctx.Deadline()
	late := bounded && time.Until(deadline) < time.Second && status.Code(err) == codes.DeadlineExceeded
	if err != nil && ctx.Err() == nil && !late {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.by[status.Code(err)]++
	}
	return err
}

func random(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewPCG(s, s))
}

// workload is a load.Workload whose errors fail the test.
type workload struct {
	*load.Workload
	t    *testing.T
	conn *grpc.ClientConn
}

func newWorkload(t *testing.T, ctx context.Context, addr string, rng *rand.Rand, ownIDs func(i int) bool,
	opts ...grpc.DialOption,
) *workload {
	conn := dial(t, addr, opts...)
	w := must.Value(load.NewWorkload(ctx, conn, rng, drivers, ownIDs))(t)
	t.Cleanup(w.Finish)
	return &workload{Workload: w, t: t, conn: conn}
}

// start runs the drivers; the returned function stops them and waits until
// each mutation in flight was answered.
func (w *workload) start() (stop func()) {
	running := w.Start()
	return func() {
		running()
		require.NoError(w.t, w.Err())
	}
}
