// Package quota limits what a namespace may hold, write and request.
//
// Owns: how many agents and open items a namespace has, how much it has written,
// and how many requests it sends; all of it counted, none of it stored.
// Never does: refuse reads, what ends or deletes something, or the repetition of a request
// that was executed before (SPEC X2).
// Reads: the journals of the planes, to count what they hold.
// Emits: nothing.
//
// The counts of agents and open items are exact: near a limit the gate reads the journal to
// its end before it decides. Bytes are those of journal lines, as of a moment ago;
// those of lines that were removed count until a few minutes later. Requests
// are counted by each process for itself, where they arrive.
package quota
