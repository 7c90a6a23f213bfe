// Package doctor says what is wrong with an installation, and how to mend it.
//
// Owns: nothing. It looks from both sides: as a client of a running server, and
// at what a server would find where it is run: its settings, directory, disk,
// broker, ports, certificates.
// Never does: change anything. A file is written beside the journals to see how
// fast the disk is, and removed.
package doctor
