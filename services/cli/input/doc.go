// Package input reads what was typed: positional arguments, values of flags, and
// text from stdin or files.
//
// Owns: the forms of enum names, durations, times, sizes and checklists on the
// command line, and the messages for those that cannot be read.
// Never does: call a server; a value that only the server can judge is passed on.
// Reads: arguments, files and stdin.
// Emits: values for requests, and usage errors.
package input
