package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/keyfile"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

const (
	// SecretPrefix begins every API key, for people and for scanners of leaked
	// secrets: qk_[0-9a-hjkmnp-tv-z]{26}_[0-9a-f]{64}
	SecretPrefix = "qk_"
	keyPrefix    = "key_"
	secretLength = len(SecretPrefix) + id.Length + 1 + 2*sha256.Size
)

// secretOf derives the secret of an API key, of 256 bits, from its id and a key of the
// installation. It is not stored, and a repeated CreateKey returns the same one (SPEC X2).
func secretOf(installation keyfile.Key, keyID string) string {
	mac := hmac.New(sha256.New, installation.Secret)
	mac.Write([]byte("api-key\x00" + keyID))
	return SecretPrefix + strings.TrimPrefix(keyID, keyPrefix) + "_" + hex.EncodeToString(mac.Sum(nil))
}

// secretAgain derives the secret of an API key that was created before. It returns
// INSTALLATION_KEY_RETIRED if the installation's key from which the secret was derived is retired.
func secretAgain(ring keyfile.Ring, k *identityv1.Key) (string, error) {
	installation, ok := ring.Find(k.GetInstallationKeyId())
	if !ok {
		return "", fault.InstallationKeyRetired.New("the key was created, but its secret cannot be shown again: the "+
			"installation's key from which it was derived was retired; revoke it and create another one", "key_id",
			k.GetKeyId())
	}
	return secretOf(installation, k.GetKeyId()), nil
}

// keyOf returns the id of the key that a secret names; ok is false for a text that has not the
// form of a secret. It does not check the secret.
func keyOf(secret string) (keyID string, ok bool) {
	if len(secret) != secretLength || !strings.HasPrefix(secret, SecretPrefix) || secret[len(SecretPrefix)+id.Length] !=
		'_' {
		return "", false
	}
	return keyPrefix + secret[len(SecretPrefix):len(SecretPrefix)+id.Length], true
}

// hashOf returns the SHA-256 of a secret in hex.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
