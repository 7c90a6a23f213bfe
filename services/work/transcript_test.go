package work

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// TestTranscripts runs testdata/*.txt: calls with their answers and events.
//
//	METHOD [as=ROLE|AGENT] [save=NAME] {request}   a call of the service
//	hear TYPE {payload}                            an event of the waiting plane
//	tasks tsk_… tsk_…!                             what runs for items, ! blocking
//	advance DURATION, restart
func TestTranscripts(t *testing.T) {
	planetest.Transcripts(t, "testdata/*.txt", func(t *testing.T) planetest.Stage { return newRig(t) })
}

var waitingEvents = journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto)

// Do runs one line of a transcript.
func (r *rig) Do(t *testing.T, l planetest.Line, names *planetest.Names) string {
	before := len(r.events())
	out := ""
	switch l.Verb {
	case "advance":
		d := must.Value(time.ParseDuration(l.Options["by"]))(t)
		r.clk.Advance(d)
	case "restart":
		r.restart()
	case "tasks":
		var list []RunningTask
		for _, id := range strings.FieldsFunc(l.Options["run"], func(c rune) bool { return c == ',' }) {
			name, blocking := strings.CutSuffix(id, "!")
			list = append(list, RunningTask{TaskID: name, Blocking: blocking})
		}
		r.tasks.set(list...)
	case "hear":
		payload := must.Value(waitingEvents.New(l.Options["type"]))(t)
		r.hear(&journal.Event{
			Type: l.Options["type"], Namespace: "acme", AgentID: "keeper", Payload: l.Request(t, payload, nil),
		})
	default:
		out = r.call(t, l, names)
	}
	// What an item became stands in the answer; of the events the rest matters.
	return out + planetest.Events(r.events()[before:], "work_item", "previous_work_item")
}

func (r *rig) call(t *testing.T, l planetest.Line, names *planetest.Names) string {
	md := workv1.File_quartet_work_v1_work_service_proto.Services().ByName("WorkService").Methods().
		ByName(protoreflect.Name(l.Verb))
	require.NotNil(t, md, "no method %s", l.Verb)
	req := must.Value(newMessage(md.Input().FullName()))(t)
	reply := must.Value(newMessage(md.Output().FullName()))(t)
	ctx := planetest.AsAgent(t.Context(), "keeper")
	switch as := l.Options["as"]; as {
	case "":
	case rpc.RoleOperator, rpc.RoleService, rpc.RoleIntegration, rpc.RoleRunner, rpc.RoleWorker, rpc.RoleAdmin:
		ctx = planetest.As(t.Context(), as)
	default:
		ctx = planetest.AsAgent(t.Context(), as)
	}
	l.Request(t, req, map[string]string{"agent_id": "keeper"})
	again, err := replayed(func(opts ...grpc.CallOption) error {
		return must.Value(r.conn())(t).Invoke(ctx, "/quartet.work.v1.WorkService/"+l.Verb, req, reply, opts...)
	})
	if err != nil {
		return planetest.Refusal(err)
	}
	if name := l.Options["save"]; name != "" {
		names.Save(name, reply.(interface{ GetWorkItem() *workv1.WorkItem }).GetWorkItem().GetWorkItemId())
	}
	out := ""
	if again {
		out = "idempotent-replayed\n"
	}
	return out + planetest.Show(reply) + "\n"
}

func newMessage(name protoreflect.FullName) (proto.Message, error) {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return mt.New().Interface(), nil
}
