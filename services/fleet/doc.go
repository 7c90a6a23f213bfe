// Package fleet finds and counts agents by what they do, for people who look at many of them.
//
// Owns: an index of agents in memory, of those who ask only: it begins with the first call, reads each agent
// once, then follows the journals, reads the agents that events named when it is asked again, and ends when nobody
// has asked for a while. What an agent does is derived by the agent plane; the index keeps what that said.
// Never does: decide or change anything.
// Reads: agents from the agent plane, boards from the board plane; the journals of agent, work, waiting and board.
// Emits: nothing.
package fleet
