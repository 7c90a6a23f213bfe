// Package mcp lets coding agents use Quartet as their durable memory, over the
// Model Context Protocol (SPEC C5).
//
// Owns: nothing. A server shows one agent's tools, plans and briefs, which it reads
// from the planes at each request. Over HTTP there are no sessions, so clients do not
// notice a restart.
// Never does: interpret a tool. It forwards schemas, arguments and results.
// Reads: ListTools, ListWorkItems, home files, briefs, events.
// Emits: CallTool, each with a request id.
package mcp
