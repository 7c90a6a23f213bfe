package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
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
