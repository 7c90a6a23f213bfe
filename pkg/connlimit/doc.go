// Package connlimit bounds what the connections of a server cost before their callers have shown a
// valid credential: how many there are, and the bytes and calls of each.
//
// A connection is unproven until the server calls Conn.Prove. Unproven connections that are too many
// are closed, the oldest of the source with the most of them first, so that a flood from one source
// does not keep a caller at another one from showing a credential. A proven connection is bounded in
// number only.
package connlimit
