package requests

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// StoreReply returns the payload that stores the reply of a request without events. reply
// must be a message.
func StoreReply(reply any) (*structpb.Struct, error) {
	m, ok := reply.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("a reply to remember is a %T and no message", reply)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"message": structpb.NewStringValue(string(m.ProtoReflect().Descriptor().FullName())),
		"reply":   structpb.NewStringValue(base64.StdEncoding.EncodeToString(raw)),
	}}, nil
}

// LoadReply returns the reply in a payload of StoreReply. It is an error if that is a
// message of another type.
func LoadReply[R any](payload proto.Message) (R, error) {
	var zero R
	s, _ := payload.(*structpb.Struct)
	model, ok := any(zero).(proto.Message)
	if !ok {
		return zero, fmt.Errorf("a reply was stored for a command that replies with a %T", zero)
	}
	m := model.ProtoReflect().New().Interface()
	if got, want := s.GetFields()["message"].GetStringValue(), string(m.ProtoReflect().Descriptor().FullName()); got !=
		want {
		return zero, fmt.Errorf("the stored reply is a %s, not a %s", got, want)
	}
	raw, err := base64.StdEncoding.DecodeString(s.GetFields()["reply"].GetStringValue())
	if err == nil {
		err = proto.Unmarshal(raw, m)
	}
	if err != nil {
		return zero, fmt.Errorf("stored reply: %w", err)
	}
	out, _ := m.(R)
	return out, nil
}
