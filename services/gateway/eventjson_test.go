package gateway

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "quartet/pkg/pb/quartet/event/v1"
)

// The JSON that a stream makes of an event is that of the message, with every field.
func TestAnEventAsJSONIsThatOfItsMessage(t *testing.T) {
	payload := []byte(`{"text":"a \"b\" <c> & é 🙂","n":3,"f":-1.5,"none":null,"list":[1,{"x":[]}],"empty":{}}`)
	message := &structpb.Struct{}
	require.NoError(t, protojson.Unmarshal(payload, message))
	for _, at := range []time.Time{
		time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 12, 0, 0, 120e6, time.UTC),
		time.Date(2026, 3, 1, 12, 0, 0, 123456e3, time.UTC),
		time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC),
	} {
		ev := &eventv1.Event{Payload: message}
		fields := ev.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			switch fd := fields.Get(i); fd.Kind() {
			case protoreflect.StringKind:
				ev.ProtoReflect().Set(fd, protoreflect.ValueOfString(string(fd.Name())+" \"\\\n\t\x01 <é🙂\u2028>"))
			case protoreflect.Int64Kind:
				ev.ProtoReflect().Set(fd, protoreflect.ValueOfInt64(1<<60+1))
			case protoreflect.MessageKind: // the payload and the time
			default:
				require.Failf(t, "Append does not know this kind of field", "%s", fd.FullName())
			}
		}
		ev.CreatedAt = timestamppb.New(at)
		for _, full := range []*eventv1.Event{ev, {Payload: ev.GetPayload(), CreatedAt: ev.GetCreatedAt()}} {
			want, err := protojson.Marshal(full)
			require.NoError(t, err)
			bare := proto.CloneOf(full)
			bare.Payload = nil
			got, err := appendEvent([]byte("x"), bare, payload)
			require.NoError(t, err)
			require.Equal(t, "x", string(got[:1]))
			require.True(t, json.Valid(got[1:]), string(got))
			require.JSONEq(t, string(want), string(got[1:]))
		}
	}
}

func TestAnEventThatIsNoTextIsRefused(t *testing.T) {
	_, err := appendEvent(nil, &eventv1.Event{Principal: "\xff"}, []byte("{}"))
	require.ErrorIs(t, err, errText)
}
