// Package verify reads the journals, their archives and the other streams of an installation, and reports what is
// missing or was changed: once, or again and again, slowly, as they are on the disk of an embedded server (Scrubber).
//
// Owns: the pace; copying a damaged block aside before the server reads and cuts it.
// Never does: change a journal.
package verify
