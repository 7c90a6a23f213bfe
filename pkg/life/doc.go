// Package life starts and stops the modules of a process.
//
// The modules are a table: each row names a service and the modules that it needs in its own
// process. The start order is derived from the table, and the stop order is its reverse. If a
// module fails to start, those started before it are stopped.
package life
