// Package sealed encrypts short secrets for storage, so that the same secret gives the same bytes.
//
// Owns: the form of a sealed secret: a nonce, and AES-256-GCM.
// Never does: keep or derive keys.
package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
)

// errShort is the error of Open for bytes that are too few to be a sealed secret.
var errShort = errors.New("sealed: the secret is too short")

// Seal encrypts a secret for its owner, such as the id of the record in which it is stored, with a
// key of 32 bytes. A rule must return the same events when it is repeated, so the nonce is derived
// from owner and secret: a nonce is repeated only for the same secret of the same owner, which
// gives the same bytes.
func Seal(key []byte, owner, secret string) ([]byte, error) {
	aead, err := open(key)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("nonce\x00" + owner + "\x00" + secret))
	nonce := mac.Sum(nil)[:aead.NonceSize()]
	return aead.Seal(nonce, nonce, []byte(secret), []byte(owner)), nil
}

// Open decrypts what Seal returned for the same owner with the same key.
func Open(key []byte, owner string, sealed []byte) (string, error) {
	aead, err := open(key)
	if err != nil {
		return "", err
	}
	n := aead.NonceSize()
	if len(sealed) < n {
		return "", errShort
	}
	secret, err := aead.Open(nil, sealed[:n], sealed[n:], []byte(owner))
	return string(secret), err
}

func open(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
