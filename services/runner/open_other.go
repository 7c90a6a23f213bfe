//go:build !unix

package runner

// nonblocking is no flag here: no name in a directory opens a pipe on these systems.
const nonblocking = 0
