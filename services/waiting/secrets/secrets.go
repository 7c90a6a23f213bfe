// Package secrets derives the secrets of triggers from a key of the installation, encrypts those that callers give, and
// verifies the signatures of deliveries under them.
package secrets

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// Secrets derives secrets from names and one key of the installation, always the same ones. The
// secrets of triggers are such secrets: they are not stored, and a repeated request returns
// the same ones. A signing secret that a caller gives is stored encrypted under that key.
// No event, list or log contains a secret (SPEC P3).
type Secrets struct{ key keyfile.Key }

// Active returns the secrets of the installation's active key, which new secrets are derived
// from.
func Active(ring keyfile.Ring) Secrets { return Secrets{ring.Active()} }

// Of returns the secrets of the key that a trigger names, or INSTALLATION_KEY_RETIRED if
// the ring does not have it.
func Of(ring keyfile.Ring, t *waitingv1.Trigger) (Secrets, error) {
	key, ok := ring.Find(t.GetInstallationKeyId())
	if !ok {
		return Secrets{}, fault.InstallationKeyRetired.New("the installation's key was retired from which the "+
			"secrets of trigger "+t.GetTriggerId()+" follow; rotate the trigger, with a signing_secret if its caller "+
			"gave one", "trigger_id", t.GetTriggerId())
	}
	return Secrets{key}, nil
}

// KeyID returns the id of the key.
func (s Secrets) KeyID() string { return s.key.ID }

// derive returns the secret of a name, of 256 bits.
func (s Secrets) derive(name string) string {
	mac := hmac.New(sha256.New, s.key.Secret)
	mac.Write([]byte("trigger\x00" + name))
	return "qtr_" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Token returns the secret in a trigger's address.
func (s Secrets) Token(t *waitingv1.Trigger) string { return s.derive(generation(t)) }

// Signing returns the generated signing secret of a trigger. It is derived from the key, the trigger's id and its
// rotation, and is not stored.
func (s Secrets) Signing(t *waitingv1.Trigger) string {
	raw := sha256.Sum256([]byte(s.derive("sign/" + generation(t))))
	if t.GetSignatureScheme() == waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS {
		return StandardPrefix + base64.StdEncoding.EncodeToString(raw[:])
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
func (s Secrets) sealKey() []byte {
	k := sha256.Sum256([]byte(s.derive("seal")))
	return k[:]
}

// digest returns a keyed hash of a secret, for the comparison of arguments. Without the
// installation's key, not even a weak secret can be found from it.
func (s Secrets) digest(secret string) string {
	mac := hmac.New(sha256.New, s.sealKey())
	mac.Write([]byte("digest\x00" + secret))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Arguments returns the arguments of a request as they are compared with those of a repetition:
// with the digest of the secret in its place. The digest of a repetition is under another key if
// a key was activated in between, so the arguments with the digests under all other keys are
// equivalent.
func Arguments[M interface {
	proto.Message
	GetSigningSecret() string
}](ring keyfile.Ring, req M, set func(m M, digest string)) (args proto.Message, equivalent []proto.Message) {
	if req.GetSigningSecret() == "" {
		return req, nil
	}
	for _, key := range ring.Keys() {
		m := proto.CloneOf(req)
		set(m, Secrets{key}.digest(req.GetSigningSecret()))
		if key.State == keyfile.Active {
			args = m
		} else {
			equivalent = append(equivalent, m)
		}
	}
	return args, equivalent
}

// Seal encrypts a secret for a trigger. The same arguments always give the same result.
func (s Secrets) Seal(triggerID, secret string) ([]byte, error) {
	return keyfile.SealSecret(s.sealKey(), triggerID, secret)
}

// open decrypts what Seal returned for the same trigger under the same key.
func (s Secrets) open(triggerID string, text []byte) (string, error) {
	secret, err := keyfile.OpenSecret(s.sealKey(), triggerID, text)
	if err != nil {
		return "",
			fault.Internal(fmt.Errorf("waiting: the secret of %s cannot be opened with the installation's key %s: %w",
				triggerID, s.key.ID, err))
	}
	return secret, nil
}

// SigningOf returns the secret with which a trigger's deliveries must be signed.
func SigningOf(ring keyfile.Ring, t *waitingv1.Trigger) (string, error) {
	s, err := Of(ring, t)
	if err != nil {
		return "", err
	}
	if len(t.GetSealedSigningSecret()) == 0 {
		return s.Signing(t), nil
	}
	return s.open(t.GetTriggerId(), t.GetSealedSigningSecret())
}

// Limits of a caller's signing secret. The shortest one, if random, has 128 bits.
const (
	minSigningSecret = 16
	maxSigningSecret = 256
)

// ValidSigning validates a caller's signing secret for a scheme; an empty one is valid. No
// error repeats it.
func ValidSigning(scheme waitingv1.SignatureScheme, secret string) error {
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
		return must(fmt.Sprintf("has %d characters; it must have %d to %d", len(secret), minSigningSecret,
			maxSigningSecret))
	}
	for _, c := range []byte(secret) {
		if c <= ' ' || c > '~' {
			return must("must be printable ASCII without blanks")
		}
	}
	if scheme == waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS {
		if _, err := StandardKey(secret); err != nil {
			return must("must be whsec_ and base64, as standardwebhooks.com has it")
		}
	}
	return nil
}
