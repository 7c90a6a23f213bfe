// Package bus publishes committed events for programs outside of the planes: for each journal
// a Publisher copies them as CloudEvents to the stream EVENTS, on the subjects of SPEC X10.
//
// Owns: the stream EVENTS, the form of a CloudEvent, and the position in EVENTS that says how
// far each journal was copied.
// Never does: decide anything. A consumer that must process an event exactly once follows the
// journal (journal.Consume). EVENTS has events at least once, and can be copied
// again, so it is not fsynced if the broker allows that.
package bus
