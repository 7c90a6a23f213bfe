// Package console serves the web console at /ui and the sessions of its users.
//
// Owns: the files of the console, which are part of the binary; the cookie in which a browser keeps a
// session; one-time codes. A session is its user's credential, encrypted under a key that is derived
// from the installation's key: it has no record, is valid at every gateway of the installation and after
// a restart, and ends when the credential does.
// Never does: read or change anything but by the public API, which the pages call like any other client.
// Reads: the keys of the installation, and the credential of whoever begins a session.
// Emits: nothing.
package console
