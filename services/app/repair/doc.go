// Package repair restores damaged journals of an embedded NATS server from intact copies of their frames, and lets a
// partition go on without frames of which there is no copy.
//
// It repairs the archives of the journals from the same copies; what is lost of an archive stops no partition.
//
// Owns: finding copies, choosing among them by the frames' hashes, and exchanging a stream for a repaired one so that
// an interruption leaves one or the other.
// Never does: guess. A frame belongs to a journal if the hash in the frame behind it, or the witness, says so.
package repair
