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

// secrets are those of triggers. What is made here follows from the
// installation's key and is stored nowhere, so a repeated request is answered
// with the same one; what a caller brings is stored encrypted under that key.
// Neither is in any event, list or log (SPEC P3).
type secrets func(name string) string

// token is the secret in a trigger's address.
func (s secrets) token(t *waitingv1.Trigger) string { return s(generation(t)) }

// signing is the signing secret that was made here.
func (s secrets) signing(t *waitingv1.Trigger) string {
	raw := sha256.Sum256([]byte(s("sign/" + generation(t))))
	if t.GetSignatureScheme() == waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS {
		return standardPrefix + base64.StdEncoding.EncodeToString(raw[:])
	}
	return "qts_" + base64.RawURLEncoding.EncodeToString(raw[:])
}

// generation names a trigger's secrets: each rotation has its own.
func generation(t *waitingv1.Trigger) string {
	if t.GetGeneration() == 0 {
		return t.GetTriggerId()
	}
	return t.GetTriggerId() + "/" + strconv.FormatInt(t.GetGeneration(), 10)
}

func (s secrets) sealKey() []byte {
	k := sha256.Sum256([]byte(s("seal")))
	return k[:]
}

// digest stands for a secret where arguments are compared. Without the
// installation's key it says nothing about a weak one.
func (s secrets) digest(secret string) string {
	mac := hmac.New(sha256.New, s.sealKey())
	mac.Write([]byte("digest\x00" + secret))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func (s secrets) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(s.sealKey())
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal encrypts a secret for its trigger. A rule must give the same answer
// twice, so the nonce follows from what is sealed: only the very same secret of
// the very same trigger meets a nonce again, and gives the very same bytes.
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

// signingOf is what a trigger's deliveries must be signed with.
func (s secrets) signingOf(t *waitingv1.Trigger) (string, error) {
	if sealed := t.GetSealedSigningSecret(); len(sealed) > 0 {
		return s.open(t.GetTriggerId(), sealed)
	}
	return s.signing(t), nil
}

// Limits of a caller's signing secret. The shortest holds 128 bits if it was
// drawn at random.
const (
	minSigningSecret = 16
	maxSigningSecret = 256
)

// validSigning checks a caller's signing secret. No refusal repeats it.
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

func knownScheme(scheme waitingv1.SignatureScheme) error {
	if _, ok := waitingv1.SignatureScheme_name[int32(scheme)]; !ok {
		return fault.Invalid("signature_scheme", scheme.String(), "must be hub_sha256 or standard_webhooks")
	}
	return nil
}

// address is where outside systems reach a trigger.
func (s *Service) address(token string) string {
	return strings.TrimSuffix(s.cfg.PublicURL, "/") + "/v1/triggers/" + token
}
