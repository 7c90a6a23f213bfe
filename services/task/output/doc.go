// Package output stores what commands write. The end of each task's output is kept,
// and its beginning is dropped (SPEC T6).
package output
