// Package names finds the records that a person names: by the beginning of an id, and for the completion of
// a shell.
//
// Owns: which arguments and flags name which records, and when the beginning of an id suffices.
// Never does: change a record, or read more than a bounded number of them.
// Reads: the Use line of a command, its arguments and flags; lists of the agent, work, task, waiting, board and
// identity planes.
// Emits: complete ids; lines on stderr that say which id was meant; completions.
package names
