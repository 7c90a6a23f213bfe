// Package workitems has the commands about work items: `quartet work`.
//
// Owns: how work items, the queue and an item's history are shown.
// Never does: keep state.
// Reads: the work plane and events.
// Emits: calls of the work plane.
package workitems
