// Package boards has the commands about boards: `quartet board`.
//
// Owns: the YAML file of a board, the picture of its graph, and copies of logs in
// directories.
// Never does: decide about a step; check a log, which the board plane's replay does.
// Reads: the board service, and files.
// Emits: calls of the board service, and copies of logs.
package boards
