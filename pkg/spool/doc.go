// Package spool buffers the output of a command until the task plane has stored it (SPEC T4,
// T6). Workers send output over streams that break, so output stays in the buffer until it is
// acknowledged, and is sent again on a new stream. A command that writes faster than its output
// is stored blocks in its write.
package spool
