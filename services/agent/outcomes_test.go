package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/runners"
)

// stillRuns returns a task plane in which a command does not end.
func stillRuns(context.Context, proto.Message) (proto.Message, error) {
	return &taskv1.ListTasksResponse{TotalActive: 1}, nil
}

// A5: every outcome that a message can have, how it is reached, and that the
// list's filter finds exactly it. What is over stays so over a restart.
func TestA5_EveryOutcome(t *testing.T) {
	type way struct {
		state  agentv1.MessageState
		reason string
		goes   func(r *rig) string // the message
	}
	for name, c := range map[string]way{
		"queued": {agentv1.MessageState_MESSAGE_STATE_QUEUED, "", func(r *rig) string {
			return r.send("keeper", "x", normal)
		}},
		"dequeued": {agentv1.MessageState_MESSAGE_STATE_DEQUEUED, "", func(r *rig) string {
			r.send("keeper", "x", normal)
			return r.take("keeper").GetMessage().GetMessageId()
		}},
		"processed": {agentv1.MessageState_MESSAGE_STATE_PROCESSED, "finished", func(r *rig) string {
			id := r.send("keeper", "x", normal)
			r.finish(r.take("keeper"), done)
			return id
		}},
		"interjected": {agentv1.MessageState_MESSAGE_STATE_INTERJECTED, "", func(r *rig) string {
			r.send("keeper", "x", normal)
			a := r.take("keeper")
			id := r.send("keeper", "y", interject)
			r.submit(a, 0, "")
			return id
		}},
		"interrupted, so queued": {agentv1.MessageState_MESSAGE_STATE_QUEUED, "lease_lost", func(r *rig) string {
			id := r.send("keeper", "x", normal)
			r.take("keeper")
			r.clk.AwaitTimers(1)
			r.clk.Advance(runners.Term)
			r.eventually(func() bool {
				return r.message("keeper", id).GetState() ==
					agentv1.MessageState_MESSAGE_STATE_QUEUED
			})
			return id
		}},
		"stopped, so queued": {agentv1.MessageState_MESSAGE_STATE_QUEUED, "operator_stopped", func(r *rig) string {
			id := r.send("keeper", "x", normal)
			r.take("keeper")
			r.must("stop", "keeper")
			return id
		}},
		"aborted": {agentv1.MessageState_MESSAGE_STATE_ABORTED, "operator_aborted", func(r *rig) string {
			id := r.send("keeper", "x", normal)
			r.take("keeper")
			r.must("abort", "keeper")
			return id
		}},
		"dropped": {agentv1.MessageState_MESSAGE_STATE_DROPPED, "agent_deleted", func(r *rig) string {
			id := r.send("keeper", "x", normal)
			r.on("ListTasks", stillRuns)
			must.Value(r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: "keeper"}))(r.t)
			return id
		}},
		"quarantined after three": {
			agentv1.MessageState_MESSAGE_STATE_QUARANTINED, "retryable, attempt 3 of 3",
			func(r *rig) string {
				id := r.send("keeper", "x", normal)
				for range lane.MaxAttempts {
					r.finish(r.take("keeper"), retryable)
				}
				return id
			},
		},
		"quarantined at once": {agentv1.MessageState_MESSAGE_STATE_QUARANTINED, "fatal", func(r *rig) string {
			id := r.send("keeper", "x", normal)
			r.finish(r.take("keeper"), fatal)
			return id
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			id := c.goes(r)
			for range 2 {
				m := r.message("keeper", id)
				require.Equal(t, c.state, m.GetState())
				require.Equal(t, c.reason, m.GetStateReason())
				for state := range agentv1.MessageState_name {
					l := must.Value(r.service.ListMessages(r.operator(), &agentv1.ListMessagesRequest{
						AgentId: "keeper", State: agentv1.MessageState(state),
					}))(t)
					found := false
					for _, m := range l.GetMessages() {
						found = found || m.GetMessageId() == id
					}
					require.Equal(t, state == 0 || agentv1.MessageState(state) == c.state, found, "%s",
						agentv1.MessageState(state))
				}
				r.restart()
			}
		})
	}
}

// X1.1: a call that fails after it had an effect does not say that it stored nothing, whatever
// the write says that failed.
func TestX1_AnErrorAfterAnEffectIsNotNone(t *testing.T) {
	for name, call := range map[string]func(r *rig, a *agentv1.AcquireTurnResponse) error{
		"a round whose call ran": func(r *rig, a *agentv1.AcquireTurnResponse) error {
			_, err := r.trySubmit(a, 0, "", use("ExecCommand", "cmd", "true"))
			return err
		},
		"a command": func(r *rig, _ *agentv1.AcquireTurnResponse) error {
			_, err := r.service.CallTool(r.operator(), &agentv1.CallToolRequest{
				AgentId: "keeper", Name: "ExecCommand", Arguments: use("ExecCommand", "cmd", "true").GetArguments(),
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			log := r.injectFaults()
			r.spawn("keeper")
			r.send("keeper", "go", normal)
			a := r.take("keeper")
			ran := 0
			r.on("ExecCommand", func(context.Context, proto.Message) (proto.Message, error) {
				ran++
				log.Inject(journaltest.Refused, journaltest.Refused, journaltest.Refused,
					journaltest.Refused, journaltest.Refused, journaltest.Refused)
				return &taskv1.ExecCommandResponse{
					Outcome: taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED,
					Task:    &taskv1.Task{TaskId: "tsk_1"},
				}, nil
			})
			err := call(r, a)
			require.ErrorIs(t, err, fault.Storage)
			require.Equal(t, "unknown", fault.From(err).Metadata()["outcome"])
			require.Equal(t, 1, ran)
		})
	}
}

// cutOffAt submits a round of three calls whose runner is lost during the second.
// recalled is what its plane says later.
func (r *rig) cutOffAt(a *agentv1.AcquireTurnResponse, recalled func() (proto.Message, error)) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.runner())
	defer cancel()
	made := 0
	r.on("CreateWorkItem", func(call context.Context, _ proto.Message) (proto.Message, error) {
		if rpc.AsksRecall(call) {
			return recalled()
		}
		made++
		require.LessOrEqual(r.t, made, 2, "no call is run again")
		if made == 2 {
			cancel() // the process dies here, as far as the runner is concerned
			return nil, fault.NotReady.New("gone")
		}
		return &workv1.CreateWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
	})
	require.Error(r.t, must.Err(r.service.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(), Text: "making",
		ToolCalls: []*agentv1.ToolCall{
			use("CreateWorkItem", "objective", "one"),
			use("CreateWorkItem", "objective", "two"), use("PickWorkItem", "work_item_id", "wi_1"),
		},
	})))
}

// ARCHITECTURE 12.4, A6: after a lost run the next context says what came of its
// calls: what was recorded, what its plane remembers, and what never ran. It says
// so after a restart too, and no more once a turn has completed.
func TestA6_TheNextContextShowsUnrecordedOutcomes(t *testing.T) {
	landed := &workv1.CreateWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_2"}}
	for name, c := range map[string]struct {
		reply proto.Message
		err   error
		want  string
	}{
		"it landed":  {reply: landed, want: "CreateWorkItem: success, CreateWorkItem succeeded: wi_2"},
		"it did not": {err: fault.NotFound.New("never"), want: "CreateWorkItem: did not run"},
		"nobody can say": {err: fault.NotReady.New("starting"), want: "CreateWorkItem: outcome unknown: look " +
			"before you repeat it"},
		"another was there": {
			err:  fault.RequestIDReused.New("other"),
			want: "CreateWorkItem: outcome unknown: look before you repeat it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for end, lose := range map[string]func(r *rig, a *agentv1.AcquireTurnResponse){
				"lease lost": func(r *rig, _ *agentv1.AcquireTurnResponse) {
					r.clk.Advance(runners.Term)
					require.NoError(t, r.service.Quiesce(t.Context()))
				},
				"aborted": func(r *rig, _ *agentv1.AcquireTurnResponse) {
					must.Value(r.abort("", ""))(t)
					r.must("resume", "keeper")
					r.send("keeper", "go on", normal)
				},
				"retryable": func(r *rig, a *agentv1.AcquireTurnResponse) { r.finish(a, retryable) },
			} {
				r, a := turn(t)
				r.cutOffAt(a, func() (proto.Message, error) { return c.reply, c.err })
				lose(r, a)
				for range 2 {
					b := r.take("keeper")
					text := b.GetContext().GetText()
					require.Contains(t, text, "What was tried: earlier turns", end)
					var shown []string
					for line := range strings.Lines(text) {
						if _, rest, ok := strings.Cut(line, a.GetTurn().GetTurnId()+"/0 "); ok {
							shown = append(shown, strings.TrimSpace(rest))
						}
					}
					require.Equal(t, []string{
						"CreateWorkItem: success, CreateWorkItem succeeded: wi_1", c.want,
						"PickWorkItem: did not run",
					}, shown, end)
					require.Contains(t, text, `"objective":"two"`)
					r.finish(b, retryable)
					r.restart()
				}
				r.send("keeper", "after", normal)
				r.finish(r.take("keeper"), done)
				r.send("keeper", "next", normal)
				require.NotContains(t, r.take("keeper").GetContext().GetText(), "What was tried", end)
			}
		})
	}
}

// What a turn made before it was cut off stays among the notes on its item, also once later turns have completed
// (SPEC C2).
func TestC2_NotesOnWhatALostTurnMade(t *testing.T) {
	r, a := turn(t)
	r.finish(a, done)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{AgentId: "keeper", Current: &workv1.WorkItem{
				WorkItemId: "wi_focus", Objective: "go on",
			}}, nil
		}
	})
	r.send("keeper", "make them", normal)
	a = r.take("keeper")
	require.Equal(t, "wi_focus", a.GetTurn().GetWorkItemId())
	r.cutOffAt(a, func() (proto.Message, error) { return nil, fault.NotFound.New("never") })
	r.clk.Advance(runners.Term)
	require.NoError(t, r.service.Quiesce(t.Context()))

	b := r.take("keeper")
	require.Contains(t, b.GetContext().GetText(), "What was tried: earlier turns")
	r.submit(b, 0, "I go on")
	r.finish(b, done)
	for range 2 { // the second time they are read back
		r.send("keeper", "and now?", normal)
		b = r.take("keeper")
		require.NotContains(t, b.GetContext().GetText(), "What was tried: earlier turns")
		require.Contains(t, b.GetContext().GetText(), "\n- made: work item wi_1: one\n")
		r.finish(b, done)
		r.restart()
	}
}

// X2: a request may be asked for without being made.
func TestX2_RecallRunsNothing(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	req := &agentv1.EnqueueMessageRequest{AgentId: "keeper", RequestId: "m1", Text: "hello"}
	recall := metadata.NewIncomingContext(r.operator(), metadata.Pairs("quartet-recall", "true"))
	before := len(r.events())
	must.Refuse(r.service.EnqueueMessage(recall, req))(t, fault.NotFound)
	require.Len(t, r.events(), before)
	first := must.Value(r.service.EnqueueMessage(r.operator(), req))(t)
	r.restart()
	require.Equal(t, first.GetMessageId(), must.Value(r.service.EnqueueMessage(recall, req))(t).GetMessageId())
	must.Refuse(r.service.EnqueueMessage(recall, &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", RequestId: "m1", Text: "other",
	}))(t, fault.RequestIDReused)
}
