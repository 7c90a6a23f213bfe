// Package life starts and stops the modules of a process.
//
// The architecture is a table of modules with what each needs in its own
// process. The start order is derived from it, stopping is the reverse, and a
// start that fails stops what was started before it: nobody writes either
// order by hand, so nobody can get it wrong in one place only.
package life
