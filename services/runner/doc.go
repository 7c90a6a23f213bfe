// Package runner drives agents with a model's API (SPEC C6).
//
// Owns: nothing that lasts. A turn's conversation is in memory; what matters of
// it is in the rounds that the agent plane keeps.
// Never does: decide for the model, run a command itself (ExecCommand does), call
// another host than the provider's, show or log a key.
// Reads: turns, tools, files below the agent's workspace.
// Emits: rounds, and events for whoever looks on.
//
//	turn -> [request -> provider -> text, calls -> local tools -> SubmitRound -> results] -> end
package runner
