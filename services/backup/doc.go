// Package backup copies an installation while it works (BackupService).
//
// Owns: which streams and directories a backup has, and the cut through them:
// one moment of the broker, so that no plane holds what follows from something
// that another plane does not hold. Invariant: nothing is written but to the
// caller.
// Never does: the file's format (pkg/archive), restoring (services/app).
package backup
