// Package archive is the file that a backup is: a zstd-compressed tar of the
// messages of streams and of files, which any tar shows.
//
// Owns: the format, its checks, and that a file which is cut short, changed or
// put together from two is refused.
// Never does: JetStream, directories, the network.
package archive
