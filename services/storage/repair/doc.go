// Package repair restores damaged journals of an embedded NATS server from intact copies of their frames, and lets a
// partition go on without frames of which there is no copy. It repairs the archives of the journals from the same
// copies, and writes what is in a backup into streams that have no messages.
//
// Owns: finding copies, choosing among them by the frames' hashes, and exchanging a stream for a repaired one so that
// an interruption leaves one or the other; the comparison of what was restored with the backup.
// Never does: guess. A frame belongs to a journal if the hash in the frame behind it, or the witness, says so. Nor does
// it read a backup that was not authenticated.
package repair
