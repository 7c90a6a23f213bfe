package board

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
)

// heard is the stream of an answer that is one.
type heard struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // what a stream is
	said []proto.Message
}

func (h *heard) Context() context.Context { return h.ctx }

func (h *heard) Send(m *boardv1.FollowWalResponse) error {
	h.said = append(h.said, m)
	return nil
}

// call calls an operation by its name and gives all that it answered.
func call(ctx context.Context, s *Service, m protoreflect.MethodDescriptor, req proto.Message) (string, error) {
	f := reflect.ValueOf(s).MethodByName(string(m.Name()))
	var out []proto.Message
	var last any
	if m.IsStreamingServer() {
		ctx, cancel := context.WithCancel(ctx)
		cancel() // what is there now is enough
		h := &heard{ctx: ctx}
		last = f.Call([]reflect.Value{reflect.ValueOf(req), reflect.ValueOf(h)})[0].Interface()
		out = h.said
	} else {
		r := f.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(req)})
		if m, ok := r[0].Interface().(proto.Message); ok && !r[0].IsNil() {
			out = append(out, m)
		}
		last = r[1].Interface()
	}
	text := ""
	for _, m := range out {
		text += protojson.Format(m)
	}
	err, _ := last.(error)
	return text, err
}

// aim fills a request: each field by its name, as far as there is a value for it.
func aim(t *testing.T, in protoreflect.MessageDescriptor, values map[string]string) proto.Message {
	m := must.Value(protoregistry.GlobalTypes.FindMessageByName(in.FullName()))(t).New()
	for name, v := range values {
		f := in.Fields().ByName(protoreflect.Name(name))
		switch {
		case f == nil || f.Kind() != protoreflect.StringKind:
		case f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOfString(v))
		default:
			m.Set(f, protoreflect.ValueOfString(v))
		}
	}
	if u, ok := m.Interface().(*boardv1.UpdateStepRequest); ok {
		u.Status = model.StepRunning
	}
	return m.Interface()
}

// TestS2_365_ARunAndNothingElse calls every operation of the plane with the
// credential of a run, at everything that lies outside of its board, its pool, its
// allowed steps, its session and its namespace, and of another run: none of it
// is answered with a word of what is there, and none leaves a trace (S2-365,
// S2-369, S2-380 to S2-385, S2-456 to S2-463).
func TestS2_365_ARunAndNothingElse(t *testing.T) {
	r := newRig(t)
	secret := func(id string, deps ...string) *boardv1.StepInput {
		s := in(id, deps...)
		s.Title, s.Summary = "SECRET of "+id, "SECRET"
		return s
	}
	elsewhere := secret("elsewhere")
	elsewhere.WorkerPoolId = "other"
	r.create("mine", in("mine"), in("need"), in("mine2", "need"), secret("hidden"), elsewhere)
	must.Value(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "beside", WalName: "beside-wal", Title: "SECRET", Summary: "SECRET",
		Steps: []*boardv1.StepInput{secret("mine"), secret("hidden")},
	}))(t)
	must.Value(r.service.CreateBoard(planetest.AsAgent(within(t), "other"), &boardv1.CreateBoardRequest{
		SessionId: "other", BoardId: "mine", WalName: "mine-wal", Title: "SECRET", Steps: []*boardv1.StepInput{
			secret("mine"), secret("hidden"),
		},
	}))(t)
	dispatched := r.open("beside", 1)
	foreign := r.run("beside", "w2", "mine")
	require.NoError(t, r.claim("beside", "w2", foreign, "mine"))
	mine := r.run("mine", "w1", "mine", "mine2")
	before := len(r.events())

	outside := map[string]map[string]string{
		"another board": {
			"session_id": owner, "board_id": "beside", "wal_name": "beside-wal",
			"step_id": "mine", "run_id": foreign, "dispatch_id": dispatched,
		},
		"another session": {
			"session_id": "other", "board_id": "mine", "wal_name": "mine-wal",
			"step_id": "mine", "run_id": foreign, "dispatch_id": dispatched,
		},
		"a step out of its scope": {
			"session_id": owner, "board_id": "mine", "wal_name": "mine-wal",
			"step_id": "hidden", "step_ids": "hidden", "run_id": foreign,
		},
		"a step of another pool": {
			"session_id": owner, "board_id": "mine", "wal_name": "mine-wal",
			"step_id": "elsewhere", "step_ids": "elsewhere", "run_id": foreign,
		},
		"its own board, as a whole": {
			"session_id": owner, "board_id": "mine", "wal_name": "mine-wal",
			"run_id": foreign,
		},
	}
	actors := map[string]rpc.Actor{
		"the run": {
			Namespace: "acme", Principal: "worker/w1", Role: rpc.RoleWorker, AgentID: "w1", RunID: mine,
		},
		"the run in another namespace": {
			Namespace: "beta", Principal: "worker/w1", Role: rpc.RoleWorker, AgentID: "w1", RunID: mine,
		},
		"a run that never was": {
			Namespace: "acme", Principal: "worker/w1", Role: rpc.RoleWorker, AgentID: "w1", RunID: "run_none",
		},
		"a worker without a run": {
			Namespace: "acme", Principal: "worker/w1", Role: rpc.RoleWorker, AgentID: "w1",
		},
		"an integration": {Namespace: "acme", Principal: "hook", Role: rpc.RoleIntegration},
		"a runner":       {Namespace: "acme", Principal: "runner", Role: rpc.RoleRunner},
		"another agent": {
			Namespace: "acme", Principal: "agent/third", Role: rpc.RoleAgent, AgentID: "third",
		},
		"the owner, in another namespace": {
			Namespace: "beta", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: owner,
		},
		"nobody": {},
	}
	methods := boardv1.File_quartet_board_v1_board_service_proto.Services().ByName("BoardService").Methods()
	require.Greater(t, methods.Len(), 20)
	for i := range methods.Len() {
		m := methods.Get(i)
		for who, actor := range actors {
			for where, values := range outside {
				home := values["session_id"] == owner && values["board_id"] == "mine"
				if who == "the run" && (m.Name() == "FinishWorkerRun" && home || m.Name() == "ClaimStep" &&
					values["step_id"] == "" && home) {
					continue // its own end, and any step of its scope: what it is there for
				}
				req := aim(t, m.Input(), values)
				answer, err := call(rpc.WithActor(within(t), actor), r.service, m, req)
				what := fmt.Sprintf("%s by %s at %s", m.Name(), who, where)
				require.NotContains(t, answer, "SECRET", what)
				if err != nil {
					require.NotContains(t, fault.From(err).Message(), "SECRET", what)
					require.NotEqual(t, fault.InternalError, fault.From(err).Reason(), what)
				}
				require.Len(t, r.events(), before, what)
			}
		}
	}
	// Inside it may do what it was dispatched for.
	require.NoError(t, r.claim("mine", "w1", mine, "mine"))
	require.NoError(t, r.report("mine", "w1", mine, "mine", model.StepCompleted))
}
