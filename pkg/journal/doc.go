// Package journal keeps the state of a plane: one ordered log and one state in memory for each partition, joined by
// group commit.
//
// Owns: commands that become events, events that become frames, frames that
// become durable; the request memory (SPEC X2); fencing (R5, R6); the positions
// of consumers of other journals.
// Never does: know a plane, read a clock inside a rule, answer anything that is
// not on disk (SPEC X1, R4).
//
// A plane supplies a State whose Apply is pure, and rules (Op.Decide) that are pure too; it calls Do for a mutation,
// View for a read, and Consume to react to the events of another plane. All errors of the log are handled here.
//
//	handler --Do--> inbox --> loop: Decide, Apply, encode --> frame --> Log
//	handler <-----------------answers, in order----------- acknowledged
//
// The log of frames is framelog, and jetlog is that log in NATS JetStream. archive keeps segments that the log does not
// have any more, snapshot writes the state in pages, and evicts pages from memory; witness remembers how far a
// partition was written. requests is the request memory, event the lines of frames, follower reads the journals of
// other planes, and journaltest has what tests share.
package journal
