package tests

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/tests/proc"
)

func post(t *testing.T, ctx context.Context, url, body string) string {
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body)))(t)
	req.Header.Set("Content-Type", "application/json")
	resp := must.Value(proc.HTTP.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	b := must.Value(io.ReadAll(resp.Body))(t)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", b)
	return string(b)
}

// everything is all events of the namespace as text.
func (s *system) everything(t *testing.T, ctx context.Context) string {
	stream := must.Value(s.events.WatchEvents(ctx, &eventv1.WatchEventsRequest{FromStart: true, StopAtEnd: true}))(t)
	var b strings.Builder
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		require.NoError(t, err)
		b.WriteString(m.String())
	}
}

// journalled counts the events of the namespace: what a refusal must not change.
func (s *system) journalled(t *testing.T, ctx context.Context) int {
	stream := must.Value(s.events.WatchEvents(ctx, &eventv1.WatchEventsRequest{FromStart: true, StopAtEnd: true}))(t)
	n := 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return n
		}
		require.NoError(t, err)
		if m.GetEvent() != nil {
			n++
		}
	}
}

// TestX5_BadInputIsRefusedAndChangesNothing: a refusal of each place that refuses (transport, identity, policy, a plane
// by itself, a plane that asked another one, a stream) has its documented reason, over gRPC in both deployments, and
// leaves no line in the journal. What each plane refuses is tested with its rules, and a list over REST in
// services/gateway.
func TestX5_BadInputIsRefusedAndChangesNothing(t *testing.T) {
	proc.Long(t)
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		s.spawn(t, ctx, "a")
		s.spawn(t, ctx, "b")
		item := must.Value(s.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: "a", RequestId: "one", Objective: "stand",
		}))(t).GetWorkItem().GetWorkItemId()
		other := "other"
		stale := int64(7)
		wrong := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer qrt_e30.AAAA")
		quiet(t, ctx, s)
		before := s.journalled(t, ctx)

		for _, c := range []struct {
			name   string
			reason fault.Reason
			call   func() error
		}{
			{"objective over its limit", fault.LimitExceeded, func() error {
				return must.Err(s.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
					AgentId: "a", Objective: strings.Repeat("x", 2001),
				}))
			}},
			{"unknown agent", fault.NotFound, func() error {
				_, err := s.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: "nobody", Objective: "x"})
				return err
			}},
			{"foreign agent", fault.PermissionDenied, func() error {
				return must.Err(s.work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
					AgentId: "b", WorkItemId: item, Objective: &other,
				}))
			}},
			{"stale revision", fault.RevisionConflict, func() error {
				return must.Err(s.work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
					AgentId: "a", WorkItemId: item, Objective: &other, ExpectedRevision: &stale,
				}))
			}},
			{"request over 4 MiB", fault.TooLarge, func() error {
				return must.Err(s.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
					AgentId: "a", Data: bytes.Repeat([]byte{1}, 5<<20),
				}))
			}},
			{"wrong token", fault.Unauthenticated, func() error {
				return must.Err(s.work.GetWorkItem(wrong, &workv1.GetWorkItemRequest{AgentId: "a", WorkItemId: item}))
			}},
			{"a verb between services", fault.PermissionDenied, func() error {
				return must.Err(s.work.PromoteReport(ctx, &workv1.PromoteReportRequest{
					AgentId: "a", WorkItemId: item, Text: "mine",
				}))
			}},
			{"command for nobody", fault.NotFound, func() error {
				return must.Err(s.tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{
					AgentId: "nobody", Command: &taskv1.CommandSpec{Cmd: "true"},
				}))
			}},
			{"command for a foreign item", fault.PermissionDenied, func() error {
				return must.Err(s.tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{
					AgentId: "b", Command: &taskv1.CommandSpec{Cmd: "true"}, WorkItemId: item,
				}))
			}},
			{"message about a foreign item", fault.PermissionDenied, func() error {
				return must.Err(s.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
					AgentId: "b", Text: "x", WorkItemId: item,
				}))
			}},
			{"junk cursor", fault.CursorInvalid, func() error {
				stream, err := s.events.WatchEvents(ctx, &eventv1.WatchEventsRequest{Cursor: "junk"})
				if err != nil {
					return err
				}
				return must.Err(stream.Recv())
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				err := c.call()
				require.Error(t, err)
				f := fault.From(err)
				require.Equal(t, c.reason, f.Reason(), "%v", err)
				require.Equal(t, c.reason.Code(), f.Code())
			})
		}
		require.Equal(t, before, s.journalled(t, ctx), "a refusal writes no line")
	})
}

// quiet waits until nothing happens any more: the scheduler's ticks for new
// items are in the journal.
func quiet(t *testing.T, ctx context.Context, s *system) {
	last := -1
	for range 200 {
		n := s.journalled(t, ctx)
		f := must.Value(s.agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: "a"}))(t)
		if n == last && f.GetAgent().GetLane().GetQueued() > 0 {
			return
		}
		last = n
	}
	t.Fatal("the system never came to rest")
}

// TestX4_ARunsTokenActsForItsAgentOnly: the credential that a turn brings.
func TestX4_ARunsTokenActsForItsAgentOnly(t *testing.T) {
	proc.Long(t)
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		s.spawn(t, ctx, "a")
		s.spawn(t, ctx, "b")
		s.say(t, ctx, "a", "hello")
		tn := s.acquire(t, ctx, "a")
		as := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tn.got.GetRunToken())
		must.Value(s.work.CreateWorkItem(as, &workv1.CreateWorkItemRequest{AgentId: "a", Objective: "its own"}))(t)
		_, err := s.work.CreateWorkItem(as, &workv1.CreateWorkItemRequest{AgentId: "b", Objective: "another's"})
		require.ErrorIs(t, err, fault.PermissionDenied)
		must.Value(s.agents.FinishTurn(as, &agentv1.FinishTurnRequest{
			AgentId: "a", TurnId: tn.got.GetTurn().GetTurnId(), RunId: tn.got.GetTurn().GetRunId(),
		}))(t)
		_, err = s.work.CreateWorkItem(as, &workv1.CreateWorkItemRequest{AgentId: "a", Objective: "too late"})
		require.ErrorIs(t, err, fault.RunStale, "the credential ends with its run (X12)")
		must.Value(s.agents.FinishTurn(as, &agentv1.FinishTurnRequest{
			AgentId: "a", TurnId: tn.got.GetTurn().GetTurnId(), RunId: tn.got.GetTurn().GetRunId(),
		}))(t, "finishing again changes nothing")
		must.Refuse(s.agents.SpawnAgent(as, &agentv1.SpawnAgentRequest{
			AgentId: "c", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))(t, fault.RunStale)
	})
}

// TestD1_TwoSchedulersChangeNothing: with two of them at once every tick is
// still one.
func TestD1_TwoSchedulersChangeNothing(t *testing.T) {
	proc.Long(t)
	ctx, s := t.Context(), split(t, false)
	s.more(t, "scheduler")
	s.spawn(t, ctx, "a")
	for i := range 20 {
		made, err := s.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: "a", Objective: "one of many"})
		require.NoError(t, err)
		tn := s.acquire(t, ctx, "a")
		require.NotNil(t, tn.got.GetMessage().GetTick(), "turn %d", i)
		id := made.GetWorkItem().GetWorkItemId()
		tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": id}))
		tn.round(t, ctx, "done", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": id}))
	}
	turns := must.Value(s.agents.ListTurns(ctx, &agentv1.ListTurnsRequest{AgentId: "a", PageSize: 100}))(t)
	require.Len(t, turns.GetTurns(), 20, "no second tick woke the agent")
}

// A number that names no value of an enum field is refused by every method, before its handler, with the field and
// the number.
func TestAnUnknownEnumNumberIsRefused(t *testing.T) {
	h := newHouse(t, nil)
	conn, ctx, found := h.conn(t, bootstrap), soon(t), 0
	planetest.Methods(func(name string, md protoreflect.MethodDescriptor, _ bool) {
		for i := range md.Input().Fields().Len() {
			f := md.Input().Fields().Get(i)
			if f.Enum() == nil {
				continue
			}
			found++
			require.False(t, md.IsStreamingClient() || md.IsStreamingServer(), "%s checks %s itself", name, f.Name())
			req := must.Value(protoregistry.GlobalTypes.FindMessageByName(md.Input().FullName()))(t).New()
			field := string(f.Name())
			if unknown := protoreflect.ValueOfEnum(999); f.IsList() {
				req.Mutable(f).List().Append(unknown)
				field += "[0]"
			} else {
				req.Set(f, unknown)
			}
			err := conn.Invoke(ctx, name, req.Interface(), &emptypb.Empty{})
			require.ErrorIs(t, err, fault.InvalidArgument, name)
			require.Equal(t, field, fault.From(err).Metadata()["field"], name)
			require.Equal(t, "999", fault.From(err).Metadata()["value"], name)
		}
	})
	require.Greater(t, found, 20)
	a := h.rest(t, bootstrap, "POST", "/v1/agents/keeper/work-items", `{"objective":"o","planStatus":999}`)
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, a.body, "must be draft, ready or needs_input")
}
