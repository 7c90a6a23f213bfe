// Package bus publishes committed events for programs outside of the planes: for each journal
// a Publisher copies them as CloudEvents to the stream EVENTS, on the subjects that Subject returns
// (SPEC X10).
//
// Owns: the stream EVENTS, the form of a CloudEvent, and the position in EVENTS that says how
// far each journal was copied.
// Never does: decide anything. EVENTS has each event at least once, so a consumer that must
// process an event exactly once should follow the journal instead (journal.Consume). EVENTS is
// not fsynced if the broker allows that, because events that are lost are copied again.
package bus
