// Package lease distributes the partitions of services over the instances that serve them.
// It knows no service and no journal.
//
// Each process has one session: a key in a bucket of the broker, which it renews every fifth
// of a term. The records of partitions name the session that holds them:
//
//	session.<id>          {addr, groups, leaving}     renewed by its owner, revision-checked
//	part.<group>.<n>      {session} or {}             the holder; {}: released
//
// A holder serves a partition until 0.6 terms after it sent the last renewal that was
// acknowledged. A process that has seen a session unchanged for 0.8 terms deletes it, at the
// revision that it saw. If that succeeds, the former holder has stopped serving by then, and
// its next renewal will fail. Only a partition whose session does not exist is taken, at the
// revision of its record. So only durations are compared, not clocks, and two clocks may
// drift apart by the difference, 0.2 terms, within one term.
//
// The bucket is in memory. Its loss causes a delay and no loss of data, because writes are
// fenced by the log (SPEC R5, R6).
package lease
