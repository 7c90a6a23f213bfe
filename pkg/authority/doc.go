// Package authority makes the certificates and secrets of an installation where
// nobody else does: a trial, a laptop, a cluster of containers.
//
//	DIR/ca.pem             who signs; every client needs it, and it is no secret
//	DIR/authority/ca.key   what it signs with
//	DIR/NAME/ca.pem        ca.pem again, so that NAME can be handed out alone
//	DIR/NAME/tls.pem       a certificate for servers and clients
//	DIR/NAME/tls.key       its private key
//
// Doing it again keeps what is good and renews what ends soon. A directory with
// ca.pem and no ca.key is somebody else's authority: its files are looked at and
// never replaced.
//
// Owns: these files. Never does: read certificates for connections (pkg/certs).
package authority
