package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/children"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

const (
	deleted  = agentv1.Lifecycle_LIFECYCLE_DELETED
	deleting = agentv1.Lifecycle_LIFECYCLE_DELETING
	alive    = agentv1.Lifecycle_LIFECYCLE_ACTIVE
)

// family returns a rig with a public agent, and a task plane that ends handles at once.
func family(t *testing.T) *rig {
	r := newRig(t)
	r.endsHandles()
	r.spawn("keeper")
	return r
}

func (r *rig) endsHandles() {
	r.on("GetTask", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.GetTaskResponse{Task: &taskv1.Task{Terminal: true}}, nil
	})
}

func (r *rig) delegate(ctx context.Context, requestID, text string) *agentv1.SpawnAgentResponse {
	r.t.Helper()
	return must.Value(r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		ParentAgentId: "keeper", InitialMessage: text, RequestId: requestID,
	}))(r.t)
}

func (r *rig) delegation(delegationID string) *agentv1.Delegation {
	r.t.Helper()
	return must.Value(r.service.GetDelegation(r.operator(), &agentv1.GetDelegationRequest{
		AgentId: "keeper", DelegationId: delegationID,
	}))(r.t).GetDelegation()
}

func (r *rig) record(agentID string) *agentv1.Agent {
	r.t.Helper()
	return must.Value(r.service.GetAgent(r.operator(), &agentv1.GetAgentRequest{AgentId: agentID}))(r.t).GetAgent()
}

// until lets small times pass until something holds.
func (r *rig) until(ok func() bool) {
	r.t.Helper()
	r.eventually(func() bool {
		if ok() {
			return true
		}
		r.clk.Advance(children.MaxRetry)
		return ok()
	})
}

// A1, A3: a child is private, bounded, and told its first message and nothing else.
func TestA1_SpawnPrivateChild(t *testing.T) {
	r := family(t)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: "wi_focus"}}, nil
		}
	})
	text := "Check\n\tthe   changelog " + strings.Repeat("ä", 200)
	got := r.delegate(r.operator(), "req", text)
	c := got.GetAgent()
	require.Equal(t, got.GetAgentId(), c.GetAgentId())
	require.Equal(t, agentv1.Visibility_VISIBILITY_PRIVATE, c.GetVisibility())
	require.Equal(t, agentv1.Ownership_OWNERSHIP_PARENT_SUPERVISED, c.GetOwnership())
	require.Equal(t, agentv1.Preset_PRESET_PRIVATE_CHILD, c.GetPreset())
	require.Equal(t, "keeper", c.GetLineageParentAgentId())
	require.Equal(t, "keeper", c.GetSupervisorAgentId())
	require.Equal(t, agentv1.Context_CONTEXT_FRESH, c.GetContext())
	require.Equal(t, children.ChildFamilies(), c.GetToolFamilies())
	require.True(t, strings.HasPrefix(got.GetTaskId(), "tsk_"))
	require.Equal(t, got.GetTaskId(), got.GetTaskHandle().GetTaskId())
	require.Equal(t, taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK, got.GetTaskHandle().GetTaskKind())
	require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, got.GetTaskHandle().GetStatus())
	d := r.delegation(got.GetDelegationId())
	require.Equal(t, agentv1.DelegationState_DELEGATION_STATE_OPEN, d.GetState())
	require.Equal(t, "wi_focus", d.GetParentWorkItemId())
	require.Len(t, []rune(d.GetLabel()), 120)
	require.True(t, strings.HasPrefix(d.GetLabel(), "Check the changelog ää"))

	m := r.take(c.GetAgentId()).GetMessage()
	require.Equal(t, text, m.GetText())
	require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_DELEGATION, m.GetKind())
	require.Equal(t, agentv1.Origin_ORIGIN_PARENT, m.GetOrigin())
	require.Empty(t, m.GetWorkItemId(), "nothing of the parent's")
	require.Empty(t, m.GetTaskId())

	// Again, also after a restart: the same child.
	for range 2 {
		again := r.delegate(r.operator(), "req", text)
		require.Equal(t, got.GetAgentId(), again.GetAgentId())
		require.Equal(t, got.GetTaskId(), again.GetTaskId())
		r.restart()
	}
	l := must.Value(r.service.ListDelegations(r.operator(), &agentv1.ListDelegationsRequest{AgentId: "keeper"}))(t)
	require.Len(t, l.GetDelegations(), 1)
	must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		ParentAgentId: "keeper", InitialMessage: "other", RequestId: "req",
	}))(t, fault.RequestIDReused)
}

// A1: what a spawn of a child may not say; nothing is written.
func TestA1_ChildSpawnRefusals(t *testing.T) {
	r := family(t)
	before := len(r.events())
	for name, req := range map[string]*agentv1.SpawnAgentRequest{
		"no message":      {},
		"a blank message": {InitialMessage: " \n"},
		"too long":        {InitialMessage: strings.Repeat("x", 256<<10+1)},
		"an id":           {InitialMessage: "x", AgentId: "mine"},
		"explicit_root":   {InitialMessage: "x", WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_EXPLICIT_ROOT},
		"a template":      {InitialMessage: "x", Template: "t"},
		"a root":          {InitialMessage: "x", WorkspaceRoot: "/srv"},
	} {
		req.ParentAgentId = "keeper"
		_, err := r.service.SpawnAgent(r.operator(), req)
		require.Equal(t, fault.InvalidArgument.Code(), fault.From(err).Code(), "%s: %v", name, err)
	}
	_, err := r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{InitialMessage: "x"})
	require.ErrorIs(t, err, fault.InvalidArgument, "an operator names the parent")
	must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		InitialMessage: "x",
		ParentAgentId:  "nobody",
	}))(t, fault.NotFound)
	must.Refuse(r.service.SpawnAgent(planetest.AsAgent(t.Context(), "other"), &agentv1.SpawnAgentRequest{
		InitialMessage: "x", ParentAgentId: "keeper",
	}))(t, fault.PermissionDenied)
	stale := rpc.WithActor(t.Context(), access.RunActor(plane.Key{Namespace: "acme", ID: "keeper"},
		"run_00000000000000000000000zzz"))
	must.Refuse(r.service.SpawnAgent(stale, &agentv1.SpawnAgentRequest{InitialMessage: "x"}))(t, fault.RunStale)
	require.Len(t, r.events(), before)
}

// A2: eight live children, at, below and above; the ninth after one has ended.
func TestA2_AtMostEightChildren(t *testing.T) {
	r := family(t)
	var ids []*agentv1.SpawnAgentResponse
	for i := range children.DefaultMaxChildren {
		ids = append(ids, r.delegate(r.operator(), fmt.Sprint("r", i), "work"))
	}
	before := len(r.events())
	_, err := r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		ParentAgentId:  "keeper",
		InitialMessage: "one more",
	})
	require.ErrorIs(t, err, fault.ChildLimit)
	require.Equal(t, "8", fault.From(err).Metadata()["limit"])
	require.Len(t, r.events(), before)
	r.delegate(r.operator(), "r0", "work") // a repetition is no new child
	r.stopTask(ids[0])
	r.until(func() bool { return !state.IsOpen(r.delegation(ids[0].GetDelegationId())) })
	r.delegate(r.operator(), "", "one more")
}

// stopTask is what the agent plane hears of a StopTask.
func (r *rig) stopTask(of *agentv1.SpawnAgentResponse) {
	r.hear(said(&taskv1.TaskCancelling{Task: &taskv1.Task{
		TaskId: of.GetTaskId(), AgentId: "keeper", Kind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK,
		DelegationId: of.GetDelegationId(),
	}}))
}

// A2, A8: nobody but its supervisor and administrators reaches a private child.
func TestA2_WhoReachesAPrivateChild(t *testing.T) {
	r := family(t)
	c := r.delegate(r.operator(), "", "work").GetAgentId()
	other := r.delegate(r.operator(), "", "work").GetAgentId()
	before := len(r.events())
	for _, ctx := range []context.Context{
		r.operator(), planetest.As(t.Context(), rpc.RoleIntegration),
		planetest.AsAgent(t.Context(), other), planetest.AsAgent(t.Context(), "keeper"),
	} {
		_, err := r.service.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: c, Text: "psst"})
		require.ErrorIs(t, err, fault.PermissionDenied)
	}
	for _, kind := range []agentv1.MessageKind{
		agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP,
		agentv1.MessageKind_MESSAGE_KIND_DELEGATION,
	} {
		must.Refuse(r.service.EnqueueMessage(planetest.As(t.Context(), rpc.RoleAdmin), &agentv1.EnqueueMessageRequest{
			AgentId: c, Text: "psst", Kind: kind,
		}))(t, fault.PermissionDenied, "nobody claims to be the supervisor")
	}
	must.Refuse(r.service.EnqueueMessage(r.scheduler(), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "x", Kind: agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP,
	}))(t, fault.PermissionDenied, "a public agent has no supervisor")
	for _, verb := range []string{"pause", "resume", "stop", "start", "abort"} {
		must.Refuse(r.order(r.operator(), verb, c, "", ""))(t, fault.PermissionDenied, verb)
		must.Refuse(r.order(planetest.AsAgent(t.Context(), other), verb, c, "", ""))(t, fault.PermissionDenied, verb)
	}
	must.Refuse(r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: c}))(t, fault.PermissionDenied)
	// Its own calls: no spawning. Its parent reads that it stands, not what it thinks.
	_, err := r.service.SpawnAgent(planetest.AsAgent(t.Context(), c), &agentv1.SpawnAgentRequest{InitialMessage: "x"})
	require.ErrorIs(t, err, fault.ToolNotAvailable)
	must.Refuse(r.service.SpawnAgent(planetest.AsAgent(t.Context(), c), &agentv1.SpawnAgentRequest{
		AgentId: "big", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t, fault.ToolNotAvailable)
	parent := planetest.AsAgent(t.Context(), "keeper")
	must.Refuse(r.service.ListMessages(parent, &agentv1.ListMessagesRequest{AgentId: c}))(t, fault.PermissionDenied)
	must.Refuse(r.service.ListTurns(parent, &agentv1.ListTurnsRequest{AgentId: c}))(t, fault.PermissionDenied)
	must.Refuse(r.service.GetContext(parent, &agentv1.GetContextRequest{AgentId: c}))(t, fault.PermissionDenied)
	_, err = r.service.GetAgent(planetest.AsAgent(t.Context(), other), &agentv1.GetAgentRequest{AgentId: c})
	require.ErrorIs(t, err, fault.PermissionDenied)
	require.Len(t, r.events(), before)

	seen := must.Value(r.service.GetAgent(parent, &agentv1.GetAgentRequest{AgentId: c}))(t)
	require.Equal(t, agentv1.Posture_POSTURE_QUEUED_INPUT, seen.GetAgent().GetPosture())
	own := must.Value(r.service.GetAgent(parent, &agentv1.GetAgentRequest{AgentId: "keeper"}))(t)
	require.Len(t, own.GetChildren(), 2)
	for _, verb := range []string{"pause", "resume"} {
		must.Value(r.order(parent, verb, c, "", ""))(t, "its supervisor")
	}
}

// A4: private agents are listed on request; an agent sees those that it made.
func TestA4_ListsOfPrivateAgents(t *testing.T) {
	r := family(t)
	r.spawn("stranger")
	c := r.delegate(r.operator(), "", "work").GetAgentId()
	list := func(ctx context.Context, req *agentv1.ListAgentsRequest) []string {
		resp := must.Value(r.service.ListAgents(ctx, req))(t)
		var ids []string
		for _, a := range resp.GetAgents() {
			ids = append(ids, a.GetAgentId())
		}
		return ids
	}
	require.Equal(t, []string{"keeper", "stranger"}, list(r.operator(), &agentv1.ListAgentsRequest{}))
	require.Equal(t, []string{c, "keeper", "stranger"},
		list(r.operator(), &agentv1.ListAgentsRequest{IncludePrivate: true}))
	require.Equal(t, []string{c}, list(planetest.AsAgent(t.Context(), "keeper"), &agentv1.ListAgentsRequest{
		IncludePrivate: true,
	}))
	require.Empty(t, list(planetest.AsAgent(t.Context(), "stranger"), &agentv1.ListAgentsRequest{IncludePrivate: true}))
	must.Refuse(r.service.ListAgents(planetest.AsAgent(t.Context(), "stranger"), &agentv1.ListAgentsRequest{
		LineageParentAgentId: "keeper",
	}))(t, fault.PermissionDenied)
}

// A12: what keeps a child alive, one by one, and what it hands over.
func TestA12_WhenAChildIsDone(t *testing.T) {
	wait := func(mode waitingv1.WaitMode) func(*others) {
		return func(o *others) {
			o.waits = []*waitingv1.Wait{{WaitId: "wt_1", Mode: mode, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE}}
		}
	}
	tasks := func(l *taskv1.ListTasksResponse) func(*others) {
		return func(o *others) {
			o.answer["ListTasks"] = func(context.Context, proto.Message) (proto.Message, error) { return l, nil }
		}
	}
	queue := func(q *workv1.GetWorkQueueResponse) func(*others) {
		return func(o *others) { o.queue = func() (*workv1.GetWorkQueueResponse, error) { return q, nil } }
	}
	reported := []*workv1.WorkItem{{WorkItemId: "wi_2", ResultSummary: "a report"}}
	for name, c := range map[string]struct {
		others func(*others)
		item   string // that the child made
		alive  bool
		result string
	}{
		"nothing is left": {others: func(*others) {}, result: "last words"},
		"an open item": {
			others: queue(&workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{Open: 1}}), item: "wi_1",
			alive: true,
		},
		"an item not heard of": {
			others: queue(&workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{Completed: 1}}), alive: true,
		},
		"a wait":                    {others: wait(waitingv1.WaitMode_WAIT_MODE_WAIT), alive: true},
		"an interest stops nothing": {others: wait(waitingv1.WaitMode_WAIT_MODE_INTENT), result: "last words"},
		"a running task":            {others: tasks(&taskv1.ListTasksResponse{TotalActive: 1}), alive: true},
		"a result on its way": {
			others: tasks(&taskv1.ListTasksResponse{
				Tasks: []*taskv1.Task{{TaskId: "tsk_9", EndedAt: timestamppb.New(epoch.Add(time.Hour))}},
			}),
			alive: true,
		},
		"a result of long ago": {
			others: tasks(&taskv1.ListTasksResponse{
				Tasks: []*taskv1.Task{{TaskId: "tsk_9", EndedAt: timestamppb.New(epoch.Add(-time.Hour))}},
			}),
			result: "last words",
		},
		"the report of its first item": {
			others: func(o *others) { o.item = func() *workv1.WorkItem { return reported[0] } }, item: "wi_2",
			result: "a report",
		},
		"the report of another item": {
			others: queue(&workv1.GetWorkQueueResponse{
				Counts:          &workv1.WorkQueueCounts{Completed: 2},
				CompletedRecent: reported,
			}), item: "wi_1", result: "a report",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := family(t)
			child := r.delegate(r.operator(), "", "work")
			a := r.take(child.GetAgentId())
			r.submit(a, 0, "first words")
			r.submit(a, 1, "last words")
			r.submit(a, 2, "")
			if c.item != "" {
				r.hear(&journal.Event{Namespace: "acme", AgentID: child.GetAgentId(), Payload: &workv1.WorkItemCreated{
					WorkItem: &workv1.WorkItemRecord{WorkItemId: c.item},
				}})
			}
			r.others.set(func() { c.others(r.others) })
			r.finish(a, done)
			if c.alive {
				for range 5 {
					require.NoError(t, r.service.Quiesce(t.Context()))
					r.clk.Advance(children.MaxRetry)
				}
				require.True(t, state.IsOpen(r.delegation(child.GetDelegationId())),
					"a finished turn is not a finished task")
				require.Equal(t, alive, r.record(child.GetAgentId()).GetLifecycle())
				return
			}
			r.until(func() bool { return !state.IsOpen(r.delegation(child.GetDelegationId())) })
			d := r.delegation(child.GetDelegationId())
			require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED, d.GetOutcome())
			require.Equal(t, c.result, d.GetResultSummary())
			require.Equal(t, c.item, d.GetChildWorkItemId())
			r.others.set(func() { r.others.waits = nil })
			r.until(func() bool { return r.record(child.GetAgentId()).GetLifecycle() == deleted })
		})
	}
}

// A12: failed and cancelled children.
func TestA12_FailedAndCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		end     func(r *rig, child *agentv1.SpawnAgentResponse)
		outcome agentv1.DelegationOutcome
		result  string
	}{
		"fatal": {
			func(r *rig, child *agentv1.SpawnAgentResponse) { r.finish(r.take(child.GetAgentId()), fatal) },
			agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED, "fatal",
		},
		"quarantined": {func(r *rig, child *agentv1.SpawnAgentResponse) {
			for range lane.MaxAttempts {
				r.finish(r.take(child.GetAgentId()), retryable)
			}
		}, agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED, "retryable, attempt 3 of 3"},
		"stopped": {
			func(r *rig, child *agentv1.SpawnAgentResponse) { r.stopTask(child) },
			agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, "its task was stopped",
		},
		"stopped in a turn": {func(r *rig, child *agentv1.SpawnAgentResponse) {
			a := r.take(child.GetAgentId())
			r.stopTask(child)
			next := int32(0) // a round that was heard before the stop is answered again after it
			r.eventually(func() bool {
				_, err := r.trySubmit(a, next, "x")
				if err == nil {
					next++
				}
				return errors.Is(err, fault.RunStale)
			})
		}, agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, "its task was stopped"},
		"deleted by its supervisor": {func(r *rig, child *agentv1.SpawnAgentResponse) {
			must.Value(r.service.DeleteAgent(planetest.AsAgent(r.t.Context(), "keeper"), &agentv1.DeleteAgentRequest{
				AgentId: child.GetAgentId(), Reason: "enough",
			}))(r.t)
		}, agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, "enough"},
		"its parent deleted": {func(r *rig, _ *agentv1.SpawnAgentResponse) {
			must.Value(r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: "keeper"}))(r.t)
		}, agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, "its parent was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			r := family(t)
			child := r.delegate(r.operator(), "", "work")
			c.end(r, child)
			r.until(func() bool { return r.record(child.GetAgentId()).GetLifecycle() == deleted })
			d := r.delegation(child.GetDelegationId())
			require.Equal(t, c.outcome, d.GetOutcome())
			require.Equal(t, c.result, d.GetResultSummary())
		})
	}
}

// SPEC T8: a follow-up wakes a sleeping child; one for a child that
// is ending is refused, so none is taken and lost.
func TestT8_FollowUps(t *testing.T) {
	r := family(t)
	child := r.delegate(r.operator(), "", "work").GetAgentId()
	r.others.set(func() {
		r.others.waits = []*waitingv1.Wait{
			{Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE},
		}
	})
	r.finish(r.take(child), done)
	follow := func(requestID string) (*agentv1.EnqueueMessageResponse, error) {
		return r.service.EnqueueMessage(r.scheduler(), &agentv1.EnqueueMessageRequest{
			AgentId: child, RequestId: requestID, Kind: agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP,
			Text: "also the readme",
		})
	}
	first := must.Value(follow("f1"))(t)
	require.Equal(t, first.GetMessageId(), must.Value(follow("f1"))(t).GetMessageId())
	a := r.take(child)
	require.Equal(t, agentv1.Origin_ORIGIN_PARENT, a.GetMessage().GetOrigin())
	r.others.set(func() { r.others.waits = nil })
	r.finish(a, done)
	r.until(func() bool { return r.record(child).GetLifecycle() != alive })
	must.Refuse(follow("f2"))(t, fault.AgentDeleted)
}

// A8: what a deletion does in its first frame, and who may ask for it how.
func TestA8_DeleteAgent(t *testing.T) {
	r, a := turn(t)
	r.endsHandles()
	queued := r.send("keeper", "later", normal)
	del := func(requestID string, revision int64) (*agentv1.Agent, error) {
		resp, err := r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{
			AgentId: "keeper", RequestId: requestID, ExpectedRevision: revision,
		})
		return resp.GetAgent(), err
	}
	before := len(r.events())
	_, err := del("", 7)
	require.ErrorIs(t, err, fault.RevisionConflict)
	require.Equal(t, "1", fault.From(err).Metadata()["current_revision"])
	must.Refuse(del("", -1))(t, fault.InvalidArgument)
	require.Len(t, r.events(), before)
	open := true
	r.on("ListTasks", func(context.Context, proto.Message) (proto.Message, error) {
		r.others.mu.Lock()
		defer r.others.mu.Unlock()
		if open {
			return &taskv1.ListTasksResponse{TotalActive: 1}, nil
		}
		return &taskv1.ListTasksResponse{}, nil
	})
	require.Equal(t, deleting, must.Value(del("req", 1))(t).GetLifecycle())
	require.Equal(t, []string{"message_aborted", "turn_aborted", "message_dropped", "agent_deleting"},
		planetest.Types(r.events()[before:]))
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_DROPPED, r.message("keeper", queued).GetState())
	must.Refuse(r.trySubmit(a, 0, "late"))(t, fault.RunStale)

	// Deleting goes on over restarts until nothing is left elsewhere.
	for range 3 {
		r.restart()
		require.NoError(t, r.service.Quiesce(t.Context()))
		require.Equal(t, deleting, r.record("keeper").GetLifecycle())
	}
	r.others.set(func() { open = false })
	r.until(func() bool { return r.record("keeper").GetLifecycle() == deleted })
	for range 2 {
		again := must.Value(del("req", 1))(t)
		require.Equal(t, "keeper", again.GetAgentId())
		again = must.Value(del("", 99))(t, "what is asked for is so")
		require.Equal(t, deleted, again.GetLifecycle())
		must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
			AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))(t, fault.AlreadyExists)
		_, err := r.service.EnqueueMessage(r.operator(), &agentv1.EnqueueMessageRequest{AgentId: "keeper", Text: "x"})
		require.ErrorIs(t, err, fault.AgentDeleted)
		_, err = r.trySubmit(a, 0, "late")
		require.ErrorIs(t, err, fault.RunStale)
		for _, verb := range []string{"pause", "resume", "stop", "start", "abort"} {
			_, err = r.order(r.operator(), verb, "keeper", "", "")
			require.ErrorIs(t, err, fault.AgentDeleted)
		}
		must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
			ParentAgentId:  "keeper",
			InitialMessage: "x",
		}))(t, fault.AgentDeleted)
		r.hear(said(&taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: "tsk_1"}}))
		require.Zero(t, r.facts("keeper").GetQueued())
		r.restart()
	}
	l := must.Value(r.service.ListAgents(r.operator(), &agentv1.ListAgentsRequest{}))(t)
	require.Empty(t, l.GetAgents())
	l = must.Value(r.service.ListAgents(r.operator(), &agentv1.ListAgentsRequest{IncludeDeleted: true}))(t)
	require.Len(t, l.GetAgents(), 1)
	sweep := must.Value(r.service.GetFacts(r.scheduler(), &agentv1.GetFactsRequest{}))(t)
	require.Empty(t, sweep.GetFacts(), "nobody looks at deleted agents any more")
}

// A3, X1: the journal is cut after every frame of a delegation's whole life; a
// process that begins there brings it to the same end, with one child.
func TestA3_ADelegationSurvivesEveryCut(t *testing.T) {
	for name, end := range map[string]func(r *rig, child *agentv1.SpawnAgentResponse){
		"completed": func(r *rig, child *agentv1.SpawnAgentResponse) {
			a := r.take(child.GetAgentId())
			r.submit(a, 0, "the result")
			r.finish(a, done)
		},
		"stopped": func(r *rig, child *agentv1.SpawnAgentResponse) { r.stopTask(child) },
		"the parent deleted": func(r *rig, _ *agentv1.SpawnAgentResponse) {
			must.Value(r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: "keeper"}))(r.t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			whole := family(t)
			child := whole.delegate(whole.operator(), "req", "work")
			end(whole, child)
			whole.until(func() bool { return whole.record(child.GetAgentId()).GetLifecycle() == deleted })
			require.NoError(t, whole.service.Quiesce(t.Context()))
			frames := whole.frames()
			for cut := 1; cut <= len(frames); cut++ {
				r := cutRig(t, frames[:cut])
				if len(r.events()) < 2 {
					continue // before the delegation
				}
				r.drive(child.GetAgentId(), func(d *agentv1.Delegation) bool {
					return !state.IsOpen(d) && r.record(child.GetAgentId()).GetLifecycle() == deleted
				}, child.GetDelegationId())
				times := map[string]int{}
				for _, ev := range r.events() {
					if ev.AgentID == child.GetAgentId() || strings.HasPrefix(ev.Type, "delegation_") {
						times[ev.Type]++
					}
				}
				for _, once := range []string{"delegation_opened", "delegation_completed"} {
					require.Equal(t, 1, times[once], "cut %d: %s", cut, once)
				}
				for _, most := range []string{"agent_spawned", "agent_deleting", "agent_deleted"} {
					require.LessOrEqual(t, times[most], 1, "cut %d: %s", cut, most)
				}
				if name != "the parent deleted" {
					again := r.delegate(r.operator(), "req", "work")
					require.Equal(t, child.GetAgentId(), again.GetAgentId())
				}
			}
		})
	}
}

// frames returns the agent plane's log.
func (r *rig) frames() []framelog.Frame {
	log := must.Value(r.journals.Log(Plane, 0))(r.t)
	var all []framelog.Frame
	require.NoError(r.t, log.Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		f.Body = slices.Clone(f.Body)
		all = append(all, f)
		return nil
	}))
	return all
}

// cutRig begins where a log was cut.
func cutRig(t *testing.T, frames []framelog.Frame) *rig {
	return cutRigWith(t, frames, func(*rig) {})
}

// cutRigWith is cutRig beside planes that are made ready before it begins.
func cutRigWith(t *testing.T, frames []framelog.Frame, ready func(*rig)) *rig {
	r := &rig{
		t: t, clk: clock.NewFake(epoch.Add(time.Hour)), ids: &id.Sequence{}, journals: planetest.NewJournals(),
		others: &others{},
	}
	for range 1000 {
		r.ids.New("") // those of the log are taken
	}
	r.others.answer = map[string]func(context.Context, proto.Message) (proto.Message, error){}
	log := must.Value(r.journals.Log(Plane, 0))(t)
	last := uint64(0)
	for _, f := range frames {
		last = must.Value(log.Append(context.Background(), last, f))(t)
	}
	r.endsHandles()
	ready(r)
	r.up()
	t.Cleanup(r.down)
	return r
}

// drive runs what is left: a runner for the child, and time.
func (r *rig) drive(childID string, over func(*agentv1.Delegation) bool, delegationID string) {
	r.t.Helper()
	r.eventually(func() bool {
		resp, err := r.service.GetDelegation(r.operator(), &agentv1.GetDelegationRequest{
			AgentId: "keeper", DelegationId: delegationID,
		})
		if err == nil {
			if _, err := r.service.GetAgent(r.operator(), &agentv1.GetAgentRequest{AgentId: childID}); err == nil &&
				over(resp.GetDelegation()) {
				return true
			} else if err != nil && !state.IsOpen(resp.GetDelegation()) {
				return true // it was never made
			}
		}
		if resp, err := r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
			AgentIds: []string{childID},
			Wait:     durationpb.New(0),
		}); err == nil && resp.GetTurn() != nil {
			_, _ = r.tryFinish(resp, done)
		}
		r.clk.Advance(children.MaxRetry)
		return false
	})
}
