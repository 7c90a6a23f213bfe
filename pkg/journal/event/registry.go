package event

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/framelog"
)

// Registry maps event types to payload messages.
type Registry struct {
	byType map[string]protoreflect.MessageType
	byName map[protoreflect.FullName]string
	err    error
}

// NewRegistry makes every top-level message of the files an event type, named by the snake_case of the
// message's name. Two messages with the same event type, or one with that of an event of the journal itself, are an
// error, which Err and Open return.
func NewRegistry(files ...protoreflect.FileDescriptor) *Registry {
	r := &Registry{
		byType: make(map[string]protoreflect.MessageType),
		byName: make(map[protoreflect.FullName]string),
	}
	for _, f := range files {
		msgs := f.Messages()
		for i := range msgs.Len() {
			r.add(msgs.Get(i))
		}
	}
	return r
}

// add registers a message as the payload of the event type that is named after it. If that type has a payload message
// already, or is one of the journal itself, add registers nothing; Err returns the first such error.
func (r *Registry) add(md protoreflect.MessageDescriptor) {
	name := framelog.TypeOfMessage(string(md.Name()))
	if _, taken := r.byType[name]; taken || Internal(name) {
		if r.err == nil {
			r.err = fmt.Errorf("journal: event type %q has two payload messages, the second is %s", name, md.FullName())
		}
		return
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil { // no generated Go type of it is linked in
		mt = dynamicpb.NewMessageType(md)
	}
	r.byType[name] = mt
	r.byName[md.FullName()] = name
}

// Err returns the error that NewRegistry found in the files, or nil.
func (r *Registry) Err() error { return r.err }

// Has reports whether an event type is one of the plane's. It is false for those of the journal itself.
func (r *Registry) Has(eventType string) bool {
	_, ok := r.byType[eventType]
	return ok
}

// Types returns all event types of the plane in no particular order.
func (r *Registry) Types() []string {
	out := make([]string, 0, len(r.byType))
	for t := range r.byType {
		out = append(out, t)
	}
	return out
}

// New returns an empty payload for an event type, also for those of the journal itself.
func (r *Registry) New(eventType string) (proto.Message, error) {
	if mt, ok := r.byType[eventType]; ok {
		return mt.New().Interface(), nil
	}
	if Internal(eventType) {
		return &structpb.Struct{}, nil
	}
	return nil, fmt.Errorf("journal: unknown event type %q", eventType)
}

// TypeOf returns the event type of a payload.
func (r *Registry) TypeOf(m proto.Message) (string, error) {
	if m == nil {
		return "", fmt.Errorf("journal: event without payload")
	}
	name := m.ProtoReflect().Descriptor().FullName()
	if t, ok := r.byName[name]; ok {
		return t, nil
	}
	return "", fmt.Errorf("journal: %s is not a registered event", name)
}
