// Package wal is the format of a board's write-ahead log: JSON Lines with the fields
// of S2-041 to S2-051.
//
// A WAL is made from the journal's events, so that it is always as complete as they
// are, and is the same bytes whenever it is read. Each line ends with a hash of the
// line and of the hash of the line before it, and the first one with a hash of the
// log's name; so a line that was changed, removed or inserted is found (SPEC B1).
// Replay makes a board from a WAL and from nothing else.
package wal
