// Package bus brings committed events to those outside the planes: one
// Publisher for each journal copies them as CloudEvents to the stream EVENTS,
// on the subjects of SPEC X10.
//
// Owns: the stream EVENTS, the form of a CloudEvent, and the position in
// EVENTS that says how far each journal was copied.
// Never does: decide anything. Whoever has to act on an event exactly once
// reads the journal itself (journal.Consume over Source); EVENTS is at least
// once, and its content can be copied again, so it is not fsynced where the
// broker allows that.
package bus

import (
	"github.com/nats-io/nats.go"

	"quartet/pkg/journal"
	"quartet/pkg/journal/jetlog"
)

// Source is one partition of a plane's journal on JetStream, read with an
// ordered consumer and without acknowledgements.
func Source(nc *nats.Conn, plane string, partition int) (journal.Source, error) {
	log, err := jetlog.New(nc, plane, partition)
	if err != nil {
		return nil, err
	}
	return journal.NewSource(plane, partition, log), nil
}
