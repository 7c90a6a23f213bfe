package journal

import "google.golang.org/protobuf/proto"

// Find returns the payload of the first event whose payload has type T, and
// false if there is none. Answers of commands use it to read what a decision
// wrote:
//
//	created, ok := journal.Find[*boardv1.TaskCreated](events)
func Find[T proto.Message](events []*Event) (T, bool) {
	for _, ev := range events {
		if p, ok := ev.Payload.(T); ok {
			return p, true
		}
	}
	var none T
	return none, false
}
