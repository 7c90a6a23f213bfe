// Package proctree starts processes and ends everything that descends from them,
// so that no process outlives the command that caused it.
//
// A Host starts trees. A tree is a first process, its leader, and all of its
// descendants. Host.End kills what is left of one tree, Host.Close what is left of
// all of them. A second process, the guard, does the same if the host is killed.
//
// # Linux
//
// Process groups are not enough: setsid leaves the group, and the parent of a daemon
// is init. What a program does not lose by accident are its resource limits, because
// fork and exec preserve them. Every tree therefore has a unique number, its Mark,
// which is the soft RLIMIT_RTTIME of all of its processes. That limit has no effect
// on a process without a real-time schedule, is 64 bits wide, and anybody can read it
// in /proc/PID/limits. A Mark encodes the owner, the owner's boot and the tree, so a
// later boot of the same owner finds and ends what an earlier one left behind.
//
// Two kinds of process escape: one that sets this limit itself, which sandboxes (package
// confine) refuse, and one that another program starts on request (a container by its daemon,
// a job by at).
//
// # Other Unix systems
//
// There is no /proc and no inherited number. A tree is found by ancestry instead: the
// host samples the process table and keeps every process whose parent or process
// group belongs to the tree. Weaker than on Linux, see Capabilities: a process that
// leaves its session and loses its parent between two samples escapes; memory is not
// measured; and when host and guard are killed together, a later boot does not find
// what they left.
package proctree
