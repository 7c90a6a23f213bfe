// Package authority creates the certificates and secrets of an installation that has no
// certificate authority of its own: a trial, a laptop, a cluster of containers.
//
//	DIR/ca.pem             the authority's certificate; every client needs it, and it is public
//	DIR/authority/ca.key   the authority's private key
//	DIR/NAME/ca.pem        a copy of ca.pem, so that the directory NAME is complete
//	DIR/NAME/tls.pem       a certificate for servers and clients
//	DIR/NAME/tls.key       its private key
//
// A repeated run keeps valid files and renews those that expire soon. A directory with
// ca.pem but without ca.key belongs to a foreign authority: its files are read and never
// replaced.
//
// Owns: these files.
// Never does: load certificates for connections (pkg/certs).
package authority
