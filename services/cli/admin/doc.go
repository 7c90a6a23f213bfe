// Package admin has the commands of whoever operates an installation: API keys,
// certificates, backup, restore and doctor.
//
// Owns: how their results are shown.
// Never does: open a data directory; the binary passes Restore and Examine.
// Reads: the identity and backup services, certificate files, the installation's key file.
// Emits: calls, certificates, backup files.
package admin
