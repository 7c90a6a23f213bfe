// Package witness remembers outside of the journals how far each partition was written, and the hash of
// its last frame, so that a loss at the end of a journal is noticed: a journal itself does not show that
// later frames are missing.
//
// Owns: one small file for each partition in a directory, two slots in each; a key-value bucket of the NATS servers,
// where every process of an installation can read the witnesses, since whoever opens a partition next may be on another
// machine than the one that wrote it last. The bucket is written once a second at most for each partition, and an older
// record replaces no newer one; a record that is not there yet is in the file of the process that made it.
// Never does: answer what a journal contains, or delay a frame. A partition without a file has no witness yet.
package witness
