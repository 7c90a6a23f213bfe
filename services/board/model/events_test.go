package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// payloads returns an empty payload of every event of the plane.
func payloads(t *testing.T) map[string]proto.Message {
	out := map[string]proto.Message{}
	messages := boardv1.File_quartet_board_v1_board_event_proto.Messages()
	for i := range messages.Len() {
		mt, err := protoregistry.GlobalTypes.FindMessageByName(messages.Get(i).FullName())
		require.NoError(t, err)
		out[string(messages.Get(i).Name())] = mt.New().Interface()
	}
	return out
}

// TestEveryEventIsFolded applies every event of the plane to a board. An event
// without a case in the fold is refused as unknown; others may be refused because
// they cannot follow, which damages the board and is no error of the fold.
func TestEveryEventIsFolded(t *testing.T) {
	for name, payload := range payloads(t) {
		st := NewState(time.Minute)
		ev := func(step string, p proto.Message) *journal.Event {
			return &journal.Event{
				Namespace: "acme", SessionID: "keeper", TaskID: "one", StepID: step, Type: name,
				Payload: p, CreatedAt: time.Unix(0, 0),
			}
		}
		require.NoError(t,
			st.Apply(ev("", &boardv1.TaskCreated{WalName: "one", Steps: []*boardv1.StepInput{{StepId: "a"}}})))
		switch p := payload.(type) {
		case *boardv1.TaskCreated:
			continue
		case *boardv1.WorkerDispatched:
			p.Run = &boardv1.WorkerRun{RunId: "run_1"}
		case *boardv1.StandingDispatchOpened:
			p.Dispatch = &boardv1.StandingDispatch{DispatchId: "dsp_1", OpenedAt: timestamppb.New(time.Unix(0, 0))}
		}
		require.NoError(t, st.Apply(ev("a", payload)), name)
		if b := st.Sessions[plane.KeyOf("acme", "keeper")].WAL("one"); b.Damaged != nil {
			require.NotContains(t, b.Damaged.Error(), "unknown event", name)
		}
	}
}

func TestAnUnknownEventIsAnError(t *testing.T) {
	st := NewState(time.Minute)
	ev := &journal.Event{
		Namespace: "acme", SessionID: "keeper", TaskID: "one", StepID: "a", Type: "from_the_future",
		CreatedAt: time.Unix(0, 0),
	}
	ev.Payload = &boardv1.TaskCreated{WalName: "one", Steps: []*boardv1.StepInput{{StepId: "a"}}}
	require.NoError(t, st.Apply(ev))
	future := *ev
	future.Payload = &timestamppb.Timestamp{}
	require.NoError(t, st.Apply(&future))
	require.ErrorContains(t, st.Sessions[plane.KeyOf("acme", "keeper")].WAL("one").Damaged,
		"unknown event from_the_future")
}
