package journal

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// answeredEvent returns the event that stores the reply of a request that changed nothing.
func answeredEvent(reply any) (*Event, error) {
	m, ok := reply.(proto.Message)
	if !ok {
		return nil, internal(fmt.Errorf("a reply to remember is a %T and no message", reply))
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, internal(err)
	}
	return &Event{Type: TypeRequestAnswered, Payload: &structpb.Struct{Fields: map[string]*structpb.Value{
		"message": structpb.NewStringValue(string(m.ProtoReflect().Descriptor().FullName())),
		"reply":   structpb.NewStringValue(base64.StdEncoding.EncodeToString(raw)),
	}}}, nil
}

// answerOf returns the reply that answeredEvent stored.
func answerOf[R any](ev *Event) (R, error) {
	var zero R
	s, _ := ev.Payload.(*structpb.Struct)
	model, ok := any(zero).(proto.Message)
	if !ok {
		return zero, fmt.Errorf("%s is the answer of a command that replies with a %T", ev.Type, zero)
	}
	m := model.ProtoReflect().New().Interface()
	if got, want := s.GetFields()["message"].GetStringValue(), string(m.ProtoReflect().Descriptor().FullName()); got != want {
		return zero, fmt.Errorf("%s has a %s, not a %s", ev.Type, got, want)
	}
	raw, err := base64.StdEncoding.DecodeString(s.GetFields()["reply"].GetStringValue())
	if err != nil {
		return zero, fmt.Errorf("%s: %w", ev.Type, err)
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		return zero, fmt.Errorf("%s: %w", ev.Type, err)
	}
	out, _ := m.(R)
	return out, nil
}
