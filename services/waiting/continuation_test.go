package waiting

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
)

// The continuation matrix, cell by cell: what each cause does to each kind of
// wait of the same item, when it is what that wait waits for and when it is not
// (SPEC P6, upstream section 5.1).
func TestP6_TheContinuationMatrix(t *testing.T) {
	prompt := func(item string) func(r *rig) {
		return func(r *rig) {
			r.hear("", &agentv1.MessageQueued{
				Message: &agentv1.Message{
					MessageId: "msg_1", Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, WorkItemId: item,
				},
			})
		}
	}
	ends := func(task string) func(r *rig) {
		return func(r *rig) {
			r.hear(itemA, &taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: task, WorkItemId: itemA, Revision: 2}})
		}
	}
	delivers := func(item string, mode waitingv1.DeliveryMode) func(r *rig) {
		return func(r *rig) { r.deliver(r.trigger(item, mode).GetToken(), "x") }
	}
	waits := map[string]func(r *rig) string{
		"operator": func(r *rig) string {
			return r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA}).GetWait().GetWaitId()
		},
		"task": func(r *rig) string {
			return r.waitFor(&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemA}).GetWait().
				GetWaitId()
		},
		"timer": func(r *rig) string {
			return r.waitFor(&waitingv1.WaitForRequest{Wake: timer, After: seconds(600), WorkItemId: itemA}).GetWait().
				GetWaitId()
		},
		"external": func(r *rig) string {
			return r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait().GetWaitId()
		},
		"external, contentful": func(r *rig) string {
			return r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, DeliveryMode: contentful}).
				GetWait().GetWaitId()
		},
		"external, another trigger": func(r *rig) string {
			other := r.trigger(itemA, wakeHint).GetTrigger().GetTriggerId()
			return r.waitFor(&waitingv1.WaitForRequest{Wake: external, Resource: other, WorkItemId: itemA}).GetWait().
				GetWaitId()
		},
	}
	const none, resolves, triggers = "", "resolves", "triggers"
	const override, liveness = "resume_override", "liveness_only"
	columns := []string{
		"operator", "operator, another item", "task", "another task", "its own time", "a timer",
		"contentful", "wake hint", "another item's trigger",
	}
	causes := map[string]func(r *rig){
		"operator": prompt(itemA), "operator, another item": prompt(itemB), "task": ends(taskX),
		"another task": ends(taskY),
		"its own time": func(r *rig) { r.clk.Advance(10 * time.Minute) },
		"a timer": func(r *rig) {
			_, err := r.service.CreateTimer(r.agent(), &waitingv1.CreateTimerRequest{
				AgentId: "keeper", WorkItemId: itemA, After: seconds(0),
			})
			require.NoError(r.t, err)
		},
		"contentful": delivers(itemA, contentful), "wake hint": delivers(itemA, wakeHint),
		"another item's trigger": delivers(itemB, wakeHint),
	}
	for wait, row := range map[string][]string{
		"operator":                  {resolves, none, liveness, liveness, none, liveness, liveness, liveness, none},
		"task":                      {override, none, resolves, liveness, none, liveness, liveness, liveness, none},
		"timer":                     {override, none, liveness, liveness, resolves, liveness, liveness, liveness, none},
		"external":                  {override, none, liveness, liveness, none, liveness, triggers, triggers, none},
		"external, contentful":      {override, none, liveness, liveness, none, liveness, triggers, triggers, none},
		"external, another trigger": {override, none, liveness, liveness, none, liveness, liveness, liveness, none},
	} {
		for i, want := range row {
			t.Run(wait+"/"+columns[i], func(t *testing.T) {
				r := newRig(t)
				id := waits[wait](r)
				before := len(r.events())
				causes[columns[i]](r)
				ended := func() bool { return r.wait(id).GetStatus() != stands }
				switch want {
				case resolves:
					r.eventually(ended)
					require.Equal(t, came, r.wait(id).GetStatus())
				case override, liveness:
					r.eventually(func() bool { return slices.Contains(r.since(before), "wait_mismatched") })
				}
				w := r.wait(id)
				require.Equal(t, want != resolves, w.GetStatus() == stands, "a mismatch is never pretended satisfied")
				require.Equal(t, want == triggers, w.GetTriggered())
				recorded := ""
				for _, ev := range r.events()[before:] {
					if p, ok := ev.Payload.(*waitingv1.WaitMismatched); ok && p.GetWaitId() == id {
						recorded = pbjson.EnumText(p.GetContinuation())
						require.NotEmpty(t, p.GetCause())
						require.NotEmpty(t, p.GetCauseId())
						require.Equal(t, itemA, ev.WorkItemID)
					}
				}
				if want == override || want == liveness {
					require.Equal(t, want, recorded)
				} else {
					require.Empty(t, recorded)
				}
			})
		}
	}
}

// What is recorded is bounded: the same cause once, sixteen of them for a wait,
// and nothing for what only counts.
func TestP6_MismatchesDoNotDrownTheJournal(t *testing.T) {
	r := newRig(t)
	id := r.waitFor(&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemA}).GetWait().
		GetWaitId()
	token := r.trigger(itemA, contentful).GetToken()
	mismatches := func() (n int) {
		for _, typ := range r.since(0) {
			if typ == "wait_mismatched" {
				n++
			}
		}
		return n
	}
	for range 20 {
		r.deliver(token, "x")
	}
	require.Equal(t, 1, mismatches())
	r.restart()
	r.deliver(token, "x")
	require.Equal(t, 1, mismatches(), "also after a restart")
	for i := range 30 {
		r.hear("", &agentv1.MessageQueued{Message: &agentv1.Message{
			MessageId: "msg_" + string(rune('a'+i)),
			Kind:      agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
		}})
	}
	require.Equal(t, maxMismatches, mismatches())
	r.hear("", &taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: taskX}})
	require.Equal(t, came, r.wait(id).GetStatus())
	require.Empty(t, r.service.state().agents.Get(plane.KeyOf("acme", "keeper")).mismatched,
		"what ended needs no memory")
}

// An operator who may mean either of two waits resolves none, and both say so.
func TestP6_AnAmbiguousMessageIsRecorded(t *testing.T) {
	r := newRig(t)
	for _, item := range []string{itemA, itemB} {
		r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: item})
	}
	before := len(r.events())
	r.hear("", &agentv1.MessageQueued{
		Message: &agentv1.Message{MessageId: "msg_1", Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT},
	})
	require.Equal(t, []string{"wait_mismatched", "wait_mismatched"}, r.since(before))
}
