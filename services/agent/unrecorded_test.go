package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
)

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
	_, err := r.service.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(), Text: "making",
		ToolCalls: []*agentv1.ToolCall{
			use("CreateWorkItem", "objective", "one"),
			use("CreateWorkItem", "objective", "two"), use("PickWorkItem", "work_item_id", "wi_1"),
		},
	})
	require.Error(r.t, err)
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
	again := must.Value(r.service.EnqueueMessage(recall, req))(t)
	require.Equal(t, first.GetMessageId(), again.GetMessageId())
	must.Refuse(r.service.EnqueueMessage(recall, &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", RequestId: "m1", Text: "other",
	}))(t, fault.RequestIDReused)
}
