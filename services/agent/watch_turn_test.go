package agent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/turns"
)

// watching is a stream whose responses the test takes one by one.
type watching struct {
	grpc.ServerStream
	t    *testing.T
	ctx  context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
	got  chan *agentv1.WatchTurnResponse
	over chan error
}

func (w *watching) Context() context.Context { return w.ctx }

func (w *watching) Send(r *agentv1.WatchTurnResponse) error {
	select {
	case w.got <- r:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w *watching) next() *agentv1.WatchTurnResponse {
	w.t.Helper()
	select {
	case r := <-w.got:
		return r
	case err := <-w.over:
		w.t.Fatalf("the watch ended: %v", err)
	case <-time.After(time.Minute):
		w.t.Fatal("nothing came")
	}
	return nil
}

func (w *watching) end() error {
	w.t.Helper()
	select {
	case err := <-w.over:
		return err
	case <-time.After(time.Minute):
		w.t.Fatal("the watch goes on")
	}
	return nil
}

func (r *rig) watch(ctx context.Context, a *agentv1.AcquireTurnResponse, runID string) *watching {
	w := &watching{t: r.t, ctx: ctx, got: make(chan *agentv1.WatchTurnResponse), over: make(chan error, 1)}
	go func() {
		w.over <- r.service.WatchTurn(&agentv1.WatchTurnRequest{
			AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: runID,
		}, w)
	}()
	return w
}

// A7, A9: a watcher hears at once of interjections, each once, and of the end.
func TestA9_AWatchAnnouncesAndEnds(t *testing.T) {
	r, a := turn(t)
	early := r.send("keeper", "early", interject)
	w := r.watch(r.runner(), a, a.GetTurn().GetRunId())
	require.Empty(t, w.next().GetInterjections(), "an empty beginning")
	require.Equal(t, early, w.next().GetInterjections()[0].GetMessageId())
	r.send("keeper", "not urgent", normal)
	late := r.send("keeper", "late", interject)
	said := w.next()
	require.Len(t, said.GetInterjections(), 1)
	require.Equal(t, late, said.GetInterjections()[0].GetMessageId())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", late).GetState(),
		"announced, not handed over")
	require.Len(t, r.submit(a, 0, "a safe point").GetInterjections(), 2)

	must.Value(r.abort(a.GetTurn().GetRunId(), ""))(t)
	ended := w.next().GetEnded()
	require.Equal(t, agentv1.TurnState_TURN_STATE_ABORTED, ended.GetState())
	require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_ABORTED, ended.GetEndReason())
	require.NoError(t, w.end())

	// Who watches afterwards is told the same.
	w = r.watch(r.runner(), a, a.GetTurn().GetRunId())
	require.Nil(t, w.next().GetEnded())
	require.Equal(t, agentv1.TurnState_TURN_STATE_ABORTED, w.next().GetEnded().GetState())
	require.NoError(t, w.end())
}

// X12: a watcher that nothing is said to hears a sign of life.
func TestX12_AWatchIsKeptAlive(t *testing.T) {
	r, a := turn(t)
	w := r.watch(r.runner(), a, a.GetTurn().GetRunId())
	w.next()
	for range 2 {
		r.clk.AwaitTimers(2) // of the leases, and of the watch
		r.clk.Advance(turns.Keepalive - 1)
		select {
		case <-w.got:
			t.Fatal("too early")
		default:
		}
		r.clk.Advance(1)
		require.Nil(t, w.next().GetEnded())
		must.Value(r.tryRenew(a))(t)
	}
	r.service.Release()
	require.ErrorIs(t, w.end(), fault.NotReady)
}

func TestA7_WhoMayWatch(t *testing.T) {
	r, a := turn(t)
	for want, w := range map[fault.Reason]*watching{
		fault.RunStale:         r.watch(r.runner(), a, "run_00000000000000000000000zzz"),
		fault.PermissionDenied: r.watch(r.operator(), a, a.GetTurn().GetRunId()),
		fault.Cancelled: func() *watching {
			ctx, cancel := context.WithCancel(r.runner())
			w := r.watch(ctx, a, a.GetTurn().GetRunId())
			w.next()
			cancel()
			return w
		}(),
	} {
		require.ErrorIs(t, w.end(), want)
	}
	require.ErrorIs(t, r.watch(planetest.AsAgent(t.Context(), "other"), a, a.GetTurn().GetRunId()).end(),
		fault.PermissionDenied)
	ctx, cancel := context.WithCancel(t.Context())
	own := rpc.WithActor(ctx, access.RunActor(plane.Key{Namespace: "acme", ID: "keeper"}, a.GetTurn().GetRunId()))
	w := r.watch(own, a, a.GetTurn().GetRunId())
	require.Nil(t, w.next().GetEnded())
	require.True(t, r.service.changes.Active())
	cancel()
	require.ErrorIs(t, w.end(), fault.Cancelled)
	require.False(t, r.service.changes.Active(), "watches that ended are forgotten")
}
