// Package resident keeps values in memory that are used, and the others in a file.
//
// A Map holds values by key. Values that were not used for a while are evicted: only their key, their place in a
// File, and a small summary remain in memory. Get returns a copy of an evicted value, read from the file; Edit makes
// it resident again. So readers cannot tell which values are resident, and the memory of a Map depends on what is
// used.
//
// A Blob is bytes in the file that are no value of a Map, such as a part of a value that is large.
//
// An Index finds values by something else than their key, such as an id of a part of them, and is in the file but for
// its last changes.
//
// The file is a cache of this process. It is not durable, has no name, and ends with the process.
package resident
