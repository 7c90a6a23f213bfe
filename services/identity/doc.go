// Package identity decides who a caller is and what the caller may do.
//
// Owns: API keys, the authenticator that makes an actor of a credential (SPEC X4), and the
// table of what each role may do (SPEC X15).
// Never does: store a secret. The journal line of a key has the SHA-256 of its secret.
// Reads: its own journal, in every process: Keys follows it, so that every process knows of
// a created or revoked key within milliseconds.
// Emits: key_created, key_revoked, key_used. They are in its journal only, and are not
// published on the bus.
package identity
