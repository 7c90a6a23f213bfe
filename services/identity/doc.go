// Package identity is who may come in, and what for.
//
// Owns: API keys, the door that turns a credential into an actor (SPEC X4), and
// the table of what each role may do (SPEC X15).
// Never does: keep a secret. A key's journal line has the SHA-256 of one.
// Reads: its own journal, in every process: Keys follows it, so that a key which
// is made or revoked anywhere is known everywhere within milliseconds.
// Emits: key_created, key_revoked, key_used. They are in its journal alone, and
// are not copied for outsiders.
package identity
