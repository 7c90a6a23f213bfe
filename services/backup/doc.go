// Package backup copies an installation while it runs (BackupService).
//
// A backup has an archived segment of a journal in the form of the messages that its stream had, also if the segment
// is archived while the backup is made.
//
// Owns: which streams and directories a backup contains, and its consistency: all streams are
// copied as of one moment of the broker, so that no plane has the effect of an event that
// another plane does not have.
// Never does: write anything but its response; know the format of the file (pkg/archive);
// restore (services/app).
package backup
