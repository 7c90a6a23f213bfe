package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal/journaltest"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

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
				log.Inject(journaltest.Refused, journaltest.Refused, journaltest.Refused, journaltest.Refused, journaltest.Refused,
					journaltest.Refused)
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
