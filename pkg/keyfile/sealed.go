package keyfile

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
)

// errShortSecret is the error of OpenSecret for bytes that are too few to be a sealed secret.
var errShortSecret = errors.New("sealed: the secret is too short")

// SealSecret encrypts a secret with a key of 32 bytes, for an owner such as the id of the record in which it is
// stored. The result depends only on the arguments, because a rule must return the same events when it is
// repeated: the nonce is derived from key, owner and secret. So a nonce repeats only with the same secret of the
// same owner, which reveals nothing but that they are equal.
func SealSecret(key []byte, owner, secret string) ([]byte, error) {
	aead, err := openAEAD(key)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("nonce\x00" + owner + "\x00" + secret))
	nonce := mac.Sum(nil)[:aead.NonceSize()]
	return aead.Seal(nonce, nonce, []byte(secret), []byte(owner)), nil
}

// OpenSecret returns the secret that SealSecret encrypted for the same owner with the same key. For any other bytes,
// owner or key it returns an error.
func OpenSecret(key []byte, owner string, sealed []byte) (string, error) {
	aead, err := openAEAD(key)
	if err != nil {
		return "", err
	}
	n := aead.NonceSize()
	if len(sealed) < n {
		return "", errShortSecret
	}
	secret, err := aead.Open(nil, sealed[:n], sealed[n:], []byte(owner))
	return string(secret), err
}

func openAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
