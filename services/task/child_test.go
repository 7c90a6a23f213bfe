package task

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// nursery stands for the agent plane.
type nursery struct {
	said     []string // child, request id, text
	refuse   error
	result   string
	answered string // the wait that the last message names
}

func (n *nursery) FollowUp(_ context.Context, childID, requestID, waitID, text string) error {
	n.answered = waitID
	if n.refuse == nil {
		n.said = append(n.said, childID, requestID, text)
	}
	return n.refuse
}

func (n *nursery) Progress(context.Context, string) (string, error) { return "idle: nothing\n", nil }

func (n *nursery) Result(context.Context, string, string) (string, error) {
	return n.result, nil
}

// childSite is the plane beside an agent plane that the test speaks for.
type childSite struct {
	t        *testing.T
	journals *planetest.Journals
	nursery  *nursery
	writer   *planetest.Writer
	service  *Service
}

func newChildSite(t *testing.T) *childSite {
	s := &childSite{t: t, journals: planetest.NewJournals(), nursery: &nursery{}}
	s.writer = s.journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	s.up()
	t.Cleanup(func() { require.NoError(t, s.service.Stop(context.Background())) })
	return s
}

func (s *childSite) up() {
	s.service = must.Value(New(Config{}, Deps{
		Output: output.NewMemory(output.Kept), Children: s.nursery,
		Deps: plane.Deps{Log: s.journals.Log, Sources: s.journals.Sources, Clock: clock.NewFake(start)},
	}))(s.t)
	require.NoError(s.t, s.service.Start(context.Background()))
}

func (s *childSite) restart() {
	require.NoError(s.t, s.service.Stop(context.Background()))
	s.up()
}

func (s *childSite) parent() context.Context { return planetest.AsAgent(s.t.Context(), "keeper") }

func (s *childSite) say(payloads ...proto.Message) {
	for _, p := range payloads {
		s.writer.Write(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: p})
	}
}

func (s *childSite) task() *taskv1.Task {
	r, err := s.service.GetTask(s.parent(), &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: "tsk_1"})
	if err != nil {
		return nil
	}
	return r.GetTask()
}

func (s *childSite) await(want taskv1.TaskState) *taskv1.Task {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.task().GetState() == want }, time.Minute, time.Millisecond)
	return s.task()
}

func (s *childSite) types() []string {
	return planetest.Types(
		s.journals.Events(s.t, Plane, journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto)))
}

func delegated(outcome, result string) *agentv1.Delegation {
	return &agentv1.Delegation{
		DelegationId: "dlg_1", ParentAgentId: "keeper", ParentWorkItemId: "wi_a", ChildAgentId: "agt_1",
		TaskId: "tsk_1",
		Label:  "check", Outcome: agentv1.DelegationOutcome(agentv1.DelegationOutcome_value["DELEGATION_OUTCOME_"+
			strings.ToUpper(outcome)]), ResultSummary: result,
	}
}

// T8: the handle lives from the delegation's opening to its completion, once,
// across restarts and repeated words.
func TestT8_AHandleLivesWithItsDelegation(t *testing.T) {
	for outcome, want := range map[string]taskv1.TaskState{
		"completed": taskv1.TaskState_TASK_STATE_COMPLETED, "failed": taskv1.TaskState_TASK_STATE_FAILED,
		"cancelled": taskv1.TaskState_TASK_STATE_CANCELLED,
	} {
		t.Run(outcome, func(t *testing.T) {
			s := newChildSite(t)
			open := &agentv1.DelegationOpened{Delegation: delegated("", "")}
			s.say(open)
			running := s.await(taskv1.TaskState_TASK_STATE_RUNNING)
			require.Equal(t, taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK, running.GetKind())
			require.Equal(t, "check", running.GetLabel())
			require.Equal(t, "wi_a", running.GetWorkItemId())
			require.True(t, running.GetAcceptsInputNow())
			s.restart()
			s.say(open)
			out := must.Value(s.service.GetTaskOutput(s.parent(), &taskv1.GetTaskOutputRequest{
				AgentId: "keeper", TaskId: "tsk_1", Offset: 7,
			}))(t)
			require.Equal(t, retrievalNotReady, out.GetRetrievalStatus())
			require.Equal(t, "idle: nothing\n", out.GetText())
			require.Zero(t, out.GetNextOffset())

			s.nursery.result = "all ä good"
			blocked := make(chan *taskv1.GetTaskOutputResponse, 1)
			go func() {
				out, _ := s.service.GetTaskOutput(s.parent(), &taskv1.GetTaskOutputRequest{
					AgentId: "keeper", TaskId: "tsk_1", Block: true, Timeout: durationpb.New(MaxBlock),
				})
				blocked <- out
			}()
			s.say(&agentv1.DelegationCompleted{Delegation: delegated(outcome, "all ä good")})
			s.await(want)
			out = <-blocked
			require.Equal(t, retrievalSuccess, out.GetRetrievalStatus())
			require.Equal(t, "all ä good", out.GetText())
			s.restart()
			s.say(&agentv1.DelegationCompleted{Delegation: delegated("failed", "another word")}, open)
			s.say(&agentv1.AgentDeleting{Agent: &agentv1.Agent{AgentId: "keeper"}})
			require.Eventually(t, func() bool { return slices.Contains(s.types(), "owner_deleted") }, time.Minute,
				time.Millisecond)
			require.Equal(t, []string{"task_queued", "task_started", "task_" + outcome, "owner_deleted"}, s.types())

			// Piece by piece, also in the middle of a character.
			text := ""
			for at := int64(0); ; {
				out := must.Value(s.service.GetTaskOutput(s.parent(), &taskv1.GetTaskOutputRequest{
					AgentId: "keeper", TaskId: "tsk_1", Offset: at, MaxBytes: 5,
				}))(t)
				if out.GetText() == "" {
					break
				}
				text, at = text+out.GetText(), out.GetNextOffset()
			}
			require.Equal(t, "all ä good", text)
			tail := must.Value(s.service.GetTaskOutput(s.parent(), &taskv1.GetTaskOutputRequest{
				AgentId: "keeper", TaskId: "tsk_1", Offset: output.FromEnd(4),
			}))(t)
			require.Equal(t, "good", tail.GetText())
		})
	}
}

// T8: what a supervisor says goes to the child, once; a refusal is an answer.
func TestT8_InputIsAFollowUp(t *testing.T) {
	s := newChildSite(t)
	s.say(&agentv1.DelegationOpened{Delegation: delegated("", "")})
	s.await(taskv1.TaskState_TASK_STATE_RUNNING)
	input := func(requestID, text string) *taskv1.SendTaskInputResponse {
		return must.Value(s.service.SendTaskInput(s.parent(), &taskv1.SendTaskInputRequest{
			AgentId: "keeper", TaskId: "tsk_1", RequestId: requestID, Text: text, EndOfInput: text == "",
		}))(t)
	}
	r := input("r1", "also the readme")
	require.True(t, r.GetAcceptedInput())
	require.Equal(t, rules.ChildFollowUp, r.GetInputTarget())
	require.EqualValues(t, 15, r.GetBytesWritten())
	input("r1", "also the readme")
	require.Equal(t, s.nursery.said[1], s.nursery.said[4], "the same request has the same id")
	require.Equal(t, []string{"agt_1", "also the readme"}, []string{s.nursery.said[0], s.nursery.said[2]})
	require.Equal(t, rules.RefusedNoInput, input("", "").GetReason())
	for reason, refusal := range map[string]error{
		rules.RefusedNotRunning: fault.AgentDeleted.New("x"), rules.RefusedBacklog: fault.Overloaded.New("x"),
		rules.RefusedUnreachable: fault.NotFound.New("x"),
	} {
		s.nursery.refuse = refusal
		require.Equal(t, reason, input("", "x").GetReason())
	}
	const waitID = "wt_01h455vb4pex5vsknk084sn02q"
	s.nursery.refuse = fault.Invalid("wait_id", waitID, "must be an open question of the child")
	answer := func(waitID string) error {
		return must.Err(s.service.SendTaskInput(s.parent(), &taskv1.SendTaskInputRequest{
			AgentId: "keeper", TaskId: "tsk_1", Text: "red", WaitId: waitID,
		}))
	}
	require.ErrorContains(t, answer(waitID), "must be an open question of the child",
		"that is no response either: another text would not help")
	require.Equal(t, waitID, s.nursery.answered)
	require.ErrorIs(t, answer("wi_01h455vb4pex5vsknk084sn02q"), fault.InvalidArgument)
	s.nursery.refuse = fault.NotReady.New("x")
	must.Refuse(s.service.SendTaskInput(s.parent(), &taskv1.SendTaskInputRequest{
		AgentId: "keeper", TaskId: "tsk_1", Text: "x",
	}))(t, fault.NotReady, "that is no refusal")
	must.Refuse(s.service.SendTaskInput(planetest.AsAgent(t.Context(), "other"), &taskv1.SendTaskInputRequest{
		AgentId: "keeper", TaskId: "tsk_1", Text: "x",
	}))(t, fault.PermissionDenied)
	// Stopping is asked for once; then it takes no more words.
	for range 2 {
		stop, err := s.service.StopTask(s.parent(), &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: "tsk_1"})
		require.NoError(t, err)
		require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLING, stop.GetTask().GetState())
	}
	require.Equal(t, rules.RefusedNotRunning, input("", "x").GetReason())
	require.Equal(t, []string{"task_queued", "task_started", "task_cancelling"}, s.types())
}

// A command asks nothing, so its input names no question (SPEC A14.6).
func TestT3_OnlyAChildAsks(t *testing.T) {
	s := newSite(t)
	id := s.queue("cat").GetTaskId()
	_, err := s.client().SendTaskInput(s.ctx, &taskv1.SendTaskInputRequest{
		AgentId: "keeper", TaskId: id, Text: "red", WaitId: "wt_01h455vb4pex5vsknk084sn02q",
	})
	require.ErrorIs(t, err, fault.InvalidArgument)
	require.ErrorContains(t, err, "only a child asks questions")
}

type following struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
	got []*taskv1.FollowTaskOutputResponse
}

func (f *following) Context() context.Context { return f.ctx }

func (f *following) Send(r *taskv1.FollowTaskOutputResponse) error {
	f.got = append(f.got, r)
	return nil
}

// T8: following a child ends with its result.
func TestT8_FollowingAChild(t *testing.T) {
	s := newChildSite(t)
	s.say(&agentv1.DelegationOpened{Delegation: delegated("", "")})
	s.await(taskv1.TaskState_TASK_STATE_RUNNING)
	s.nursery.result = "done"
	f, over := &following{ctx: s.parent()}, make(chan error, 1)
	go func() {
		over <- s.service.FollowTaskOutput(&taskv1.FollowTaskOutputRequest{AgentId: "keeper", TaskId: "tsk_1"}, f)
	}()
	s.say(&agentv1.DelegationCompleted{Delegation: delegated("completed", "done")})
	require.NoError(t, <-over)
	require.Len(t, f.got, 2)
	require.Equal(t, "done", string(f.got[0].GetChunk().GetData()))
	require.True(t, f.got[1].GetEnded().GetTerminal())
}

// A8: the commands of a deleted agent are stopped, and none begins.
func TestA8_CommandsOfADeletedAgent(t *testing.T) {
	s := newChildSite(t)
	exec := func() (*taskv1.ExecCommandResponse, error) {
		return s.service.ExecCommand(s.parent(), &taskv1.ExecCommandRequest{
			AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "sleep 9"}, YieldTime: durationpb.New(0),
		})
	}
	queued, err := exec()
	require.NoError(t, err)
	deleting := &agentv1.AgentDeleting{Agent: &agentv1.Agent{AgentId: "keeper"}}
	s.say(deleting, deleting)
	require.Eventually(t, func() bool {
		r, err := s.service.GetTask(s.parent(), &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: queued.GetTask().
			GetTaskId()})
		return err == nil && r.GetTask().GetState() == taskv1.TaskState_TASK_STATE_CANCELLED
	}, time.Minute, time.Millisecond)
	for range 2 {
		_, err = exec()
		require.ErrorIs(t, err, fault.AgentDeleted)
		s.restart()
	}
	require.Equal(t, []string{"task_queued", "owner_deleted", "task_cancelled"}, s.types())
	must.Value(s.service.ExecCommand(rpc.WithActor(t.Context(), rpc.Actor{
		Namespace: "other", Principal: "op", Role: rpc.RoleOperator,
	}),
		&taskv1.ExecCommandRequest{
			AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "true"}, YieldTime: durationpb.New(0),
		}))(t, "another namespace's agent of that name lives")
}
