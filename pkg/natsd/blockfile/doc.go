// Package blockfile reads and writes the block files in which a NATS server stores the messages of a stream
// (msgs/N.blk), without a server. A server that opens a damaged block cuts it at the first record that it cannot
// read, and loses the records behind that.
//
// Owns: the format of a record, its checksum, finding the next intact record behind damage, and correcting a
// single bit of a damaged one.
// Never does: open a stream, or know what is in a message. Compressed and encrypted blocks are reported as such; the
// streams of Quartet are neither.
package blockfile
