// Package quota keeps a namespace from taking more than its share.
//
// Owns: how many agents and open items a namespace has, how much it has written,
// and how many requests it sends; all of it counted, none of it stored.
// Never does: refuse what ends or removes something, reads, or a repetition of a
// request that was answered before (SPEC X2).
// Reads: the journals of the planes, to count what they hold.
// Emits: nothing.
//
// The counts of agents and open items are exact where the plane is served: close
// to a limit the gate reads the journal to its end before it decides. Bytes are
// those of journal lines, as of a moment ago. Requests are counted where they
// come in, by each process for itself.
package quota
