// Package mcp lets coding agents use Quartet as their durable memory, over the
// Model Context Protocol (SPEC C5).
//
// Owns: nothing. A server is one agent's tools, plans and briefs, read from the
// planes at each request; over HTTP no session is kept, so a restart costs a
// client nothing.
// Never does: interpret a tool. It passes schemas, arguments and results on.
// Reads: ListTools, ListWorkItems, home files, briefs, events.
// Emits: CallTool, each under a request id of its own.
package mcp
