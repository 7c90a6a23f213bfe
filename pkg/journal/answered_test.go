package journal_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// keep is a command that writes nothing and whose answer is remembered.
func keep(requestID, argument, reply string) journal.Op[*journaltest.State, *wrapperspb.StringValue] {
	return journal.Op[*journaltest.State, *wrapperspb.StringValue]{
		Method: "Keep", Actor: journaltest.Actor, RequestID: requestID, Args: wrapperspb.String(argument),
		Decide: func(*journaltest.State, journal.Env) (journal.Decision[*wrapperspb.StringValue], error) {
			return journal.Decision[*wrapperspb.StringValue]{Remember: true, Reply: wrapperspb.String(reply)}, nil
		},
	}
}

// A request that wrote nothing keeps its first answer: while its frame is on its way, from the log, and
// after a restart. Neither the state nor those who are notified of events see anything of it.
func TestX2_ARequestWithoutEventsIsRemembered(t *testing.T) {
	log := journaltest.NewMemLog()
	cfg := journaltest.Config(log)
	var notified []string
	cfg.OnCommit = func(events []*journal.Event) {
		for _, ev := range events {
			notified = append(notified, ev.Type)
		}
	}
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	do := func(op journal.Op[*journaltest.State, *wrapperspb.StringValue], want string, replayed bool) {
		t.Helper()
		out, res, err := journal.Do(t.Context(), p, op)
		require.NoError(t, err)
		require.Equal(t, want, out.GetValue())
		require.Equal(t, replayed, res.Replayed)
	}
	do(keep("r1", "a", "first"), "first", false)
	do(keep("r1", "a", "second"), "first", true)
	do(keep("", "a", "unnamed"), "unnamed", false)
	_, _, err := journal.Do(t.Context(), p, keep("r1", "b", "third"))
	require.ErrorIs(t, err, fault.RequestIDReused)
	require.NoError(t, p.Close(context.Background()))
	require.Empty(t, notified)

	p = must.Value(journal.Open(t.Context(), journaltest.Config(log)))(t)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	do(keep("r1", "a", "fourth"), "first", true)
	_, _, err = journal.Do(t.Context(), p, keep("r1", "b", "fifth"))
	require.ErrorIs(t, err, fault.RequestIDReused)
	seen, _, err := journal.View(t.Context(), p, func(s *journaltest.State) ([]string, error) { return s.Log, nil })
	require.NoError(t, err)
	require.Empty(t, seen)

	// What is stored is the answer of one message; it is never taken for that of another.
	_, _, err = journal.Do(t.Context(), p, journal.Op[*journaltest.State, *errdetails.ErrorInfo]{
		Method: "Keep", Actor: journaltest.Actor, RequestID: "r1", Args: wrapperspb.String("a"),
	})
	require.Equal(t, codes.Internal, fault.From(err).Code())
}

// A repeated request may have had arguments that mean the same; others are still refused.
func TestX2_EquivalentArguments(t *testing.T) {
	p := must.Value(journal.Open(t.Context(), journaltest.Config(journaltest.NewMemLog())))(t)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	_, _, err := journal.Do(t.Context(), p, keep("r1", "under key 1", "first"))
	require.NoError(t, err)
	again := keep("r1", "under key 3", "second")
	again.Equivalent = []proto.Message{wrapperspb.String("under key 2")}
	_, _, err = journal.Do(t.Context(), p, again)
	require.ErrorIs(t, err, fault.RequestIDReused)
	again.Equivalent = append(again.Equivalent, wrapperspb.String("under key 1"))
	out, res, err := journal.Do(t.Context(), p, again)
	require.NoError(t, err)
	require.True(t, res.Replayed)
	require.Equal(t, "first", out.GetValue())
}

// Only a request that its caller named takes a line of the journal.
func TestX2_ARequestWithoutEventsIsOneLine(t *testing.T) {
	log := journaltest.NewMemLog()
	p := must.Value(journal.Open(t.Context(), journaltest.Config(log)))(t)
	_, _, err := journal.Do(t.Context(), p, keep("r1", "a", "first"))
	require.NoError(t, err)
	_, _, err = journal.Do(t.Context(), p, keep("", "a", "first"))
	require.NoError(t, err)
	require.NoError(t, p.Close(context.Background()))
	var types []string
	require.NoError(t, log.Scan(t.Context(), 0, func(_ uint64, f framelog.Frame) error {
		for _, line := range framelog.SplitLines(f.Body) {
			types = append(types, must.Value(journal.ParseLine(line))(t).Type)
		}
		return nil
	}))
	require.Equal(t, []string{journal.TypePartitionOpened, journal.TypeRequestAnswered}, types)
}
