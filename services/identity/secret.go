package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"quartet/pkg/id"
)

const (
	// SecretPrefix begins every API key, for people and for scanners of leaked
	// secrets: qk_[0-9a-hjkmnp-tv-z]{26}_[0-9a-f]{64}
	SecretPrefix = "qk_"
	keyPrefix    = "key_"
	secretLength = len(SecretPrefix) + id.Length + 1 + 2*sha256.Size
)

// Secrets derives the secret of a key, of 256 bits, from its id and the installation's key.
// It is not stored, and a repeated CreateKey returns the same one (SPEC X2).
func Secrets(installation []byte) func(keyID string) string {
	return func(keyID string) string {
		mac := hmac.New(sha256.New, installation)
		mac.Write([]byte("api-key\x00" + keyID))
		return SecretPrefix + strings.TrimPrefix(keyID, keyPrefix) + "_" + hex.EncodeToString(mac.Sum(nil))
	}
}

// keyOf returns the id of the key that a secret names; ok is false for a text that has not the
// form of a secret. It does not check the secret.
func keyOf(secret string) (keyID string, ok bool) {
	if len(secret) != secretLength || !strings.HasPrefix(secret, SecretPrefix) || secret[len(SecretPrefix)+id.Length] != '_' {
		return "", false
	}
	return keyPrefix + secret[len(SecretPrefix):len(SecretPrefix)+id.Length], true
}

// hashOf returns the SHA-256 of a secret in hex.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
