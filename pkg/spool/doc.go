// Package spool keeps what a command wrote until the task plane has stored it
// (SPEC T4, T6). Workers of every kind send it over streams that break: what was
// sent says nothing, only an acknowledgement counts, and a new stream repeats the
// rest. A command that writes faster than that is stored waits in its write.
package spool
