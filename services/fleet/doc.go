// Package fleet finds and counts agents by what they do, for people who look at many of them.
//
// Owns: an index of agents in memory, which exists only while it is used. The first call creates it: it reads each
// agent once and then follows the journals. A later call makes it read again the agents that events have named
// since. It is dropped when nobody has called for a while. The agent plane derives what an agent does; the index
// only keeps it.
// Never does: decide or change anything.
// Reads: agents from the agent plane, boards from the board plane; the journals of agent, work, waiting and board.
// Emits: nothing.
package fleet
