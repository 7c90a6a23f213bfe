// Package doctor finds what is wrong with an installation, and says how to repair it.
//
// Owns: nothing. It checks from both sides: as a client of a running server, and what a
// server would find on this machine: settings, directory, disk, broker, ports, certificates.
// Never does: change anything, except that it writes files into the data directory, or into
// its next existing parent, to see whether that is possible and how fast, and removes them.
package doctor
