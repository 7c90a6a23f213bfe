// Package keyfile reads and writes the file with an installation's keys.
//
// Owns: the file's format; which key signs and which keys only verify; durable changes of the
// file by one process at a time; noticing changes that another process made.
// Never does: sign, encrypt, or know what is derived from a key.
package keyfile
