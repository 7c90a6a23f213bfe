// Package runner drives agents with a model's API (SPEC C6).
//
// Owns: nothing durable. A turn's conversation is in memory; the agent plane stores
// its rounds.
// Never does: decide for the model, run a command itself (ExecCommand does), call
// another host than the provider's, show or log a key.
// Reads: turns, tools, files below the agent's workspace.
// Emits: rounds; progress as text or JSON lines.
//
//	turn -> [request -> provider -> text, calls -> StartLocalCalls -> local tools -> SubmitRound -> results] -> end
package runner
