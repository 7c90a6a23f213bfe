package journaltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

type rig struct {
	log     *FaultLog
	segment int64 // size of segments
	p       *journal.Partition[*State]
}

// RunPartition tests a partition over a log, with and without failures of the log. segmentSize is that of its segments,
// and open returns an empty log.
func RunPartition(t *testing.T, segmentSize int64, open func(t *testing.T) framelog.Log) {
	for name, test := range map[string]func(*testing.T, *rig){
		"X1 refused append changes nothing":  refused,
		"X1 too large an event":              oversize,
		"X1 too large for the log":           tooLargeForTheLog,
		"X1 a limit that shrinks":            aLimitThatShrinks,
		"X2 a clock that is set":             clockSteps,
		"X16 a full log":                     fullLog,
		"X16 no room":                        noRoom,
		"X2 repeated request":                repeated,
		"X2 memory across reload":            memoryAcrossReload,
		"X2 repeated by all at once":         repeatedByAll,
		"R4 a view never shows undurable":    viewWaits,
		"R4 a refusal waits for what it saw": refusalWaits,
		"R5 ambiguous faults":                ambiguous,
		"R5 stop half way":                   stopHalfWay,
		"R5 deadline says unknown":           deadline,
		"R5 two writers":                     twoWriters,
		"R6 opening fences":                  openingFences,
		"R7 apply that fails":                poison,
		"reads that fail while loading":      readsFail,
		"R5 a reader that lags":              lagging,
		"R4 what was seen and lost":          seenAndLost,
		"R5 withdrawn stays withdrawn":       withdrawn,
		"close refuses and finishes":         closing,
	} {
		if segmentSize > 0 && !withSegments[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := &rig{log: NewFaultLog(open(t)), segment: segmentSize}
			r.p = r.open(t)
			test(t, r)
			r.log.Heal()
			r.log.Release()
			require.NoError(t, r.p.Close(context.WithoutCancel(t.Context())))
		})
	}
}

// withSegments are the tests that do not depend on which append a fault meets: one that closes a segment may come
// before a frame.
var withSegments = map[string]bool{
	"X2 memory across reload": true, "X2 repeated by all at once": true, "R5 two writers": true,
	"R6 opening fences": true, "close refuses and finishes": true,
}

// open opens one more partition over the log.
func (r *rig) open(t *testing.T) *journal.Partition[*State] {
	t.Helper()
	cfg := Config(r.log)
	cfg.AppendTimeout, cfg.SegmentSize = 2*time.Second, r.segment
	p, err := journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	return p
}

func (r *rig) put(t *testing.T, key, value, requestID string) (int, journal.Result) {
	t.Helper()
	n, res, err := journal.Do(t.Context(), r.p, Put(key, value, requestID))
	require.NoError(t, err)
	return n, res
}

// replayed returns the state that a new partition loads from the log.
func (r *rig) replayed(t *testing.T) *State {
	t.Helper()
	p := r.open(t)
	s, _, err := journal.View(t.Context(), p, Snapshot)
	require.NoError(t, err)
	require.NoError(t, p.Close(t.Context()))
	return s
}

func (r *rig) live(t *testing.T) *State {
	t.Helper()
	s, _, err := journal.View(t.Context(), r.p, Snapshot)
	require.NoError(t, err)
	return s
}

// requireOutcome fails the test unless err has the code UNAVAILABLE, the reason STORAGE and this outcome (SPEC X1).
func requireOutcome(t *testing.T, err error, outcome string) {
	t.Helper()
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, codes.Unavailable, f.Code())
	require.Equal(t, fault.Storage, f.Reason())
	require.Equal(t, outcome, f.Metadata()["outcome"], err.Error())
}

func refused(t *testing.T, r *rig) {
	r.put(t, "k", "1", "")
	r.log.Inject(Refused)
	_, _, err := journal.Do(t.Context(), r.p, Put("k", "2", "req"))
	requireOutcome(t, err, "none")
	require.Equal(t, []string{"k=1"}, r.live(t).Log)
	n, res := r.put(t, "k", "2", "req")
	require.Equal(t, 2, n)
	require.False(t, res.Replayed)
	live := r.live(t)
	require.Equal(t, live, r.replayed(t))
}

func oversize(t *testing.T, r *rig) {
	_, _, err := journal.Do(t.Context(), r.p, Put("k", strings.Repeat("x", journal.DefaultMaxEvent), ""))
	require.ErrorIs(t, err, fault.TooLarge)
	big := strings.Repeat("x", 2<<20)
	for range 2 { // each gets a frame of its own
		r.put(t, "k", big, "")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, _, err := journal.Do(t.Context(), r.p, Put("k", strings.Repeat("y", 300_000), ""))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 10, r.live(t).Puts["k"])
	live := r.live(t)
	require.Equal(t, live, r.replayed(t))
}

func repeated(t *testing.T, r *rig) {
	first, res := r.put(t, "k", "v", "one")
	require.False(t, res.Replayed)
	r.put(t, "k", "other", "")
	again, res2 := r.put(t, "k", "v", "one")
	require.Equal(t, first, again)
	require.True(t, res2.Replayed)
	require.Equal(t, res.Seq, res2.Seq)
	_, _, err := journal.Do(t.Context(), r.p, Put("k", "w", "one"))
	require.ErrorIs(t, err, fault.RequestIDReused)
	elsewhere := Put("k", "v", "one")
	elsewhere.Actor.Principal = "somebody else"
	_, res, err = journal.Do(t.Context(), r.p, elsewhere)
	require.NoError(t, err)
	require.False(t, res.Replayed, "the id is scoped to the principal")
	namesake := Put("k", "v", "one")
	namesake.Actor.KeyID = "key_2"
	for _, replayed := range []bool{false, true} {
		_, res, err = journal.Do(t.Context(), r.p, namesake)
		require.NoError(t, err)
		require.Equal(t, replayed, res.Replayed, "the id is scoped to the key")
	}
	agent := Put("k", "v", "agents")
	agent.Actor = journal.Actor{Namespace: "default", Principal: "agent/a", Role: "agent", AgentID: "a"}
	for i, key := range []string{"key_1", "", "key_2"} {
		agent.Actor.KeyID = key
		_, res, err = journal.Do(t.Context(), r.p, agent)
		require.NoError(t, err)
		require.Equal(t, i > 0, res.Replayed, "keys and runs of one agent share its ids")
	}

	// The first request is still being written.
	r.log.Inject(Late)
	type answer struct {
		n   int
		res journal.Result
		err error
	}
	answers := make(chan answer, 2)
	ask := func() {
		n, res, err := journal.Do(t.Context(), r.p, Put("k", "v", "two"))
		answers <- answer{n, res, err}
	}
	go ask()
	receive(t, r.log.Held())
	go ask()
	require.Never(t, func() bool { return len(answers) > 0 }, 30*time.Millisecond, 5*time.Millisecond)
	r.log.Release()
	a, b := receive(t, answers), receive(t, answers)
	require.NoError(t, errors.Join(a.err, b.err))
	require.Equal(t, a.n, b.n)
	require.NotEqual(t, a.res.Replayed, b.res.Replayed)
	require.Equal(t, 6, r.live(t).Puts["k"])
}

func memoryAcrossReload(t *testing.T, r *rig) {
	first, res := r.put(t, "k", "v", "one")
	several := Put("k", "v", "several")
	several.Decide = func(*State, journal.Env) (journal.Decision[int], error) {
		return journal.Decision[int]{Events: []*journal.Event{Event("a", "1"), Event("b", "2"), Event("c", "3")}}, nil
	}
	several.Answer = func(events []*journal.Event) (int, error) { return len(events), nil }
	_, _, err := journal.Do(t.Context(), r.p, several)
	require.NoError(t, err)
	require.NoError(t, r.p.Close(t.Context()))
	r.p = r.open(t)
	again, res2 := r.put(t, "k", "v", "one")
	require.Equal(t, first, again)
	require.Equal(t, journal.Result{Replayed: true, Seq: res.Seq}, res2)
	n, res3, err := journal.Do(t.Context(), r.p, several)
	require.NoError(t, err)
	require.True(t, res3.Replayed)
	require.Equal(t, 3, n)
	_, _, err = journal.Do(t.Context(), r.p, Put("k", "w", "one"))
	require.ErrorIs(t, err, fault.RequestIDReused)
}

// repeatedByAll tests that after a restart all callers repeat their requests concurrently.
func repeatedByAll(t *testing.T, r *rig) {
	const callers = 100
	value := strings.Repeat("v", 2000)
	ask := func(check func(i int, res journal.Result)) {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				_, res, err := journal.Do(t.Context(), r.p, Put("k", value, fmt.Sprint("req", i)))
				if err != nil {
					t.Error(err)
				}
				check(i, res)
			})
		}
		all.Wait()
	}
	seqs := make([]uint64, callers)
	ask(func(i int, res journal.Result) { seqs[i] = res.Seq })
	require.NoError(t, r.p.Close(t.Context()))
	r.p = r.open(t)
	ask(func(i int, res journal.Result) {
		if !res.Replayed || res.Seq != seqs[i] {
			t.Errorf("request %d: %+v, first time %d", i, res, seqs[i])
		}
	})
	require.Equal(t, callers, r.live(t).Puts["k"])
	before, atOnce := r.log.Gets()
	require.LessOrEqual(t, atOnce, 4, "frames read at once")
	for range 3 {
		_, res := r.put(t, "k", value, "req7")
		require.True(t, res.Replayed)
	}
	after, _ := r.log.Gets()
	require.LessOrEqual(t, after-before, 1, "a frame that was read is kept for a while")
}

func viewWaits(t *testing.T, r *rig) {
	r.log.Inject(Late)
	done := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "v", ""))
		done <- err
	}()
	receive(t, r.log.Held())
	seen := make(chan int, 1)
	go func() {
		n, _, err := journal.View(t.Context(), r.p, Count("k"))
		if err != nil {
			n = -1
		}
		seen <- n
	}()
	require.Never(t, func() bool { return len(seen) > 0 || len(done) > 0 }, 30*time.Millisecond, 5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _, err := journal.View(ctx, r.p, Count("k"))
	requireOutcome(t, err, "none")
	r.log.Release()
	require.NoError(t, receive(t, done))
	require.Equal(t, 1, receive(t, seen))

	// A view of state that the log then refused is repeated.
	r.log.Inject(Refused)
	_, _, err = journal.Do(t.Context(), r.p, Put("k", "v", ""))
	requireOutcome(t, err, "none")
	require.Equal(t, 1, r.live(t).Puts["k"])
}

func refusalWaits(t *testing.T, r *rig) {
	errTaken := errors.New("taken")
	refuse := Put("k", "v", "")
	refuse.Decide = func(s *State, _ journal.Env) (journal.Decision[int], error) {
		if s.Puts["k"] > 0 {
			return journal.Decision[int]{}, errTaken
		}
		return journal.Decision[int]{Reply: -1}, nil
	}
	n, _, err := journal.Do(t.Context(), r.p, refuse)
	require.NoError(t, err)
	require.Equal(t, -1, n)
	r.log.Inject(Late)
	put, done := make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "v", ""))
		put <- err
	}()
	receive(t, r.log.Held())
	go func() {
		_, _, err := journal.Do(t.Context(), r.p, refuse)
		done <- err
	}()
	require.Never(t, func() bool { return len(done) > 0 }, 30*time.Millisecond, 5*time.Millisecond)
	r.log.Release()
	require.NoError(t, receive(t, put))
	require.ErrorIs(t, receive(t, done), errTaken)
}

func ambiguous(t *testing.T, r *rig) {
	want := 0
	for f := None; f < Last; f++ {
		if !quick(f) {
			continue
		}
		for g := None; g < Last; g++ {
			if !quick(g) {
				continue
			}
			r.log.Inject(f, g)
			want++
			n, res := r.put(t, "k", fmt.Sprintf("%d-%d", f, g), "")
			require.Equal(t, want, n, "faults %d then %d", f, g)
			require.False(t, res.Replayed)
			r.log.Heal()
		}
	}
	live := r.live(t)
	for v, n := range live.Values {
		require.Equal(t, 1, n, v)
	}
	require.Equal(t, live, r.replayed(t))
}

// quick reports whether a command whose append meets a fault still succeeds soon, and without an action of the test.
// With Refused the command fails, Late and HeldRefused wait for Release, and Frozen for the timeout of the append.
func quick(f Fault) bool {
	switch f {
	case Refused, HeldRefused, Late, Frozen:
		return false
	}
	return true
}

func stopHalfWay(t *testing.T, r *rig) {
	r.log.Inject(AnswerLost, Frozen, Frozen, Frozen)
	done := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "v", "req"))
		done <- err
	}()
	require.Eventually(t, func() bool { return r.log.Appends() >= 3 }, within, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.p.Close(ctx), context.Canceled)
	requireOutcome(t, receive(t, done), "unknown")
	r.log.Heal()
	r.p = r.open(t)
	_, res := r.put(t, "k", "v", "req")
	require.True(t, res.Replayed, "the request id tells the truth")
	require.Equal(t, 1, r.live(t).Puts["k"])
}

func deadline(t *testing.T, r *rig) {
	r.log.Inject(Late)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := journal.Do(ctx, r.p, Put("k", "1", "first"))
		first <- err
	}()
	receive(t, r.log.Held())
	cancel()
	requireOutcome(t, receive(t, first), "unknown")
	_, _, err := journal.Do(ctx, r.p, Put("k", "2", "second"))
	requireOutcome(t, err, "none")
	r.log.Release()
	go func() {
		_, res, err := journal.Do(t.Context(), r.p, Put("k", "1", "first"))
		if err == nil && !res.Replayed {
			err = errors.New("done twice")
		}
		second <- err
	}()
	require.NoError(t, receive(t, second))
	require.Equal(t, []string{"k=1"}, r.live(t).Log)
}

func twoWriters(t *testing.T, r *rig) {
	other := r.open(t)
	const each, callers = 5, 4
	var wg sync.WaitGroup
	for w, p := range []*journal.Partition[*State]{r.p, other} {
		for c := range callers {
			wg.Go(func() {
				for i := range each {
					if _, _, err := journal.Do(t.Context(), p, Put("k", fmt.Sprintf("%d-%d-%d", w, c, i), "")); err !=
						nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	require.NoError(t, other.Close(t.Context()))
	s := r.replayed(t)
	require.Len(t, s.Log, 2*each*callers)
	for v, n := range s.Values {
		require.Equal(t, 1, n, v)
	}
}

func openingFences(t *testing.T, r *rig) {
	r.put(t, "k", "1", "")
	other := r.open(t)
	n, _, err := journal.Do(t.Context(), other, Put("k", "2", ""))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, _ = r.put(t, "k", "3", "")
	require.Equal(t, 3, n, "the first holder saw the second's write before it decided")
	require.NoError(t, other.Close(t.Context()))
}

func poison(t *testing.T, r *rig) {
	r.put(t, "k", "1", "")
	op := Put("k", "2", "")
	op.Decide = func(*State, journal.Env) (journal.Decision[int], error) {
		return journal.Decision[int]{Events: []*journal.Event{Event("k", "half"), Event("poison", "")}}, nil
	}
	_, _, err := journal.Do(t.Context(), r.p, op)
	require.ErrorIs(t, err, fault.InternalError)
	require.Equal(t, []string{"k=1"}, r.live(t).Log)
	op.Decide = func(*State, journal.Env) (journal.Decision[int], error) { panic("a rule's bug") }
	_, _, err = journal.Do(t.Context(), r.p, op)
	require.ErrorIs(t, err, fault.InternalError)
	r.put(t, "k", "2", "")
	live := r.live(t)
	require.Equal(t, []string{"k=1", "k=2"}, live.Log)
	require.Equal(t, live, r.replayed(t))
}

func readsFail(t *testing.T, r *rig) {
	r.put(t, "k", "1", "")
	r.log.Inject(AnswerLost)
	r.log.FailReads(3)
	n, _ := r.put(t, "k", "2", "")
	require.Equal(t, 2, n)
	r.log.FailReads(3)
	p := r.open(t)
	require.NoError(t, p.Close(t.Context()))
	r.log.FailReads(2)
	n, _ = r.put(t, "k", "3", "")
	require.Equal(t, 3, n)
}

func closing(t *testing.T, r *rig) {
	r.log.Inject(Late)
	done := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "1", ""))
		done <- err
	}()
	receive(t, r.log.Held())
	closed := make(chan error, 1)
	go func() { closed <- r.p.Close(t.Context()) }()
	require.Eventually(t, func() bool {
		_, _, err := journal.Do(t.Context(), r.p, Put("k", "2", ""))
		return err != nil
	}, within, time.Millisecond)
	r.log.Release()
	require.NoError(t, receive(t, done))
	require.NoError(t, receive(t, closed))
	require.Error(t, r.p.Health())
}
