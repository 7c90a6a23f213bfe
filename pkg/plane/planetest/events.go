package planetest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
)

// FoldsEveryEvent fails for each event type of a plane's event file that its State does not
// know: journal.ErrUnknownEvent is what Apply answers by default. Without this test a missing
// case shows in production, where each call that emits the event fails and loads the
// partition again. It fails too if Apply does not answer that for a type that is none of the file.
//
// newState returns a state that may have the agent, or session, "keeper" of namespace acme. The events are empty but
// for their messages, so Apply may refuse them for any other reason.
func FoldsEveryEvent[S journal.State](t *testing.T, file protoreflect.FileDescriptor, newState func() S) {
	t.Helper()
	registry := journal.NewRegistry(file)
	require.NoError(t, registry.Err())
	require.NotEmpty(t, registry.Types())
	event := func(eventType string, payload proto.Message) *journal.Event {
		return &journal.Event{
			Type: eventType, Namespace: "acme", AgentID: "keeper", SessionID: "keeper", TaskID: "one", StepID: "a",
			WalSeq: 1, CreatedAt: time.Unix(1, 0).UTC(), Payload: payload,
		}
	}
	err := newState().Apply(event("from_the_future", &timestamppb.Timestamp{}))
	require.ErrorIs(t, err, journal.ErrUnknownEvent)
	require.ErrorContains(t, err, "from_the_future")
	for _, eventType := range registry.Types() {
		t.Run(eventType, func(t *testing.T) {
			payload, err := registry.New(eventType)
			require.NoError(t, err)
			fill(payload.ProtoReflect(), 3)
			require.NotErrorIs(t, apply(newState(), event(eventType, payload)), journal.ErrUnknownEvent,
				"add a row for it to eventRows")
		})
	}
}

// apply returns an error for a panic, which an empty record may cause and which is not what
// this is about.
func apply(s journal.State, ev *journal.Event) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("panic")
		}
	}()
	return s.Apply(ev)
}

// fill sets the singular message fields of m that are not in a oneof to empty messages, and theirs, down to
// depth levels, so that a fold finds a record where it expects one.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.IsList() || f.IsMap() || f.ContainingOneof() != nil || depth == 0 {
			continue
		}
		fill(m.Mutable(f).Message(), depth-1)
	}
}
