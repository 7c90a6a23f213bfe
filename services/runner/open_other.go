//go:build !unix

package runner

// nonblocking is nothing: no name in a directory opens a pipe here.
const nonblocking = 0
