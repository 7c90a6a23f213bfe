package task

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// ran runs a command that writes a text and ends.
func (s *site) ran(h *hand, text string) string {
	s.t.Helper()
	id := s.queue("x").GetTaskId()
	require.Equal(s.t, id, h.hear().GetLease().GetTask().GetTaskId())
	h.output(id, 0, text)
	h.hear()
	h.ended(id, 0)
	require.True(s.t, h.hear().GetAck().GetEnded())
	return id
}

// stored returns how much output of a task is stored.
func (s *site) stored(id string) int64 {
	s.t.Helper()
	return must.Value(s.output.Read(s.t.Context(), "acme", id, 0, 1))(s.t).End
}

func (s *site) outputOf(id string) (*taskv1.GetTaskOutputResponse, error) {
	return s.client().GetTaskOutput(s.ctx, &taskv1.GetTaskOutputRequest{AgentId: "keeper", TaskId: id})
}

// failing is a store that cannot remove for some times.
type failing struct {
	output.Store
	times atomic.Int32
}

func (f *failing) Remove(ctx context.Context, namespace, taskID string) error {
	if f.times.Add(-1) >= 0 {
		return errors.New("no leader")
	}
	return f.Store.Remove(ctx, namespace, taskID)
}

// TestT6_OutputOfADeletedAgent: the output of a deleted agent is removed once its commands have ended, also after a
// removal that failed, and after a process that was killed before it.
func TestT6_OutputOfADeletedAgent(t *testing.T) {
	s := newSite(t)
	store := &failing{Store: s.output}
	s.stop()
	s.output = store
	s.up()
	h := s.connect("w1", "b1", 2)
	before := s.ran(h, "a secret")
	silent := s.queue("silent").GetTaskId()
	h.hear()
	h.ended(silent, 0)
	h.hear()
	running := s.queue("x").GetTaskId()
	h.hear()
	h.output(running, 0, "another")
	h.hear()
	require.NoError(t, s.service.Quiesce(t.Context()))
	require.EqualValues(t, 8, s.stored(before), "nobody was deleted")

	store.times.Store(1)
	planetest.React(t, s.service.engine, &journal.Event{
		Namespace: "acme", AgentID: "keeper",
		Payload: &agentv1.AgentDeleting{Agent: &agentv1.Agent{AgentId: "keeper"}},
	}, rules.React)
	require.NoError(t, s.service.Quiesce(t.Context()))
	require.Zero(t, s.stored(before))
	require.EqualValues(t, 7, s.stored(running), "it may still write")
	_, err := s.outputOf(before)
	require.ErrorIs(t, err, fault.OutputRemoved)
	require.Equal(t, codes.OutOfRange, fault.From(err).Code())
	require.ErrorContains(t, err, "its agent was deleted")
	require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, s.get(before).GetState(), "how it ended is still there")
	got := must.Value(s.outputOf(silent))(t, "it never had any")
	require.Empty(t, got.GetText())

	h.hear() // it is to stop
	h.ended(running, 1)
	require.True(t, h.hear().GetAck().GetEnded())
	require.NoError(t, s.service.Quiesce(t.Context()))
	require.Zero(t, s.stored(running))

	// as if it had not been removed
	must.Value(s.output.Append(t.Context(), "acme", before, &taskv1.OutputChunk{Data: []byte("a secret")}))(t)
	s.stop()
	s.up()
	require.NoError(t, s.service.Quiesce(t.Context()))
	require.Zero(t, s.stored(before))
}

// TestT6_OutputOfAPrivateChild: a private child is deleted as soon as it is done. What its commands wrote can be read
// after it.
func TestT6_OutputOfAPrivateChild(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 1)
	id := s.ran(h, "what it did")
	planetest.React(t, s.service.engine, &journal.Event{
		Namespace: "acme", AgentID: "keeper",
		Payload: &agentv1.AgentDeleting{
			Agent: &agentv1.Agent{AgentId: "keeper", Visibility: agentv1.Visibility_VISIBILITY_PRIVATE},
		},
	}, rules.React)
	for range 2 {
		require.NoError(t, s.service.Quiesce(t.Context()))
		require.Equal(t, "what it did", must.Value(s.outputOf(id))(t).GetText())
		s.stop()
		s.up()
	}
}

// TestT6_OutputThatIsTooOld: output that was dropped because of its age is named as removed, and output that is missing
// for another reason is not.
func TestT6_OutputThatIsTooOld(t *testing.T) {
	s := newSite(t)
	const days = 24 * time.Hour
	s.service.cfg.KeepOutput = 30 * days
	h := s.connect("w1", "b1", 1)
	id := s.ran(h, "hello")
	require.NoError(t, s.output.Remove(t.Context(), "acme", id))
	s.clk.Advance(30 * days)
	require.Empty(t, must.Value(s.outputOf(id))(t).GetText())
	s.clk.Advance(time.Second)
	_, err := s.outputOf(id)
	require.ErrorIs(t, err, fault.OutputRemoved)
	require.ErrorContains(t, err, `the output of task "`+id+
		`" was removed: output is kept for 30 days after it was written; GetTask shows how the command ended`)
	follow, err := s.client().FollowTaskOutput(s.ctx, &taskv1.FollowTaskOutputRequest{AgentId: "keeper", TaskId: id})
	require.NoError(t, err)
	must.Refuse(follow.Recv())(t, fault.OutputRemoved)

	// Output counts from when it was written, which may be long before the command ended.
	long := s.queue("x").GetTaskId()
	require.Equal(t, long, h.hear().GetLease().GetTask().GetTaskId())
	h.output(long, 0, "hello")
	h.hear()
	s.clk.Advance(30*days + time.Second)
	h.ended(long, 0)
	require.True(t, h.hear().GetAck().GetEnded())
	must.Value(s.outputOf(long))(t, "it is there")
	require.NoError(t, s.output.Remove(t.Context(), "acme", long))
	must.Refuse(s.outputOf(long))(t, fault.OutputRemoved)

	s.service.cfg.KeepOutput = 0
	must.Value(s.outputOf(id))(t)
}

// No event of this plane is needed once it is old: its records have all that it reads (SPEC T11).
func TestT11_NoOldEventIsNeeded(t *testing.T) {
	s := newChildSite(t)
	first := must.Value(s.service.ExecCommand(s.parent(), &taskv1.ExecCommandRequest{
		AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "sleep 9"}, YieldTime: durationpb.New(0),
	}))(t)
	registry := journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto)
	events := s.journals.Events(t, Plane, registry)
	require.NotEmpty(t, events)
	require.Len(t, planetest.Forget(t, s.journals, Plane, registry, model.NewState(), start.Add(time.Hour)),
		len(events))
	got := must.Value(s.service.GetTask(s.parent(), &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: first.GetTask().
		GetTaskId()}))(t)
	require.Equal(t, first.GetTask().GetTaskId(), got.GetTask().GetTaskId())
}
