package plane_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type engine = plane.Engine[*journaltest.State]

// open starts a plane named test that puts "copied" for each put of the plane named source,
// for the same agent.
func open(t *testing.T, deps plane.Deps, change ...func(*plane.Config[*journaltest.State])) *engine {
	t.Helper()
	cfg := plane.Config[*journaltest.State]{
		Plane: "test", New: journaltest.New, Events: errdetails.File_google_rpc_error_details_proto,
		Follow: []plane.Followed{{Plane: "source", Registry: journaltest.Registry(), Types: []string{"error_info"}}},
		React: func(_ *journaltest.State, _ journal.Env, ev *journal.Event) ([]*journal.Event, error) {
			copied := journaltest.Event("copied", ev.Payload.(*errdetails.ErrorInfo).GetDomain())
			copied.AgentID = ev.AgentID
			return plane.OnBehalf(ev, []*journal.Event{copied}), nil
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	e := must.Value(plane.Open(t.Context(), cfg, deps))(t)
	t.Cleanup(func() {
		require.NoError(t, e.Close(context.Background()))
		require.NoError(t, e.Close(context.Background()))
	})
	require.NoError(t, e.Follow(t.Context()))
	return e
}

func over(journals *planetest.Journals) plane.Deps {
	return plane.Deps{Log: journals.Log, Sources: journals.Sources}
}

func as(role string) context.Context {
	return rpc.WithActor(context.Background(), rpc.Actor{Namespace: "acme", Principal: "ann", Role: role})
}

// put puts key for agent a1 and returns how often it was put.
func put(ctx context.Context, e *engine, key, requestID string) (int, error) {
	op := journaltest.Put(key, "v", requestID)
	return plane.Do(ctx, e, plane.Command[*journaltest.State, int]{
		Method: "Put", AgentID: "a1", RequestID: requestID, Args: op.Args, Decide: op.Decide, Answer: op.Answer,
	})
}

func count(ctx context.Context, e *engine, key string) (int, int64, error) {
	return plane.View(ctx, e, "a1", journaltest.Count(key))
}

func TestDoActsAsTheCaller(t *testing.T) {
	journals := planetest.NewJournals()
	e := open(t, over(journals))
	n := must.Value(put(as(rpc.RoleOperator), e, "k", ""))(t)
	require.Equal(t, 1, n)
	n, seq, err := count(as(rpc.RoleOperator), e, "k")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Positive(t, seq)
	ev := journals.Events(t, "test", journaltest.Registry())[0]
	require.Equal(t, []string{"acme", "a1", "ann", rpc.RoleOperator}, []string{
		ev.Namespace, ev.AgentID, ev.Principal,
		ev.Role,
	})

	op := journaltest.Put("k", "v", "")
	must.Value(plane.Do(as(rpc.RoleOperator), e, plane.Command[*journaltest.State, int]{
		Method: "Put", AgentID: "a1", Args: op.Args, Decide: op.Decide, Answer: op.Answer, Actor: plane.System("acme"),
	}))(t)
	ev = journals.Events(t, "test", journaltest.Registry())[1]
	require.Equal(t, []string{"quartet", rpc.RoleService}, []string{ev.Principal, ev.Role},
		"what the plane does by itself")
}

func TestARepeatedRequestIsExecutedOnce(t *testing.T) {
	e := open(t, over(planetest.NewJournals()))
	for range 3 {
		require.Equal(t, 1, must.Value(put(as(rpc.RoleOperator), e, "k", "r1"))(t))
	}
	recalling := rpc.AskRecall(metadata.NewIncomingContext(as(rpc.RoleOperator), metadata.MD{}))
	require.Equal(t, 1, must.Value(put(recalling, e, "k", "r1"))(t))
	must.Refuse(put(recalling, e, "k", "r2"))(t, fault.NotFound, "a recalled request is not executed")
	must.Value(put(recalling, e, "k", ""))(t, "without a request id there is nothing to recall")
}

// after returns a context of a served call whose caller gave the positions.
func after(ctx context.Context, positions ...plane.Position) context.Context {
	md, _ := metadata.FromOutgoingContext(plane.After(context.Background(), positions...))
	return metadata.NewIncomingContext(ctx, md)
}

func TestAReadWaitsForTheEventsOfOtherPlanes(t *testing.T) {
	journals := planetest.NewJournals()
	source := journals.NewWriter(t, "source", errdetails.File_google_rpc_error_details_proto)
	e := open(t, over(journals))
	for i := range 20 {
		ev := journaltest.Event("k", fmt.Sprint(i))
		ev.AgentID = "a1"
		source.WriteAs(journal.Actor{Namespace: "acme", Principal: "bob", Role: rpc.RoleOperator}, ev)
		events := journals.Events(t, "source", journaltest.Registry())
		at := e.Elsewhere("source", "acme", "a1", events[len(events)-1].WalSeq)
		n, _, err := count(after(as(rpc.RoleOperator), at), e, "copied")
		require.NoError(t, err)
		require.Equal(t, i+1, n)
		require.GreaterOrEqual(t, e.Consumed("source", "acme", "a1").WalSeq, at.WalSeq)
	}
	ev := journals.Events(t, "test", journaltest.Registry())[0]
	require.Equal(t, "bob", ev.Principal, "an effect of a person's event is the person's")
}

func TestAReadWaitsForALimitedTime(t *testing.T) {
	journals := planetest.NewJournals()
	now := clock.NewFake(time.Unix(1_800_000_000, 0))
	deps := over(journals)
	deps.WaitClock = now
	dependent := true
	e := open(t, deps, func(c *plane.Config[*journaltest.State]) {
		c.Dependent = func(*journaltest.State, string, string) bool { return dependent }
	})
	future := e.Elsewhere("source", "acme", "a1", 1_000)
	done := make(chan error, 1)
	go func() {
		_, _, err := count(after(as(rpc.RoleOperator), future), e, "k")
		done <- err
	}()
	now.AwaitTimers(1)
	now.Advance(2*time.Second - 1)
	select {
	case err := <-done:
		require.FailNow(t, "the read did not wait", err)
	case <-time.After(20 * time.Millisecond):
	}
	now.Advance(1)
	require.NoError(t, <-done, "the read happens nevertheless")

	_, _, err := count(after(as(rpc.RoleOperator), plane.Position{Plane: "stranger", WalSeq: 9}), e, "k")
	require.NoError(t, err, "a plane that is not followed is not waited for")
	dependent = false
	_, _, err = count(after(as(rpc.RoleOperator), future), e, "k")
	require.NoError(t, err, "where nothing can change, the clock need not move")

	ended, cancel := context.WithCancel(as(rpc.RoleOperator))
	cancel()
	dependent = true
	_, _, err = count(after(ended, future), e, "k")
	require.NoError(t, err, "nor is it for a caller that has gone: what is durable can be read at once")
}

func TestAPartitionThatCannotBeWritten(t *testing.T) {
	journals := planetest.NewJournals()
	var faults *journaltest.FaultLog
	journals.Wrap = func(name string, log framelog.Log) framelog.Log {
		if name != "test" {
			return log
		}
		faults = journaltest.NewFaultLog(log)
		return faults
	}
	e := open(t, over(journals))
	require.NoError(t, e.Ready())
	require.Zero(t, e.Stalled())
	_, stalled := e.Stall("acme", "a1")
	require.False(t, stalled)

	faults.Inject(journaltest.HeldRefused)
	done := make(chan error, 1)
	go func() {
		_, err := put(as(rpc.RoleOperator), e, "k", "")
		done <- err
	}()
	<-faults.Held()
	faults.Release()
	require.Error(t, <-done)
	require.Eventually(t, func() bool { return e.Ready() == nil && e.Stalled() == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, 1, must.Value(put(as(rpc.RoleOperator), e, "k", ""))(t), "what was refused has left nothing")
}

// A refused append of an effect ends neither following nor the effect.
func TestFollowingContinuesAfterAnError(t *testing.T) {
	journals := planetest.NewJournals()
	var faults *journaltest.FaultLog
	journals.Wrap = func(name string, log framelog.Log) framelog.Log {
		if name != "test" {
			return log
		}
		faults = journaltest.NewFaultLog(log)
		return faults
	}
	source := journals.NewWriter(t, "source", errdetails.File_google_rpc_error_details_proto)
	e := open(t, over(journals))
	for i := range 3 {
		faults.Inject(journaltest.Refused, journaltest.None, journaltest.Refused) // None is the load
		ev := journaltest.Event("k", fmt.Sprint(i))
		ev.AgentID = "a1"
		source.Write(ev)
		require.Eventually(t, func() bool {
			n, _, err := count(as(rpc.RoleOperator), e, "copied")
			return err == nil && n == i+1
		}, time.Minute, time.Millisecond)
	}
	require.Len(t, journals.Events(t, "test", journaltest.Registry()), 3)
}

func TestAServiceThatHasNotStarted(t *testing.T) {
	var none *engine
	require.ErrorIs(t, none.Ready(), plane.ErrNotOpen)
	require.Zero(t, none.Stalled())
}

// Settle returns when everything that was given before is durable.
func TestSettle(t *testing.T) {
	journals := planetest.NewJournals()
	e := open(t, over(journals))
	done := make(chan error, 50)
	for range cap(done) {
		go func() {
			_, err := put(as(rpc.RoleOperator), e, "k", "")
			done <- err
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
	}
	require.NoError(t, e.Settle(t.Context()))
	require.Len(t, journals.Events(t, "test", journaltest.Registry()), cap(done))
}

func TestOnBehalf(t *testing.T) {
	for role, own := range map[string]bool{
		rpc.RoleAdmin: true, rpc.RoleOperator: true, rpc.RoleAgent: true, rpc.RoleService: false, rpc.RoleWorker: false,
		rpc.RoleIntegration: false,
	} {
		cause := &journal.Event{Namespace: "acme", Principal: "ann", Role: role}
		effects := plane.OnBehalf(cause, []*journal.Event{journaltest.Event("a", ""), journaltest.Event("b", "")})
		require.Len(t, effects, 2)
		for _, ev := range effects {
			require.Equal(t, own, ev.Principal == "ann", role)
		}
	}
}

func TestNeverMade(t *testing.T) {
	missing := fault.NotFound.New("agent a1 does not exist")
	exists := func(err error) func(context.Context, string) error {
		return func(_ context.Context, agentID string) error {
			require.Equal(t, "a1", agentID)
			return err
		}
	}
	operator := as(rpc.RoleOperator)
	require.ErrorIs(t, plane.NeverMade(operator, "a1", exists(missing)), fault.NotFound)
	require.NoError(t, plane.NeverMade(operator, "a1", exists(nil)))
	require.NoError(t, plane.NeverMade(operator, "a1", exists(errors.New("the agent plane is down"))),
		"a list is no less true for that")
	require.NoError(t, plane.NeverMade(operator, "a1", nil))
	require.NoError(t, plane.NeverMade(as(rpc.RoleService), "a1", exists(missing)))
}

func TestDepsAreCompleted(t *testing.T) {
	journals := planetest.NewJournals()
	for _, d := range []plane.Deps{{}, {Log: journals.Log}, {Sources: journals.Sources}} {
		require.ErrorContains(t, d.Complete(), "Log and Sources")
		require.Error(t, must.Err(plane.Open(t.Context(), plane.Config[*journaltest.State]{}, d)))
	}
	fake := clock.NewFake(time.Unix(1, 0))
	d := over(journals)
	d.Clock = fake
	require.NoError(t, d.Complete())
	require.Equal(t, 1, d.Partitions("work"))
	require.Same(t, fake, d.WaitClock)
	require.NotNil(t, d.IDs)
	require.NotNil(t, d.Logger)
}

func TestErrorsOfTheProcess(t *testing.T) {
	journals := planetest.NewJournals()
	deps := over(journals)
	deps.Log = func(string, int) (framelog.Log, error) { return nil, errors.New("no stream") }
	must.Fail(plane.Open(t.Context(), plane.Config[*journaltest.State]{
		Plane: "test", New: journaltest.New, Events: errdetails.File_google_rpc_error_details_proto,
	}, deps))(t, "no stream")

	must.Fail(plane.Open(t.Context(), plane.Config[*journaltest.State]{
		Plane: "test", New: journaltest.New, Events: errdetails.File_google_rpc_error_details_proto,
		Follow: []plane.Followed{{Plane: "source", Registry: journaltest.Registry(), Types: []string{"misspelt"}}},
	}, over(journals)))(t, "test: follows misspelt, which is no event type of source")

	deps = over(journals)
	deps.Sources = func(string) ([]journal.Source, error) { return nil, errors.New("no journal") }
	e := must.Value(plane.Open(t.Context(), plane.Config[*journaltest.State]{
		Plane: "test", New: journaltest.New, Events: errdetails.File_google_rpc_error_details_proto,
		Follow: []plane.Followed{{Plane: "source"}},
	}, deps))(t)
	require.ErrorContains(t, e.Follow(t.Context()), "test: follow source: no journal")
	require.NoError(t, e.Close(context.Background()))
}
