// Package derived reads the streams that are not journals, which are EVENTS, the output of commands and snapshots, and
// says which of their messages are missing or cannot be read.
//
// Owns: what is damage to each of these streams, and what to do about it.
// Never does: change a stream. No plane stops because of what is found here.
package derived
