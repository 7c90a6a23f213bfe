// Package events has `quartet events`, and the follower of events with which other
// commands keep a picture up to date.
//
// Owns: reconnecting to a stream of events without gap or duplicate.
// Never does: keep a cursor across invocations.
// Reads: WatchEvents of the gateway.
// Emits: text.
package events
