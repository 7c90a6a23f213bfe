package waiting

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// secrets derives a secret from a name and the installation's key, always the same one. The
// secrets of triggers are such secrets: they are not stored, and a repeated request returns
// the same ones. A signing secret that a caller gives is stored encrypted under that key.
// No event, list or log contains a secret (SPEC P3).
type secrets func(name string) string

// token returns the secret in a trigger's address.
func (s secrets) token(t *waitingv1.Trigger) string { return s(generation(t)) }

// signing returns the generated signing secret of a trigger.
func (s secrets) signing(t *waitingv1.Trigger) string {
	raw := sha256.Sum256([]byte(s("sign/" + generation(t))))
	if t.GetSignatureScheme() == waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS {
		return standardPrefix + base64.StdEncoding.EncodeToString(raw[:])
	}
	return "qts_" + base64.RawURLEncoding.EncodeToString(raw[:])
}

// generation returns the name from which the secrets of a trigger are derived. Each
// rotation has its own.
func generation(t *waitingv1.Trigger) string {
	if t.GetGeneration() == 0 {
		return t.GetTriggerId()
	}
	return t.GetTriggerId() + "/" + strconv.FormatInt(t.GetGeneration(), 10)
}

// sealKey returns the key under which callers' signing secrets are encrypted and hashed.
func (s secrets) sealKey() []byte {
	k := sha256.Sum256([]byte(s("seal")))
	return k[:]
}

// digest returns a keyed hash of a secret, for the comparison of arguments. Without the
// installation's key, not even a weak secret can be found from it.
func (s secrets) digest(secret string) string {
	mac := hmac.New(sha256.New, s.sealKey())
	mac.Write([]byte("digest\x00" + secret))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// aead returns the cipher of seal and open.
func (s secrets) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(s.sealKey())
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal encrypts a secret for a trigger. A rule must return the same events when it is
// repeated, so the nonce is derived from the trigger and the secret: a nonce is repeated only
// for the same secret of the same trigger, which gives the same bytes.
func (s secrets) seal(triggerID, secret string) ([]byte, error) {
	aead, err := s.aead()
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, s.sealKey())
	mac.Write([]byte("nonce\x00" + triggerID + "\x00" + secret))
	nonce := mac.Sum(nil)[:aead.NonceSize()]
	return aead.Seal(nonce, nonce, []byte(secret), []byte(triggerID)), nil
}

// open decrypts what seal returned for the same trigger. It fails if the installation's key
// was replaced.
func (s secrets) open(triggerID string, sealed []byte) (string, error) {
	aead, err := s.aead()
	if err != nil {
		return "", err
	}
	if len(sealed) < aead.NonceSize() {
		return "", errors.New("waiting: a sealed secret is too short")
	}
	n := aead.NonceSize()
	secret, err := aead.Open(nil, sealed[:n], sealed[n:], []byte(triggerID))
	if err != nil {
		return "", fmt.Errorf("waiting: a sealed secret of %s cannot be opened; was the installation's key replaced? %w", triggerID, err)
	}
	return string(secret), nil
}

// signingOf returns the secret with which a trigger's deliveries must be signed.
func (s secrets) signingOf(t *waitingv1.Trigger) (string, error) {
	if sealed := t.GetSealedSigningSecret(); len(sealed) > 0 {
		return s.open(t.GetTriggerId(), sealed)
	}
	return s.signing(t), nil
}

// Limits of a caller's signing secret. The shortest one, if random, has 128 bits.
const (
	minSigningSecret = 16
	maxSigningSecret = 256
)

// validSigning validates a caller's signing secret for a scheme; an empty one is valid. No
// error repeats it.
func validSigning(scheme waitingv1.SignatureScheme, secret string) error {
	const field = "signing_secret"
	must := func(must string) error {
		return fault.InvalidArgument.New(field+" "+must, "field", field).WithField(field, must)
	}
	switch {
	case secret == "":
		return nil
	case scheme == waitingv1.SignatureScheme_SIGNATURE_SCHEME_UNSPECIFIED:
		return must("needs a signature_scheme: hub_sha256 or standard_webhooks")
	case len(secret) < minSigningSecret || len(secret) > maxSigningSecret:
		return must(fmt.Sprintf("has %d characters; it must have %d to %d", len(secret), minSigningSecret, maxSigningSecret))
	}
	for _, c := range []byte(secret) {
		if c <= ' ' || c > '~' {
			return must("must be printable ASCII without blanks")
		}
	}
	if scheme == waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS {
		if _, err := standardKey(secret); err != nil {
			return must("must be whsec_ and base64, as standardwebhooks.com has it")
		}
	}
	return nil
}

// knownScheme refuses a number that names no signature scheme. Unspecified is allowed.
func knownScheme(scheme waitingv1.SignatureScheme) error {
	if _, ok := waitingv1.SignatureScheme_name[int32(scheme)]; !ok {
		return fault.Invalid("signature_scheme", scheme.String(), "must be hub_sha256 or standard_webhooks")
	}
	return nil
}

// address returns the URL at which outside systems reach a trigger with this token.
func (s *Service) address(token string) string {
	return strings.TrimSuffix(s.cfg.PublicURL, "/") + "/v1/triggers/" + token
}
