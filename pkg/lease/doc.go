// Package lease spreads the partitions of services over the instances that
// serve them. It knows no service and no journal.
//
// Every process has one session, a key in a bucket of the broker that it renews
// every fifth of a term. What it holds, it holds by its session:
//
//	session.<id>          {addr, groups, leaving}     renewed by its owner, revision-checked
//	part.<group>.<n>      {session} or {}             who holds it; {}: given back
//
// A holder answers for a partition until 0.6 terms after it sent the last
// renewal that was acknowledged. Whoever has seen a session unchanged for 0.8
// terms deletes it, at the revision that it saw: if that succeeds, the old holder
// has been silent by then, and if it wakes up, its next renewal fails. Only what
// belongs to no session is taken, at its revision. So clocks are never compared,
// only spans, and the difference, 0.2 terms, is what two clocks may go apart
// within one term.
//
// The bucket is in memory: losing it costs a wait, and never a promise, since
// writes are fenced by the log (ARCHITECTURE R5, R6, section 7).
package lease
