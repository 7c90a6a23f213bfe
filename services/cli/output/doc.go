// Package output writes what the command line shows: tables, fields and text
// for people, JSON documents for programs.
//
// Owns: layout in columns, colours, wrapping, and making text that agents and
// outside systems wrote harmless for a terminal; and which command stands for a method
// that a message of the server names as a remedy (SPEC X5.1).
// Never does: call a server or decide what to show.
// Reads: NO_COLOR, TERM, COLUMNS and the size of the terminal.
// Emits: text.
package output
