// Package framelog is the log of one partition, frame by frame: what a frame is, how frames are
// chained by hash, and how one is written when the log does not answer.
//
// Owns: the interface Log; Link and End, by which a reader sees that a frame is missing, was changed
// or was put there by somebody else; Writer, which finds out what became of a frame (SPEC R5); the frame
// with which a partition begins a new incarnation, after its operator accepted that frames are lost; the
// newest frames in memory (Chain), frames that were read back (Cache) and where they are (Index); what a
// process knows of damage (Damages) and of the store (Room).
// Never does: parse an event. A frame's body is lines of bytes here, of which only the type, the agent and
// incarnation_began are read. Nor does it decide that frames are lost: `quartet repair` and `quartet restore` do.
//
// Each frame of a partition names the hash of the one before it. The hash covers salted hashes of the
// lines, so that the content of a line can be erased later and its hash kept: the chain can still be
// verified by everybody, without a key, and the hash does not tell what the line was.
package framelog
