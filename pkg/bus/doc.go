// Package bus publishes committed events for programs outside of the planes: for each journal
// a Publisher copies them as CloudEvents to the stream EVENTS, on the subjects of SPEC X10.
//
// Owns: the stream EVENTS, the form of a CloudEvent, and the position in EVENTS that says how
// far each journal was copied.
// Never does: decide anything. A consumer that must process an event exactly once follows the
// journal (journal.Consume over Source). EVENTS has events at least once, and can be copied
// again, so it is not fsynced if the broker allows that.
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
