package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/tests/dev"
)

// SPEC A6: the handler's error is the turn's outcome.
func TestA6_TheErrorIsTheOutcome(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		result  error
		turn    agentv1.TurnState
		reason  string
		message agentv1.MessageState
	}{
		"done": {
			nil, agentv1.TurnState_TURN_STATE_COMPLETED, "finished",
			agentv1.MessageState_MESSAGE_STATE_PROCESSED,
		},
		"passes": {
			client.Retryable(errors.New("busy")), agentv1.TurnState_TURN_STATE_FAILED, "retryable",
			agentv1.MessageState_MESSAGE_STATE_QUEUED,
		},
		"plain": {
			errors.New("who knows"), agentv1.TurnState_TURN_STATE_FAILED, "retryable",
			agentv1.MessageState_MESSAGE_STATE_QUEUED,
		},
		"stays": {
			client.Fatal(errors.New("no key")), agentv1.TurnState_TURN_STATE_FAILED, "fatal",
			agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
		},
		"back": {
			client.Released(errors.New("no key")), agentv1.TurnState_TURN_STATE_FAILED, "released",
			agentv1.MessageState_MESSAGE_STATE_QUEUED,
		},
		"large": {
			client.OverBudget(errors.New("too long")), agentv1.TurnState_TURN_STATE_FAILED,
			"baseline_over_budget", agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.spawn(name, "")
			messageID := r.say(name, "work", agentv1.Priority_PRIORITY_NORMAL)
			var got *client.Turn
			require.NoError(t, r.RunTurns(dev.Within(t), client.RunnerOptions{
				Name: "test", AgentIDs: []string{name}, MaxTurns: 1,
			}, func(_ context.Context, turn *client.Turn) error {
				got = turn
				require.Equal(t, "work", turn.Message.GetText())
				require.Contains(t, turn.Tools, "CreateWorkItem")
				require.NotEmpty(t, turn.Context.GetText())
				return c.result
			}))
			ended := r.turn(name, got.Record.GetTurnId())
			require.Equal(t, c.turn, ended.GetState())
			require.Equal(t, "TURN_END_REASON_"+strings.ToUpper(c.reason), ended.GetEndReason().String())
			require.Equal(t, c.message, r.message(name, messageID).GetState())
		})
	}
}

// SPEC C7.5: a summary that a runner hands in is in the next contexts, in place of the words.
func TestC7_ARunnerHandsInASummary(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "my colour is teal")
	opts := client.RunnerOptions{AgentIDs: []string{"keeper"}, MaxTurns: 1}
	require.NoError(t, r.RunTurns(dev.Within(t), opts, func(context.Context, *client.Turn) error { return nil }))
	r.say("keeper", "and now?", agentv1.Priority_PRIORITY_NORMAL)
	require.NoError(t, r.RunTurns(dev.Within(t), opts, func(ctx context.Context, turn *client.Turn) error {
		require.Contains(t, turn.Context.GetText(), "> my colour is teal\n")
		_, err := turn.Round(ctx, client.Reply{Summary: client.Summary(strings.Repeat("x", 2049))})
		require.ErrorIs(t, err, fault.LimitExceeded)
		_, err = turn.Round(ctx, client.Reply{Text: "teal", Summary: client.Summary("The operator told a colour.")})
		return err
	}))
	r.say("keeper", "once more", agentv1.Priority_PRIORITY_NORMAL)
	require.NoError(t, r.RunTurns(dev.Within(t), opts, func(_ context.Context, turn *client.Turn) error {
		require.Contains(t, turn.Context.GetText(), "> The operator told a colour.\n")
		require.Contains(t, turn.Context.GetText(), "> and now?\n")
		require.NotContains(t, turn.Context.GetText(), "my colour is teal")
		return nil
	}))
}

// SPEC A6: a round gives one result for each call; the round that ends the turn
// is the last, and there is nothing left to finish.
func TestA6_RoundsUntilTheTurnEnds(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "go")
	var finished []error
	opts := client.RunnerOptions{AgentIDs: []string{"keeper"}, MaxTurns: 1, Finished: func(_ *client.Turn, err error) {
		finished = append(finished, err)
	}}
	require.NoError(t, r.RunTurns(dev.Within(t), opts, func(ctx context.Context, turn *client.Turn) error {
		got := must.Value(turn.Round(ctx, client.Reply{Calls: []*agentv1.ToolCall{
			call(t, "a", "CreateWorkItem", map[string]any{"objective": "Write it", "plan_status": "ready"}),
			call(t, "b", "NoSuchTool", nil),
		}}))(t)
		require.Len(t, got.GetToolResults(), 2)
		require.Equal(t, "tool_not_available", got.GetToolResults()[1].GetError().GetKind())
		item := got.GetToolResults()[0].GetResult().AsMap()["work_item"].(map[string]any)["work_item_id"]
		got = must.Value(turn.Round(ctx, client.Reply{Text: "Written.", Calls: []*agentv1.ToolCall{
			call(t, "c", "PickWorkItem", map[string]any{"work_item_id": item}),
			call(t, "d", "CompleteWorkItem", map[string]any{"work_item_id": item}),
		}, Usage: &agentv1.TokenUsage{InputTokens: 7, OutputTokens: 3}}))(t)
		require.True(t, got.GetTurnEnded())
		require.True(t, turn.Ended())
		require.Equal(t, item, got.GetPromotedWorkItemId())
		require.Equal(t, 2, turn.Rounds())
		must.Refuse(turn.Round(ctx, client.Reply{Text: "and"}))(t, fault.TurnEnded)
		return nil
	}))
	require.Equal(t, []error{nil}, finished)
}

// SPEC A7, A9: the watch stream announces what an operator says, the round
// hands it over, and an abort ends the handler's context with its cause.
func TestA7_AbortAndInterjection(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "go")
	announced := make(chan string, 10)
	opts := client.RunnerOptions{
		AgentIDs: []string{"keeper"}, MaxTurns: 1,
		Announce: func(_ *client.Turn, ms []*agentv1.Message) {
			for _, m := range ms {
				announced <- m.GetText()
			}
		},
	}
	var cause error
	var finished error
	opts.Finished = func(_ *client.Turn, err error) { finished = err }
	require.NoError(t, r.RunTurns(dev.Within(t), opts, func(ctx context.Context, turn *client.Turn) error {
		r.say("keeper", "wrong branch", agentv1.Priority_PRIORITY_INTERJECT)
		require.Equal(t, "wrong branch", <-announced)
		got := must.Value(turn.Round(ctx, client.Reply{Text: "hm"}))(t)
		require.Len(t, got.GetInterjections(), 1)
		require.Equal(t, "wrong branch", got.GetInterjections()[0].GetText())
		// An operator has a context of its own: the handler's ends by the abort.
		must.Value(r.Agents.AbortRun(dev.Within(t), &agentv1.AbortRunRequest{
			AgentId: "keeper", RunId: turn.Record.GetRunId(),
		}))(t)
		<-ctx.Done()
		cause = context.Cause(ctx)
		return cause
	}))
	require.ErrorIs(t, cause, client.ErrAborted)
	require.ErrorIs(t, finished, client.ErrAborted)
	var ended *client.EndedError
	require.ErrorAs(t, cause, &ended)
	require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_ABORTED, ended.Turn.GetEndReason())
}

// A server without WatchTurn tells an abort by the answer of the next round.
func TestA7_AbortIsHeardWithoutAWatch(t *testing.T) {
	r := newRig(t, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn,
		method string, open grpc.Streamer, o ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if method == agentv1.AgentService_WatchTurn_FullMethodName {
			return nil, fault.Unimplemented.New("no such method")
		}
		return open(ctx, d, cc, method, o...)
	}))
	r.spawn("keeper", "go")
	require.NoError(t, r.RunTurns(dev.Within(t), client.RunnerOptions{AgentIDs: []string{"keeper"}, MaxTurns: 1},
		func(ctx context.Context, turn *client.Turn) error {
			must.Value(r.Agents.AbortRun(ctx, &agentv1.AbortRunRequest{AgentId: "keeper"}))(t)
			_, err := turn.Round(ctx, client.Reply{Text: "too late"})
			require.ErrorIs(t, err, client.ErrAborted)
			require.ErrorIs(t, context.Cause(ctx), client.ErrAborted)
			return err
		}))
}

// SPEC X1, X2, X14: a runner outlives a restart of the server in the middle of
// its turn; what it asks for meanwhile happens once.
func TestX14_ARunnerOutlivesARestart(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "go")
	require.NoError(t, r.RunTurns(dev.Within(t), client.RunnerOptions{AgentIDs: []string{"keeper"}, MaxTurns: 1},
		func(ctx context.Context, turn *client.Turn) error {
			r.Down()
			var again sync.WaitGroup
			again.Go(r.Up)
			got := must.Value(turn.Round(ctx,
				client.Reply{
					Calls: []*agentv1.ToolCall{call(t, "a", "CreateWorkItem", map[string]any{"objective": "Once"})},
				}))(t)
			require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetToolResults()[0].GetStatus())
			again.Wait()
			return nil
		}))
	ts := must.Value(r.Agents.ListTurns(context.Background(), &agentv1.ListTurnsRequest{AgentId: "keeper"}))(t)
	require.Len(t, ts.GetTurns(), 1)
	require.Equal(t, agentv1.TurnState_TURN_STATE_COMPLETED, ts.GetTurns()[0].GetState())
	require.EqualValues(t, 1, ts.GetTurns()[0].GetRounds())
	require.EqualValues(t, 1, ts.GetTurns()[0].GetMutations())
}

// A runner that is told to stop hands its turn back, and says so at once.
func TestA6_AStopHandsTheTurnBack(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "")
	messageID := r.say("keeper", "go", agentv1.Priority_PRIORITY_NORMAL)
	ctx, stop := context.WithCancel(dev.Within(t))
	require.NoError(t, r.RunTurns(ctx, client.RunnerOptions{AgentIDs: []string{"keeper"}},
		func(ctx context.Context, _ *client.Turn) error {
			stop()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), client.ErrStopping)
			return context.Cause(ctx)
		}))
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", messageID).GetState())
	require.Zero(t, r.message("keeper", messageID).GetAttempts(), "however often a runner is stopped, the message is "+
		"not put aside")
}

// Several turns run at once, and a grace lets them end by themselves.
func TestA6_ConcurrencyAndGrace(t *testing.T) {
	r := newRig(t)
	names := []string{"a1", "a2", "a3"}
	for _, n := range names {
		r.spawn(n, "go")
	}
	ctx, stop := context.WithCancel(dev.Within(t))
	var together sync.WaitGroup
	together.Add(len(names))
	var done atomic.Int32
	opts := client.RunnerOptions{Concurrency: 3, Grace: attentive, Finished: func(_ *client.Turn, err error) {
		if err == nil {
			done.Add(1)
		}
	}}
	require.NoError(t, r.RunTurns(ctx, opts, func(ctx context.Context, _ *client.Turn) error {
		together.Done()
		together.Wait() // all three are here at the same time
		stop()
		return ctx.Err()
	}))
	require.EqualValues(t, 3, done.Load())
}

// A request that will never be good is an error, not a loop.
func TestX5_ARefusalEndsTheRunner(t *testing.T) {
	r := newRig(t)
	require.ErrorIs(t, r.RunTurns(dev.Within(t), client.RunnerOptions{AgentIDs: []string{"Not A Name"}, Concurrency: 2},
		func(context.Context, *client.Turn) error { return nil }), fault.InvalidArgument)
}

// SPEC X4: a turn's token acts as its agent, and for nobody else.
func TestX4_TheTurnsOwnToken(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "go")
	r.spawn("other", "")
	require.NoError(t, r.RunTurns(dev.Within(t), client.RunnerOptions{AgentIDs: []string{"keeper"}, MaxTurns: 1},
		func(ctx context.Context, turn *client.Turn) error {
			own := client.As(ctx, turn.Token)
			must.Value(r.Agents.ListTools(own, &agentv1.ListToolsRequest{AgentId: "keeper"}))(t)
			must.Refuse(r.Agents.ListTools(own, &agentv1.ListToolsRequest{AgentId: "other"}))(t, fault.PermissionDenied)
			return nil
		}))
}

// SPEC D7: one runner serves the agents of every namespace.
func TestD7_AllNamespaces(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper", "go")
	require.NoError(t, r.RunTurns(dev.Within(t), client.RunnerOptions{AllNamespaces: true, MaxTurns: 1},
		func(ctx context.Context, turn *client.Turn) error {
			require.Equal(t, "default", turn.Namespace)
			return must.Err(turn.Round(ctx, client.Reply{Text: "seen"}))
		}))
}
