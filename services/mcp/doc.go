// Package mcp lets coding agents use Quartet as their durable memory, over the
// Model Context Protocol (SPEC C5).
//
// Owns: nothing. A server shows one agent's tools, plans and briefs, which it reads
// from the planes at each request. Over HTTP there are no sessions, so clients do not
// notice a restart.
// Over stdio a session lasts: clients may subscribe to plans and briefs, and it may begin
// before a server runs.
// Never does: interpret a tool. It forwards schemas, arguments and results; the set of tools
// for memory has shorter schemas of its own.
// Reads: ListTools, ListWorkItems, GetWorkItem, home files, briefs, events.
// Emits: CallTool, each with a request id; SpawnAgent on first use.
package mcp
