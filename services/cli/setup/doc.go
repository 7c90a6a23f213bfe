// Package setup has `quartet setup`: it enters Quartet into the settings of coding agents, so that they use it as their
// memory, and removes it again.
//
// Owns: which files of which coding agent have what, and editing them without touching what else is in them.
// Never does: start a server or a coding agent, or write a credential.
// Reads: settings of Claude Code, Codex and Cursor, in a project or in the user's home directory; whether a server
// answers. Emits: those files, each replaced as a whole, with a copy of what the user had there first; and the changes
// that it leaves to the user, as text.
package setup
