// Package resident keeps values in memory that are used, and the others in a file.
//
// A Map holds values by key. Those that were not used for a while are evicted: what is left of them in memory is their key, their place in a File, and a
// small summary. Whoever gets an evicted value gets a copy that was read from the file; whoever edits one makes it resident again. So
// a reader cannot see which values are resident, and the memory that a Map takes follows from what is used.
//
// A Blob is bytes in the file that are no value of a Map, such as a part of a value that is large.
//
// An Index finds values by something else than their key, such as an id of a part of them, and is in the file but for its last changes.
//
// The file is a cache of this process. It is not durable, has no name, and ends with the process.
package resident
