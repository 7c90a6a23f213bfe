// Package witness remembers outside of the journals how far each partition was written, and the hash of
// its last frame, so that a loss at the end of a journal is noticed: a journal itself does not show that
// later frames are missing.
//
// Owns: one small file for each partition in a directory, two slots in each.
// Never does: answer what a journal contains. A partition without a file has no witness yet.
package witness
