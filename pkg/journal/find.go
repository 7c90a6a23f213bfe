package journal

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Find returns the payload of the first event whose payload has type T, and false if there is none.
func Find[T proto.Message](events []*Event) (T, bool) {
	for _, ev := range events {
		if p, ok := ev.Payload.(T); ok {
			return p, true
		}
	}
	var none T
	return none, false
}

// AnswerOf returns an Op.Answer that passes the first payload of type T to build, and fails if there is none.
func AnswerOf[T proto.Message, R any](build func(payload T) R) func([]*Event) (R, error) {
	return func(events []*Event) (R, error) {
		p, ok := Find[T](events)
		if !ok {
			var none R
			return none, fmt.Errorf("journal: no %s among %d events", p.ProtoReflect().Descriptor().Name(), len(events))
		}
		return build(p), nil
	}
}
