// Package proctree keeps hold of everything that a process starts, so that none of
// it outlives what it was started for (SPEC T3, T6).
//
// A process group is not enough: setsid leaves it, and a daemon's parent is init.
// What no program gets rid of by accident are its resource limits, since fork and
// exec hand them on. So every tree has a number of its own, its Mark, as the soft
// RLIMIT_RTTIME of all of its processes: a limit that says nothing to who is not
// scheduled in real time, is 64 bits wide, and can be read by anybody in
// /proc/PID/limits. A number has parts for the installation, for the life of its
// process, and for the tree, so a later life knows what a former one left.
//
// A host that is killed itself has no chance to end anything. Its guard, a small
// process beside it that holds the other end of a pipe, does so then.
//
// What it does not catch: a process that sets this limit itself, and one that was
// started by somebody else on request (a container by its daemon, a job by at).
package proctree
