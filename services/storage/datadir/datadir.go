package datadir

import "path/filepath"

// Store returns the directory of the embedded NATS server.
func Store(dir string) string { return filepath.Join(dir, "nats") }

// Archive returns the directory of the archives of the journals in a data directory.
func Archive(dir string) string { return filepath.Join(dir, "archive") }

// Witness returns the directory of the journals' witnesses.
func Witness(dir string) string { return filepath.Join(dir, "witness") }

// Unused returns the directory for the files to which package resident moves what is not used in memory. These have
// no name, so that they vanish with the process.
func Unused(dir string) string { return filepath.Join(dir, "unused") }

// Salvage returns the directory with the copies of damaged blocks.
func Salvage(dir string) string { return filepath.Join(dir, "salvage") }
