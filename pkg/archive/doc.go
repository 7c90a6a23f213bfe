// Package archive reads and writes the file format of backups: a zstd-compressed tar of the
// messages of streams and of files, which any tar program can list.
//
// Owns: the format and its checks. It refuses a file that was cut short, changed, or joined from two
// files.
// Never does: access JetStream, directories or the network.
package archive
