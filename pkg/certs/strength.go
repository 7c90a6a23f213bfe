package certs

import (
	"crypto"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// MinRSABits is the least size of an RSA key that is accepted, in certificates and as the key of an
// identity provider (SPEC I10). Keys of 1 024 bits are within reach of an attacker with means.
const MinRSABits = 2048

// CheckKey returns an error if a public key is an RSA key of fewer than MinRSABits bits.
func CheckKey(key crypto.PublicKey) error {
	if k, ok := key.(*rsa.PublicKey); ok && k.N.BitLen() < MinRSABits {
		return fmt.Errorf("an RSA key has %d bits; it must have at least %d, or be of another kind, such as ECDSA",
			k.N.BitLen(), MinRSABits)
	}
	return nil
}

// strong returns an error for the first of ders, which are certificates in DER, that cannot be parsed or whose key is
// too short.
func strong(ders [][]byte) error {
	for _, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("a certificate cannot be read: %w", err)
		}
		if err := CheckKey(cert.PublicKey); err != nil {
			return fmt.Errorf("the certificate of %s: %w", cert.Subject, err)
		}
	}
	return nil
}

// VerifyPeer returns an error if the peer of a connection shows a certificate with a key that is too short. It
// is for tls.Config.VerifyConnection, which, unlike other hooks, is also called for resumed connections.
func VerifyPeer(state tls.ConnectionState) error {
	for _, cert := range state.PeerCertificates {
		if err := CheckKey(cert.PublicKey); err != nil {
			return fmt.Errorf("certs: the certificate of %s: %w", cert.Subject, err)
		}
	}
	return nil
}
