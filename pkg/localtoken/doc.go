// Package localtoken keeps the token files by which clients find the credential of a server on the
// same machine.
//
// A server writes one file for each address at which it listens, in a directory of its user. The name
// of the file is the address, and its content the header line that `curl -H @FILE` sends. A client reads
// the file of the address that it connects to. Only the user can read it. This is why a token is needed:
// every user of a machine, every web page and every confined command can connect to a loopback address.
//
// The server holds a lock on its files (flock) for as long as it runs. A client does not use a file that is
// not locked: the server has ended, and another user's program may listen at its address and receive the token.
package localtoken
